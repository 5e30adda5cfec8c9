"""The batches of a loader or an iterable, read once and kept; what they were read from stays as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hessfig.config.machine import memory
from hessfig.errors import UserError
from hessfig.rng import kept_draws

MOST_BATCHES, SHARE = 100_000, 4  # batches, and bytes as a share of the memory: one part in four
_LONGEST, _MOST_PARTS = 64, 10_000  # entries of a list that is looked into, and parts of a loader
_BATCHES = (Tensor, Mapping, str, bytes, list, tuple, nn.Module)  # what is a batch itself, or a list of them
_CLOSED = (*_BATCHES[:4], nn.Module, ModuleType, type, Iterator)
Restore = Callable[[], object]


def kept(given: Any, what: str = "inputs") -> Any:
    """Return the batches of a loader or an iterable as a list of copies; anything else as it is.

    A second pass over a loader that shuffles gives another loss. The global generators, and those that the loader, its
    samplers or its data hold, are as before the pass. Raises UserError for more than MOST_BATCHES batches, or more
    bytes than a quarter of the memory: a stream may have no end.
    """
    if isinstance(given, _BATCHES) or not isinstance(given, Iterable) or hasattr(given, "__array__"):
        return given
    found, size, most = list[Any](), 0, memory() // SHARE
    with torch.inference_mode(False), kept_draws(), _unchanged(given):
        for one in given:
            found.append(held(one))
            size += _bytes(found[-1])
            if len(found) > MOST_BATCHES or size > most:
                raise _too_many(what, len(found), size, most)
    return found


def held(batch: Any) -> Any:
    """Return a batch with tensors of its own: what is done to those of the caller later changes no measurement."""
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    if isinstance(batch, Mapping):
        return {name: held(one) for name, one in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(held, batch))
    return type(batch)(map(held, batch)) if type(batch) in (list, tuple) else batch


def _bytes(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return batch.numel() * batch.element_size()
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return sum(map(_bytes, parts))


def _too_many(what: str, count: int, size: int, most: int) -> UserError:
    return UserError(
        f"{what}: the batches have no end, or are more than can be kept",
        got=f"{count} batches of {size / 2**30:.2g} GiB, and there are more",
        allowed=f"at most {MOST_BATCHES} batches, and {most / 2**30:.2g} GiB (a quarter of the memory), read once",
        remedy="list(itertools.islice(loader, 20)) in place of loader: its first 20 batches",
    )


@contextmanager
def _unchanged(loader: Any) -> Iterator[None]:
    """Put back what one pass changes in a loader: attributes, lists, orders and generators of all its parts."""
    undo = [one for part in _parts(loader) for one in _restored(part)]
    if isinstance(loader, DataLoader):
        vars(loader)["_iterator"] = None  # its own workers would go on where this pass ends
    try:
        yield
    finally:
        for one in undo:
            one()


def _parts(loader: Any) -> Iterator[Any]:
    """Yield a loader and what it is made of, each once: by attributes, short lists, closures and bound arguments."""
    waiting, seen = [loader], dict[int, Any]()
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop()
        if id(part) not in seen:
            seen[id(part)] = part
            yield part
            waiting += _inside(part)


def _inside(part: Any) -> list[Any]:
    if isinstance(part, _CLOSED) and not isinstance(part, dict):
        return []
    if isinstance(part, dict):
        return list(part.values()) if len(part) <= _LONGEST else []
    if isinstance(part, list | tuple):
        return list(part) if len(part) <= _LONGEST else []
    if isinstance(part, MethodType | BuiltinMethodType):
        return [part.__self__]
    if isinstance(part, partial):
        return [part.func, part.args, part.keywords]
    cells = (part.__closure__ or ()) if isinstance(part, FunctionType) else ()
    return [*getattr(part, "__dict__", {}).values(), *(one.cell_contents for one in cells if _is_full(one))]


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _restored(part: Any) -> Iterator[Restore]:
    """Yield what puts a part back into the state in which it is now."""
    if isinstance(part, torch.Generator):
        yield partial(part.set_state, part.get_state())
    elif isinstance(part, random.Random):
        yield partial(part.setstate, part.getstate())
    elif isinstance(part, numpy.random.RandomState):
        yield partial(part.set_state, part.get_state())
    elif isinstance(part, numpy.random.Generator):
        yield partial(setattr, part.bit_generator, "state", part.bit_generator.state)
    elif isinstance(part, Tensor | numpy.ndarray) and _is_order(part):
        yield partial(_put_back, part, part.copy() if isinstance(part, numpy.ndarray) else part.clone())
    elif isinstance(part, list):
        yield partial(part.__setitem__, slice(None), part.copy())
    elif isinstance(part, dict):
        yield partial(_refill, part, part.copy())
    elif not isinstance(part, _CLOSED) and isinstance(getattr(part, "__dict__", None), dict):
        yield partial(_refill, vars(part), vars(part).copy())


def _is_order(numbers: Any) -> bool:
    """Whether numbers may be the order of samples, which some loaders shuffle in place."""
    is_whole = numbers.dtype.kind in "iu" if isinstance(numbers, numpy.ndarray) else numbers.dtype == torch.int64
    return numbers.ndim == 1 and is_whole


def _put_back(numbers: Any, before: Any) -> None:
    if (numbers != before).any():
        numbers[:] = before


def _refill(attributes: dict[Any, Any], before: dict[Any, Any]) -> None:
    if attributes.keys() != before.keys() or any(attributes[name] is not one for name, one in before.items()):
        attributes.clear()
        attributes.update(before)
