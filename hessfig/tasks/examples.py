"""Examples for training and tests of networks, each from its own random stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from hessfig.config.enums import Data, DType, TrainingData
from hessfig.config.science import TaskConfig
from hessfig.curvature.problem import Batch
from hessfig.rng import stream
from hessfig.tasks import text
from hessfig.tasks.addition import LONG, has_cascade, sequences, with_cascades
from hessfig.tasks.batch import CHOSEN, batch_of, draw_batch, test_pictures

if TYPE_CHECKING:
    from hessfig.config.schema import Config

AT_ONCE = 4096  # number of sums that are searched for cascades at once


def training_batch(
    config: Config, *, seed: int, step: int, name: str = "training"
) -> Batch:
    """Return the batch of update `step` (from 1) of the training of `seed`, without drawing those before it.

    It consists of fresh sums, a share of them with cascades (or of training pictures,
    chosen anew without replacement, or of windows of the training text). With a fixed
    set, the task's own batch, it is a new part of the set at every step, or all of it
    if training.batch_size is no smaller. `name` distinguishes streams; trainings use
    "training".
    """
    task, training = config.task, config.training
    generator = stream(seed, name, task.data.value, step)
    if is_full_batch(config):
        return _whole(config)
    if training.data == TrainingData.fixed:
        whole = _whole(config)
        return whole.samples(
            torch.randperm(len(whole.inputs), generator=generator)[
                : training.batch_size
            ]
        )
    if task.data in CHOSEN:
        return CHOSEN[task.data](
            task, training.batch_size, generator, dtype=training.dtype
        )
    x, y = _operands(training.batch_size, task, generator)
    x, y = with_cascades(x, y, training.cascades, generator=generator, base=task.base)
    return batch_of(sequences(x, y, task.base), task, dtype=training.dtype)


def is_full_batch(config: Config) -> bool:
    """Whether every update uses all examples of a fixed set."""
    training, size = config.training, config.task.batch_size
    whole = training.optimiser.facts.is_full_batch or training.batch_size >= size
    return whole and training.data == TrainingData.fixed


def unseen_batch(task: TaskConfig, size: int, dtype: DType) -> Batch:
    """Return the examples of tests: held-out sums, the test pictures, or windows of held-out text.

    There are `size` examples, or all test pictures.
    """
    if task.data == Data.digits:
        return test_pictures(task, dtype=dtype)
    if task.data == Data.text:
        tokens = torch.from_numpy(text.held_out(task, size))
    else:
        tokens = unseen_sums(task, size)
    return batch_of(tokens, task, dtype=dtype)


def has_cascades(task: TaskConfig) -> bool:
    """Whether the task has examples with cascades of carries: sums with enough digits."""
    return task.data == Data.addition and task.digits >= LONG


def cascade_batch(task: TaskConfig, size: int, dtype: DType) -> Batch:
    """Return `unseen_cascades` as a batch of `task`."""
    return batch_of(unseen_cascades(task, size), task, dtype=dtype)


def unseen_sums(task: TaskConfig, size: int) -> Int[Tensor, "size length"]:
    """Return uniform sums from a stream that neither trainings nor measuring batches use."""
    return sequences(
        *_operands(size, task, stream(task.seed, "unseen", task.data.value)), task.base
    )


def unseen_cascades(task: TaskConfig, size: int) -> Int[Tensor, "size length"]:
    """Return uniform sums with a cascade of carries (see has_cascade) from their own stream."""
    generator = stream(task.seed, "unseen cascades", task.data.value)
    pieces: list[Tensor] = []
    while sum(map(len, pieces)) < size:
        x, y = _operands(AT_ONCE, task, generator)
        kept = has_cascade(x, y, base=task.base)
        pieces.append(sequences(x[kept], y[kept], task.base))
    return torch.cat(pieces)[:size]


def _operands(
    size: int, task: TaskConfig, generator: Generator
) -> tuple[Tensor, Tensor]:
    x, y = torch.randint(0, task.base, (2, size, task.digits), generator=generator)
    return x, y


def _whole(config: Config) -> Batch:
    return draw_batch(
        config.task, width=config.model.d_model, dtype=config.training.dtype
    )
