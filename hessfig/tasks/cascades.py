"""Sums whose carries cascade: made on purpose for training, and found among sums for testing."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from hessfig.tasks.addition import BASE

Operands = tuple[Tensor, Tensor]
LONG = 3  # carries in a row that count as a cascade


def with_cascades(x: Tensor, y: Tensor, share: float, *, generator: Generator, base: int = BASE) -> Operands:
    """Return the operands with runs of places that sum to base - 1 in the first `share` of the sums, rounded.

    Each such sum gets one run, of every length and at every place with equal chances; the digit of y is what changes.
    Whether a carry enters the run is left to the digits below it, so cascades that start and runs that stay still are
    both met. (In the manner of Quirke & Barez, arXiv 2310.13121, who enrich a batch's places one by one.)
    """
    count, digits = round(share * len(x)), x.shape[1]
    length = torch.randint(1, digits + 1, (count, 1), generator=generator)
    start = (torch.rand((count, 1), generator=generator) * (digits - length + 1)).long()
    place = torch.arange(digits)
    run = (place >= start) & (place < start + length)
    changed = torch.where(run, base - 1 - x[:count], y[:count])
    return x, torch.cat([changed, y[count:]])


def has_cascade(
    x: Int[Tensor, "sums digits"], y: Int[Tensor, "sums digits"], length: int = LONG, *, base: int = BASE
) -> Bool[Tensor, " sums"]:
    """Return which sums hold `length` carries of which each but the first is made by the one before.

    That is a place whose digits sum to base or more, and length - 1 places to its left that sum to base - 1.
    """
    in_a_row = torch.zeros(len(x), dtype=torch.long)
    found = torch.zeros(len(x), dtype=torch.bool)
    for total in (x + y).flip(1).unbind(1):
        passed_on = torch.where((total == base - 1) & (in_a_row > 0), in_a_row + 1, 0)
        in_a_row = torch.where(total >= base, 1, passed_on)
        found |= in_a_row >= length
    return found
