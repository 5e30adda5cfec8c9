"""The one batch a sweep measures on: inputs, targets and scored positions, from the task's own seed."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.config.enums import Data, DType, Loss
from hessfig.config.science import TaskConfig
from hessfig.curvature.losses import CrossEntropy, SquaredError
from hessfig.curvature.problem import Batch
from hessfig.rng import stream
from hessfig.tasks import text
from hessfig.tasks.addition import addition_batch
from hessfig.tasks.digits import CLASSES, Pictures, split


def draw_batch(task: TaskConfig, *, width: int, dtype: DType) -> Batch:
    """Draw the batch of `task`; `width` is the output width of the Gaussian task."""
    generator = stream(task.seed, "task", task.data.value)
    if task.data == Data.gaussian:
        return _gaussian_batch(task, width, getattr(torch, dtype), generator)
    if task.data in CHOSEN:
        return CHOSEN[task.data](task, task.batch_size, generator, dtype=dtype)
    tokens = addition_batch(task.batch_size, task.digits, generator=generator, base=task.base)
    return batch_of(tokens, task, dtype=dtype)


def batch_of(tokens: Tensor, task: TaskConfig, *, dtype: DType) -> Batch:
    """Return sums, or windows of text, as a batch of `task`: scored positions, and targets that fit its loss."""
    last = task.num_tokens - 1  # it predicts nothing
    scored = slice(last - task.num_scored, last)
    return Batch(tokens, _targets(tokens, scored, task, getattr(torch, dtype)), scored)


def micro_batches(tokens: Tensor, first_scored: int, at_once: int) -> list[Batch]:
    """Return sequences, `at_once` in a batch (the last may be smaller), every next token from `first_scored` on."""
    scored = slice(first_scored, tokens.shape[1] - 1)
    pieces = tokens.split(at_once)
    return [Batch(piece, piece[:, scored.start + 1 : scored.stop + 1], scored) for piece in pieces]


def picture_batch(task: TaskConfig, size: int, generator: torch.Generator, *, dtype: DType) -> Batch:
    """Choose training pictures without replacement: a larger batch of the same seed holds the smaller one."""
    training, kind = split(task.path, task.sha256)[0], getattr(torch, dtype)
    chosen = torch.randperm(len(training), generator=generator)[:size]
    return _pictured(Pictures(training.images[chosen], training.labels[chosen]), task, kind)


def test_pictures(task: TaskConfig, *, dtype: DType) -> Batch:
    """Return all test pictures."""
    return _pictured(split(task.path, task.sha256)[1], task, getattr(torch, dtype))


def _pictured(chosen: Pictures, task: TaskConfig, kind: torch.dtype) -> Batch:
    images = torch.from_numpy(chosen.images).to(kind)
    labels = torch.from_numpy(chosen.labels).unsqueeze(1)
    targets = labels if task.loss == Loss.cross_entropy else F.one_hot(labels, CLASSES).to(kind)
    return Batch(images, targets, slice(0, 1))


def text_batch(task: TaskConfig, size: int, generator: torch.Generator, *, dtype: DType) -> Batch:
    """Draw windows of the training text, their starts uniform; a larger batch of the same seed holds the smaller."""
    ids, length = text.split(task).training, task.num_tokens
    starts = torch.randint(0, len(ids) - length + 1, (size,), generator=generator)
    return batch_of(torch.from_numpy(text.windows(ids, starts.numpy(), length)), task, dtype=dtype)


CHOSEN = {Data.digits: picture_batch, Data.text: text_batch}  # data whose examples are chosen from those there are


def _targets(tokens: Tensor, scored: slice, task: TaskConfig, dtype: torch.dtype) -> Tensor:
    following = tokens[:, scored.start + 1 : scored.stop + 1]
    if task.loss == Loss.cross_entropy:
        return following
    # NOTE(paper): the published code compares logits[11..16] with the tokens at the same positions.
    labels = tokens[:, scored] if task.loss == Loss.mse_sum_unshifted else following
    return F.one_hot(labels, task.vocabulary).to(dtype)


def _gaussian_batch(task: TaskConfig, width: int, dtype: torch.dtype, generator: torch.Generator) -> Batch:
    """Draw tokens sqrt(1 - rho) own + sqrt(rho) shared, of variance one and correlation rho, and N(0, 1) targets."""
    shape = (task.batch_size, task.num_tokens, width)
    inputs, targets = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    if rho := task.correlation:
        shared = torch.randn((shape[0], 1, width), dtype=torch.float64, generator=generator)
        inputs = (1 - rho) ** 0.5 * inputs + rho**0.5 * shared
    return Batch(inputs.to(dtype), targets.to(dtype), slice(0, shape[1]))


def loss_module(task: TaskConfig) -> nn.Module:
    """Return the module for the configured loss, without its weight decay, which no output tells."""
    if task.loss == Loss.cross_entropy:
        return CrossEntropy(task.label_smoothing)
    return SquaredError("sum" if task.loss == Loss.mse_sum_unshifted else "mean")
