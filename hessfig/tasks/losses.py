"""Losses on the scored logits, and the linearised loss whose Hessian is the functional Hessian."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from hessfig.config import Loss
from hessfig.errors import UserError


class CrossEntropy(Module):
    """Mean over sequences and scored positions of -log softmax(logits)[target token]."""

    reduction = "mean"

    def forward(self, logits: Float[Tensor, "*scored vocab"], target: Tensor) -> Float[Tensor, ""]:
        """`target`: (batch, scored) token ids, or as many axes as `logits` has beside its last."""
        return F.cross_entropy(logits.flatten(0, -2), target.flatten())

    def hessian_product(self, logits: Tensor, df: Float[Tensor, "batch scored k vocab"]) -> Tensor:
        """Multiply by d2l/df2 = (diag(p) - p p^T) / (batch * scored) of each position."""
        p = logits.softmax(-1).unsqueeze(2)
        weighted = p * df
        return (weighted - p * weighted.sum(-1, keepdim=True)) / (logits.shape[0] * logits.shape[1])


class SquaredError(Module):
    """Sum or mean over everything of (output - target)^2."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, output: Tensor, target: Tensor) -> Float[Tensor, ""]:
        """`target`: same shape as `output`. Raises ValueError for another shape, which would be broadcast silently."""
        if target.shape != output.shape:
            raise ValueError(f"targets {tuple(target.shape)} for outputs {tuple(output.shape)}")
        return F.mse_loss(output, target, reduction=self.reduction)

    def hessian_product(self, output: Tensor, df: Float[Tensor, "batch scored k d"]) -> Tensor:
        """Multiply by d2l/df2 = 2 I, over the number of entries for the mean."""
        return df * (2.0 if self.reduction == "sum" else 2.0 / output.numel())


class Linearised(Module):
    """<target, output>: with target = dl/df held fixed, its Hessian is the functional Hessian H_f (eq. 2).

    No difference of two large Hessians is taken, so a block that theory says is zero comes out as exactly zero.
    """

    reduction = "sum"

    def forward(self, output: Tensor, target: Tensor) -> Float[Tensor, ""]:
        return (output * target).sum()


LOSSES: dict[str, Callable[[], Module]] = {
    "cross_entropy": CrossEntropy,
    "mse": partial(SquaredError, "mean"),
    "mse_sum": partial(SquaredError, "sum"),
}


def loss_module(loss: Loss) -> Module:
    """Return the module for a configured loss."""
    if loss == Loss.cross_entropy:
        return CrossEntropy()
    return SquaredError("sum" if loss == Loss.mse_sum_unshifted else "mean")


def per_sample(loss: Module, output: Tensor, target: Tensor) -> Float[Tensor, " batch"]:
    """Return the loss of each sample, whose mean over the batch is the loss.

    Raises UserError for a loss that is no mean over samples.
    """
    if isinstance(loss, CrossEntropy):
        single = F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    elif isinstance(loss, SquaredError) and loss.reduction == "mean":
        single = (output - target).square()
    else:
        raise UserError(
            "this loss is no mean over samples: L_k, the mean of the first k, has none of its own to take",
            got=f"{type(loss).__name__} with reduction {getattr(loss, 'reduction', None)!r}",
            allowed="cross_entropy, or mse, which is a mean over everything",
            remedy="task.loss=cross_entropy",
        )
    return single.reshape(len(output), -1).mean(dim=1)


def output_gradient(loss: Module, output: Tensor, target: Tensor) -> Tensor:
    """Return dl/df at `output`, detached, in the shape of `output`."""
    with torch.enable_grad():
        output = output.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(output, target), output)
    return gradient.detach()
