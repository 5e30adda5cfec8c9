"""Gradient and Hessian of the loss in the outputs, item by item."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.problem import Problem
from hessfig.tasks.losses import CrossEntropy, output_gradient


def loss_rows(problem: Problem, outputs: Float[Tensor, "batch scored v"]) -> tuple[Tensor, Tensor]:
    """Return (dl/df of each item, R of each item) with R^T R = d2l/df2; shapes (n, v) and (n or 1, v, v).

    Cross-entropy over n items: d2l/df2 = (diag(p) - p p^T)/n, R = diag(sqrt(p)) (I - 1 p^T)/sqrt(n).
    Squared errors: d2l/df2 = 2 I, or 2 I / (n v) for their mean.
    """
    with torch.enable_grad():
        gradient = output_gradient(problem.loss, outputs, problem.batch.targets).flatten(0, 1)
    identity = torch.eye(outputs.shape[-1]).to(outputs)
    if isinstance(problem.loss, CrossEntropy):
        chances = torch.softmax(outputs.flatten(0, 1), dim=-1)
        return gradient, (chances / len(chances)).sqrt()[:, :, None] * (identity - chances[:, None, :])
    scale = 2.0 if problem.loss.reduction == "sum" else 2.0 / outputs.numel()
    return gradient, scale**0.5 * identity[None]
