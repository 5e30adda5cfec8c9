"""Items with equal inputs share their feature: they are summed before any Gram matrix is taken."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def labels_of(inputs: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Number the distinct rows: in the first layer, equal tokens at equal positions."""
    return torch.unique(inputs, dim=0, return_inverse=True)[1]


def has_repeats(labels: Int[Tensor, " n"]) -> bool:
    """Whether some items share a label."""
    return int(labels.max()) + 1 < len(labels)


def one_of_each(inputs: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Float[Tensor, "labels d"]:
    """Return the inputs of the first item of each label."""
    count, items = int(labels.max()) + 1, torch.arange(len(labels)).to(labels)
    first = torch.full((count,), len(labels)).to(labels).scatter_reduce(0, labels, items, "amin")
    return inputs[first]
