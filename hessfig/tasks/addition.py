"""Addition as next-token prediction: x + y = answer, digit by digit, most significant first, in any base."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from hessfig.config import Scored

BASE = 10
ENRICHMENT_CHANCE, ENRICHMENT_SHARE = 5, 0.2


def sequence_length(digits: int) -> int:
    """Tokens in one sequence: two operands, two signs and digits + 1 answer digits."""
    return 3 * digits + 3


def scored_positions(digits: int, scored: Scored) -> slice:
    """Positions whose logits predict the answer digits, or every next token; the last token predicts nothing."""
    return slice(2 * digits + 1 if scored == Scored.answer else 0, 3 * digits + 2)


def addition_batch(
    batch_size: int, digits: int, *, generator: Generator, base: int = BASE
) -> Int[Tensor, "batch length"]:
    """Draw `batch_size` sequences `x + y = answer` of 3 digits + 3 tokens.

    Digits are uniform. With probability 1/5 the batch is enriched (Quirke & Barez): a fifth of all
    digit places, chosen without replacement, is made to sum to base - 1, so that carries cascade.
    """
    x = torch.randint(0, base, (batch_size, digits), generator=generator)
    y = torch.randint(0, base, (batch_size, digits), generator=generator)
    if _one_in(ENRICHMENT_CHANCE, generator):
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


def _with_nines(x: Tensor, y: Tensor, base: int, generator: Generator) -> tuple[Tensor, Tensor]:
    places = torch.randperm(x.numel(), generator=generator)[: int(ENRICHMENT_SHARE * x.numel())]
    x, y = x.clone(), y.clone()
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
