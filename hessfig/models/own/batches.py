"""Batches of users, read from tensors, dictionaries, pairs and loaders, and stored as copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from hessfig.config.machine import memory
from hessfig.curvature.problem import Batch
from hessfig.errors import UserError, plain
from hessfig.models.own.any_batch import LABELS, Given
from hessfig.models.own.own_checks import check_tensor, oddity, shape_of
from hessfig.models.own.preserved import preserved_loader
from hessfig.rng import row_major

# Limits: the number of batches, and their bytes as 1 / SHARE of the memory.
MOST_BATCHES, SHARE = (100_000, 4)
# Types that are a batch, or a list of batches.
_BATCHES = (Tensor, Mapping, str, bytes, list, tuple, nn.Module)
_ALLOWED = (
    "tensors; dictionaries with tensors by argument; (inputs, targets) pairs; "
    "lists, DataLoaders or iterables of these"
)


def keep_batches(
    given: Any, what: str = "inputs", copied: Callable[[Any], Any] | None = None
) -> Any:
    """Return the batches of a loader or an iterable as a list of copies; return anything else unchanged.

    `copied` copies a batch, by default as `copy_batch` does.

    Batches are kept because a second pass over a loader that shuffles gives another
    loss. The state of the global generators, and of the generator of a DataLoader, is
    restored; anything else that a pass changes stays changed. Raises UserError for more
    than MOST_BATCHES batches, or more bytes than a quarter of the memory, because a
    stream may be infinite.
    """
    if isinstance(given, Dataset) and hasattr(given, "__len__") and copied is None:
        # Samples, which make one batch.
        given = DataLoader(given, batch_size=len(given))
    if (
        isinstance(given, _BATCHES)
        or not isinstance(given, Iterable)
        or hasattr(given, "__array__")
    ):
        return given
    batches = list[Any]()
    size = 0
    most = memory() // SHARE
    with torch.inference_mode(False), preserved_loader(given):
        for batch in given:
            batches.append((copied or copy_batch)(batch))
            size += _bytes(batches[-1])
            if len(batches) > MOST_BATCHES or size > most:
                raise UserError(
                    f"{what}: the batches do not end, or do not fit into memory",
                    got=f"{len(batches)} batches of {size / 2**30:.2g} GiB, and there are more",
                    allowed=f"at most {MOST_BATCHES} batches, and {most / 2**30:.2g} GiB (a quarter of the memory), "
                    "read once",
                    remedy="list(itertools.islice(loader, 20)) in place of loader: its first 20 batches",
                )
    return batches


def check_targets(targets: Any) -> None:
    """Raise UserError for a function or a module in the place of targets."""
    if callable(targets):
        raise UserError(
            "targets: a function stands in the place of the targets",
            got=shape_of(targets),
            allowed="tensors, or None if the batches contain them",
            remedy="hessfig.Problem(network, batches, loss=f) for a loss f(outputs, targets), or "
            "hessfig.Problem(network, batches, compute_loss=f) for a function f(network, batch)",
        )


def as_tensors(batch: Any, image: Callable[[Tensor], Tensor] = lambda one: one) -> Any:
    """Return a batch with the image of every tensor and array of NumPy, in tuples, lists and mappings, too.

    Mappings of other libraries become dictionaries.

    Examples
    --------
    >>> import numpy
    >>> from hessfig.models.own.batches import as_tensors
    >>> as_tensors(({"x": numpy.ones(2)}, "word"))
    ({'x': tensor([1., 1.], dtype=torch.float64)}, 'word')
    """
    if isinstance(batch, numpy.ndarray) and batch.dtype.kind in "biuf":
        batch = torch.from_numpy(batch)
    if isinstance(batch, Tensor):
        return image(batch)
    if isinstance(batch, Mapping):
        return {name: as_tensors(one, image) for name, one in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(as_tensors(one, image) for one in batch))
    if type(batch) in (list, tuple):
        return type(batch)(as_tensors(one, image) for one in batch)
    return batch


def copy_batch(batch: Any) -> Any:
    """Return a copy of a batch, so that later changes to the tensors of the caller do not affect measurements."""
    return as_tensors(batch, lambda tensor: tensor.detach().clone())


def _bytes(batch: Any) -> int:
    return sum(one.nbytes for one in tree_leaves(batch) if isinstance(one, Tensor))


def is_plain(inputs: Any, targets: Any) -> bool:
    """Whether inputs and targets are tensors or lists of tensors, or of a type unknown to this module."""
    if targets is None or isinstance(targets, str) or isinstance(inputs, Mapping):
        return False
    if isinstance(inputs, tuple) and isinstance(targets, Tensor):
        return len(inputs) == 1
    listed = isinstance(inputs, list) and any(
        isinstance(one, tuple | Mapping) for one in inputs
    )
    return not listed


def read_batches(inputs: Any, targets: Any, real: torch.dtype) -> list[Given]:
    """Return the batches in the form that the network takes, with floating-point tensors of type `real`.

    `targets` may be None (targets are the second entry of a pair, or the entry `labels`
    of a dictionary), the name of an entry, a tensor, or a list with one tensor per
    batch. Raises UserError for anything else.
    """
    pairs = list(_paired(inputs, targets))
    if not pairs:
        raise _unknown("no batch was given", inputs, targets)
    batches = []
    for pair in pairs:
        batch = _given(*pair, inputs, targets)
        for name, tensor in batch.tensors:
            if oddity(tensor):
                check_tensor(name, tensor)
        whole = replace(batch, targets=_labels(batch.targets))
        batches.append(whole.mapped(partial(_typed, real=real)))
    return batches


def _paired(inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, targets) of every batch."""
    named = targets is None or isinstance(targets, str)
    is_tuple = isinstance(inputs, tuple)
    is_pair = is_tuple and named and len(inputs) == 2
    if isinstance(inputs, Mapping | Tensor) or (
        is_tuple and isinstance(targets, Tensor)
    ):
        yield inputs, targets
    elif is_pair and not isinstance(inputs[0], Mapping | list):
        yield inputs
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes):
        every = list(keep_batches(inputs))
        goals = [targets] * len(every)
        if not named:
            goals = list(keep_batches(targets, "targets"))
        if len(goals) != len(every):
            raise _unknown(
                f"{len(every)} batches and {len(goals)} targets", inputs, targets
            )
        for batch, goal in zip(every, goals, strict=True):
            is_pair = named and isinstance(batch, tuple | list) and len(batch) == 2
            yield tuple(batch) if is_pair else (batch, goal)
    else:
        raise _unknown("inputs and targets are of another kind", inputs, targets)


def _given(batch: Any, goal: Any, inputs: Any, targets: Any) -> Given:
    words: dict[str, Any] = dict(batch) if isinstance(batch, Mapping) else {}
    arguments: tuple[Any, ...] = () if words else (batch,)
    if isinstance(batch, tuple | list):
        arguments = tuple(batch)
    labelled = goal is None or (isinstance(goal, str) and goal == LABELS)
    if goal is None or isinstance(goal, str):
        key = goal or LABELS
        if key not in words:
            raise _unknown(
                f"the batch has no entry {plain(key)!r}, and no targets are given",
                inputs,
                targets,
            )
        goal = words.pop(key)
    sizes = [
        len(thing)
        for thing in (*arguments, *words.values())
        if isinstance(thing, Tensor) and thing.ndim
    ]
    if not sizes or not sizes[0] or not isinstance(goal, Tensor):
        raise _unknown(
            "a batch without a tensor whose first axis runs over samples",
            inputs,
            targets,
        )
    # Targets determine the size, if any argument has that size.
    is_told = goal.ndim > 0 and len(goal) in sizes
    return Given(arguments, words, goal, len(goal) if is_told else sizes[0], labelled)


def _typed(tensor: Tensor, real: torch.dtype) -> Tensor:
    """Return a copy of a tensor in row-major order; floating-point tensors are cast to type `real`."""
    dtype = real if tensor.is_floating_point() else tensor.dtype
    return row_major(tensor.detach().to(dtype, copy=True))


def _labels(targets: Tensor) -> Tensor:
    """Return targets with class numbers of type int64, which torch requires."""
    if targets.dtype in (torch.int8, torch.int16, torch.int32):
        return targets.long()
    return targets


def _unknown(what: str, inputs: Any, targets: Any) -> UserError:
    return UserError(
        f"the batch cannot be read: {what}",
        got=f"{shape_of(inputs)} and {shape_of(targets)}",
        allowed=_ALLOWED,
        remedy="hessfig.Problem(network, inputs, targets), or targets='NAME' of an entry of a dictionary",
    )


def tensor_batches(inputs: Any, targets: Any, real: torch.dtype) -> list[Batch]:
    """Return the batches of a network that takes one tensor. Raises UserError for inputs that are not tensors."""
    xs, ys = (
        list(side) if isinstance(side, list | tuple) else [side]
        for side in (inputs, targets)
    )
    are_tensors = all(isinstance(one, Tensor) for one in (*xs, *ys))
    if len(xs) != len(ys) or not xs or not are_tensors:
        raise UserError(
            "inputs and targets are not tensors, or lists of as many tensors",
            got=f"{shape_of(inputs)} and {shape_of(targets)}",
            allowed="tensors whose first axis runs over samples",
            remedy="torch.as_tensor(array); wrap networks of other inputs in a module that takes one tensor",
        )
    for name, side in (("inputs", xs), ("targets", ys)):
        for tensor in side:
            check_tensor(name, tensor)
    # for layered networks every position is scored; other networks return only scored
    # outputs
    batches = []
    for x, y in zip(xs, ys, strict=True):
        scored = slice(0, x.shape[1]) if x.ndim > 1 else slice(None)
        batches.append(Batch(_typed(x, real), _typed(_labels(y), real), scored))
    return batches
