"""The covariance of the gradients of single examples, by its eigenvalues other than zero."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.problem import Problem
from hessfig.curvature.slope import Slope
from hessfig.tasks.batch import Batch

EXAMPLES = 64


def gram(problem: Problem) -> Float[Tensor, " k"]:
    """Return the eigenvalues of C but for zeros, rising: of the Gram matrix of k centred gradients over k - 1."""
    batch = problem.batch
    count = min(len(batch.inputs), EXAMPLES)
    if count < 2:
        return torch.full((1,), float("nan"), dtype=torch.float64)
    singles = [Batch(batch.inputs[i : i + 1], batch.targets[i : i + 1], batch.scored) for i in range(count)]
    slopes = torch.stack([Slope(replace(problem, batch=one, more=())).flat.double() for one in singles])
    centred = slopes - slopes.mean(dim=0)
    return torch.linalg.eigvalsh(centred @ centred.T / (count - 1)).clamp(min=0)
