"""Sums as sequences of tokens, and cascades of carries."""

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

BASE = 10
ENRICHMENT_CHANCE, ENRICHMENT_SHARE = 5, 0.2


def addition_batch(
    batch_size: int,
    digits: int,
    *,
    generator: Generator,
    base: int = BASE,
    can_be_enriched: bool = True,
) -> Int[Tensor, "batch length"]:
    """Draw `batch_size` sequences `x + y = answer` of 3 digits + 3 tokens.

    Digits are uniform. With probability 1/5 the batch is enriched (Quirke & Barez): a
    fifth of all digit places, chosen without replacement, is made to sum to base - 1,
    so that carries cascade. (The published batch is not; the published code draws that
    chance from another generator.)
    """
    x = torch.randint(0, base, (batch_size, digits), generator=generator)
    y = torch.randint(0, base, (batch_size, digits), generator=generator)
    if can_be_enriched and _one_in(ENRICHMENT_CHANCE, generator):
        x, y = _with_nines(x, y, base, generator)
    return sequences(x, y, base)


def sequences(
    x: Int[Tensor, "batch digits"], y: Int[Tensor, "batch digits"], base: int = BASE
) -> Int[Tensor, "batch length"]:
    """Return the tokens of `x + y = answer`: digits stand for themselves, base for +, base + 1 for =."""
    signs = [torch.full((len(x), 1), sign) for sign in (base, base + 1)]
    return torch.cat([x, signs[0], y, signs[1], _digit_sums(x, y, base)], dim=1)


def _one_in(count: int, generator: Generator) -> bool:
    return int(torch.randint(0, count, (), generator=generator)) == 0


def _with_nines(
    x: Tensor, y: Tensor, base: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    places = torch.randperm(x.numel(), generator=generator)[
        : int(ENRICHMENT_SHARE * x.numel())
    ]
    x = x.clone()
    y = y.clone()
    changed, kept = (x, y) if _one_in(2, generator) else (y, x)
    changed.view(-1)[places] = base - 1 - kept.view(-1)[places]
    return x, y


def _digit_sums(x: Tensor, y: Tensor, base: int) -> Int[Tensor, "batch digits_plus_1"]:
    carry = torch.zeros_like(x[:, 0])
    answer = []
    for total in (x + y).flip(1).unbind(1):
        answer.append((total + carry) % base)
        carry = (total + carry) // base
    return torch.stack([*answer, carry], dim=1).flip(1)


Operands = tuple[Tensor, Tensor]
LONG = 3  # number of successive carries of a cascade


def with_cascades(
    x: Tensor, y: Tensor, share: float, *, generator: Generator, base: int = BASE
) -> Operands:
    """Return the operands with runs of places that sum to base - 1 in the first `share` of the sums, rounded.

    Each such sum gets one run, with all lengths and positions equally likely; only
    digits of y are changed. The digits below the run decide whether a carry enters it,
    so that there are cascades as well as runs without carries. (Similar to Quirke &
    Barez, arXiv 2310.13121, who enrich the places of a batch one by one.)
    """
    count = round(share * len(x))
    digits = x.shape[1]
    length = torch.randint(1, digits + 1, (count, 1), generator=generator)
    start = (torch.rand((count, 1), generator=generator) * (digits - length + 1)).long()
    place = torch.arange(digits)
    run = (place >= start) & (place < start + length)
    changed = torch.where(run, base - 1 - x[:count], y[:count])
    return x, torch.cat([changed, y[count:]])


def has_cascade(
    x: Int[Tensor, "sums digits"],
    y: Int[Tensor, "sums digits"],
    length: int = LONG,
    *,
    base: int = BASE,
) -> Bool[Tensor, " sums"]:
    """Return which sums have a cascade of `length` carries, each but the first caused by the one before.

    It consists of a place whose digits sum to base or more, and of length - 1 places to
    its left that sum to base - 1.
    """
    in_a_row = torch.zeros(len(x), dtype=torch.long)
    is_cascade = torch.zeros(len(x), dtype=torch.bool)
    for total in (x + y).flip(1).unbind(1):
        passed_on = torch.where((total == base - 1) & (in_a_row > 0), in_a_row + 1, 0)
        in_a_row = torch.where(total >= base, 1, passed_on)
        is_cascade |= in_a_row >= length
    return is_cascade
