"""The covariance of the gradients of single examples, by its eigenvalues other than zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.gradients import Slope
from hessfig.curvature.problem import Problem
from hessfig.curvature.spectral.densities import eigenvalues
from hessfig.tasks.batch import Batch

EXAMPLES = 64


def gram(problem: Problem) -> Float[Tensor, " k"]:
    """Return the eigenvalues of C but for zeros, rising: of the Gram matrix of k centred gradients over k - 1."""
    singles = list(islice(_examples(problem), EXAMPLES))
    if len(singles) < 2:
        return torch.full((1,), float("nan"), dtype=torch.float64)
    slopes = torch.stack([Slope(replace(problem, batch=one, more=())).flat.double() for one in singles])
    centred = slopes - slopes.mean(dim=0)
    return eigenvalues(centred @ centred.T / (len(singles) - 1)).clamp(min=0)


def _examples(problem: Problem) -> Iterator[Batch]:
    """Yield every example as a batch of its own."""
    for batch in (problem.batch, *problem.more):
        pairs = zip(batch.inputs.split(1), batch.targets.split(1), strict=True)
        yield from (Batch(inputs, targets, batch.scored) for inputs, targets in pairs)
