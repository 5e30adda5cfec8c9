"""Masked tokens: which words of a sequence are masked, what becomes of them, and what alone is scored."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from hessfig.config.enums import MaskedAs
from hessfig.config.science import TaskConfig
from hessfig.curvature.losses import IGNORED
from hessfig.curvature.problem import Batch
from hessfig.errors import UserError
from hessfig.rng import stream

_SHARES = (0.8, 0.9)  # of masked_as=mixed: below the first the mask's word, below the second any word, above itself


@dataclass(frozen=True)
class Special:
    """Words with a meaning of their own: the `mask`, and all those that are `kept`, never masked nor drawn."""

    mask: int
    kept: tuple[int, ...]


def masked_batches(
    tokens: Int[Tensor, "batch length"], task: TaskConfig, special: Special, *, vocabulary: int, at_once: int
) -> list[Batch]:
    """Return sequences with masked tokens, `at_once` in a batch (the last may be smaller).

    Targets are the masked tokens, IGNORED elsewhere; a batch weighs as many tokens as are masked in it, so that the
    loss of all batches is the mean over all masked tokens. Raises UserError for a sequence of special words alone.
    """
    rows = [masked(row, number, task, special, vocabulary) for number, row in enumerate(tokens)]
    inputs, targets = (torch.stack(side) for side in zip(*rows, strict=True))
    scored = slice(0, tokens.shape[1])
    pieces = zip(inputs.split(at_once), targets.split(at_once), strict=True)
    return [Batch(some, wanted, scored, weight=float((wanted != IGNORED).sum())) for some, wanted in pieces]


def masked(
    row: Int[Tensor, " length"], number: int, task: TaskConfig, special: Special, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Return the `number`-th sequence with masked tokens, and its targets.

    max(1, round(share n)) of its n words that are not special are masked, chosen evenly by a stream of task.seed and
    `number`: a larger batch holds the smaller one. Raises UserError where there is no such word.
    """
    words = torch.tensor([word not in special.kept for word in row.tolist()]).nonzero().squeeze(1)
    if not len(words):
        raise UserError(
            "task.path: a sequence has no word that could be masked",
            got=f"sequence {number + 1}: {row.tolist()[:8]} ...",
            allowed="words besides padding and those of the tokenizer's own",
            remedy="leave the sequence out",
        )
    generator = stream(task.seed, "task", task.data.value, number)
    count = max(1, round(task.masked_share * len(words)))
    chosen = words[torch.randperm(len(words), generator=generator)[:count]]
    inputs, targets = row.clone(), torch.full_like(row, IGNORED)
    targets[chosen] = row[chosen]
    inputs[chosen] = _becomes(row[chosen], task, special, vocabulary, generator)
    return inputs, targets


def _becomes(words: Tensor, task: TaskConfig, special: Special, vocabulary: int, generator: Generator) -> Tensor:
    masks = torch.full_like(words, special.mask)
    if task.masked_as == MaskedAs.mask:
        return masks
    others = torch.tensor([word for word in range(vocabulary) if word not in special.kept])
    drawn = others[torch.randint(len(others), words.shape, generator=generator)]
    share = torch.rand(words.shape, generator=generator)
    return torch.where(share < _SHARES[0], masks, torch.where(share < _SHARES[1], drawn, words))
