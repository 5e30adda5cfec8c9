"""Measuring batches of a sweep: inputs, targets and scored positions from the task's own seed, and masked words."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from hessfig.config.enums import Data, Draws, DType, Loss, MaskedAs
from hessfig.config.science import TaskConfig
from hessfig.curvature.losses import IGNORED, CrossEntropy, SquaredError
from hessfig.curvature.problem import Batch
from hessfig.errors import UserError
from hessfig.rng import stream
from hessfig.tasks import text
from hessfig.tasks.addition import addition_batch
from hessfig.tasks.digits import CLASSES, Pictures, split


def draw_batch(task: TaskConfig, *, width: int, dtype: DType) -> Batch:
    """Draw the batch of `task`; `width` is the output width of the Gaussian task."""
    is_published = task.draw == Draws.published
    if is_published:
        generator = Generator().manual_seed(task.seed)
    else:
        generator = stream(task.seed, "task", task.data.value)
    if task.data == Data.gaussian:
        return _gaussian_batch(task, width, getattr(torch, dtype), generator)
    if task.data in CHOSEN:
        return CHOSEN[task.data](task, task.batch_size, generator, dtype=dtype)
    tokens = addition_batch(
        task.batch_size,
        task.digits,
        generator=generator,
        base=task.base,
        can_be_enriched=not is_published,
    )
    return batch_of(tokens, task, dtype=dtype)


def batch_of(tokens: Tensor, task: TaskConfig, *, dtype: DType) -> Batch:
    """Return sums, or windows of text, as a batch of `task` with its scored positions and targets for its loss."""
    last = task.num_tokens - 1  # the last position predicts no token
    scored = slice(last - task.num_scored, last)
    return Batch(tokens, _targets(tokens, scored, task, getattr(torch, dtype)), scored)


def picture_batch(
    task: TaskConfig, size: int, generator: Generator, *, dtype: DType
) -> Batch:
    """Choose training pictures without replacement. A larger batch of the same seed contains the smaller one."""
    training = split(task.path, task.sha256)[0]
    kind = getattr(torch, dtype)
    # As numpy: an array takes a tensor of one number as that number, and drops the axis.
    chosen = torch.randperm(len(training), generator=generator)[:size].numpy()
    return _pictured(
        Pictures(training.images[chosen], training.labels[chosen]), task, kind
    )


def test_pictures(task: TaskConfig, *, dtype: DType) -> Batch:
    """Return all test pictures."""
    return _pictured(split(task.path, task.sha256)[1], task, getattr(torch, dtype))


def _pictured(chosen: Pictures, task: TaskConfig, kind: torch.dtype) -> Batch:
    images = torch.from_numpy(chosen.images).to(kind)
    labels = torch.from_numpy(chosen.labels).unsqueeze(1)
    if task.loss == Loss.cross_entropy:
        targets = labels
    else:
        targets = F.one_hot(labels, CLASSES).to(kind)
    return Batch(images, targets, slice(0, 1))


def text_batch(
    task: TaskConfig, size: int, generator: Generator, *, dtype: DType
) -> Batch:
    """Draw windows of the training text with uniform starts. A larger batch of one seed contains the smaller one."""
    ids, length = text.split(task).training, task.num_tokens
    starts = torch.randint(0, len(ids) - length + 1, (size,), generator=generator)
    return batch_of(
        torch.from_numpy(text.windows(ids, starts.numpy(), length)), task, dtype=dtype
    )


# Data whose examples are chosen from a given set.
CHOSEN = {Data.digits: picture_batch, Data.text: text_batch}


def _targets(
    tokens: Tensor, scored: slice, task: TaskConfig, dtype: torch.dtype
) -> Tensor:
    following = tokens[:, scored.start + 1 : scored.stop + 1]
    if task.loss == Loss.cross_entropy:
        return following
    # NOTE(paper): the published code compares logits[11..16] with the tokens at the
    # same positions.
    labels = tokens[:, scored] if task.loss == Loss.mse_sum_unshifted else following
    return F.one_hot(labels, task.vocabulary).to(dtype)


def _gaussian_batch(
    task: TaskConfig, width: int, dtype: torch.dtype, generator: Generator
) -> Batch:
    """Draw tokens sqrt(1 - rho) own + sqrt(rho) shared, of variance one and correlation rho, and N(0, 1) targets."""
    shape = (task.batch_size, task.num_tokens, width)
    inputs, targets = (
        torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    if rho := task.correlation:
        shared = torch.randn(
            (shape[0], 1, width), dtype=torch.float64, generator=generator
        )
        inputs = (1 - rho) ** 0.5 * inputs + rho**0.5 * shared
    return Batch(inputs.to(dtype), targets.to(dtype), slice(0, shape[1]))


# Of masked_as=mixed: below the first the mask's word, below the second any word, above
# itself.
_SHARES = (0.8, 0.9)


@dataclass(frozen=True)
class Special:
    """Special words: the `mask`, and the words that are `kept`, which are neither masked nor drawn."""

    mask: int
    kept: tuple[int, ...]


def masked_batches(
    tokens: Int[Tensor, "batch length"],
    task: TaskConfig,
    special: Special,
    *,
    vocabulary: int,
    at_once: int,
) -> list[Batch]:
    """Return sequences with masked tokens, `at_once` in a batch (the last may be smaller).

    Targets are the masked tokens, and IGNORED elsewhere. The weight of a batch is its
    number of masked tokens, so that the loss of all batches is the mean over all masked
    tokens. Raises UserError for a sequence of special words only.
    """
    rows = [
        masked(row, number, task, special, vocabulary)
        for number, row in enumerate(tokens)
    ]
    inputs, targets = (torch.stack(side) for side in zip(*rows, strict=True))
    scored = slice(0, tokens.shape[1])
    pieces = zip(inputs.split(at_once), targets.split(at_once), strict=True)
    return [
        Batch(ids, wanted, scored, weight=float((wanted != IGNORED).sum()))
        for ids, wanted in pieces
    ]


def masked(
    row: Int[Tensor, " length"],
    number: int,
    task: TaskConfig,
    special: Special,
    vocabulary: int,
) -> tuple[Tensor, Tensor]:
    """Return the `number`-th sequence with masked tokens, and its targets.

    max(1, round(share n)) of its n words that are not special are masked, chosen evenly
    by a stream of task.seed and `number`: a larger batch holds the smaller one. Raises
    UserError where there is no such word.
    """
    words = (
        torch.tensor([word not in special.kept for word in row.tolist()])
        .nonzero()
        .squeeze(1)
    )
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
    inputs = row.clone()
    targets = torch.full_like(row, IGNORED)
    targets[chosen] = row[chosen]
    inputs[chosen] = _becomes(row[chosen], task, special, vocabulary, generator)
    return inputs, targets


def _becomes(
    words: Tensor,
    task: TaskConfig,
    special: Special,
    vocabulary: int,
    generator: Generator,
) -> Tensor:
    masks = torch.full_like(words, special.mask)
    if task.masked_as == MaskedAs.mask:
        return masks
    others = torch.tensor(
        [word for word in range(vocabulary) if word not in special.kept]
    )
    drawn = others[torch.randint(len(others), words.shape, generator=generator)]
    share = torch.rand(words.shape, generator=generator)
    return torch.where(
        share < _SHARES[0], masks, torch.where(share < _SHARES[1], drawn, words)
    )


def loss_module(task: TaskConfig) -> nn.Module:
    """Return the module of the configured loss, without weight decay, which is not a function of outputs."""
    if task.loss == Loss.cross_entropy:
        return CrossEntropy(task.label_smoothing)
    return SquaredError("sum" if task.loss == Loss.mse_sum_unshifted else "mean")
