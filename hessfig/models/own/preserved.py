"""Puts a user's network and loss back as they were after a run: tensors, attributes, closures, random generators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hessfig.models.identity import is_library, names_in
from hessfig.rng import is_row_major, kept_draws, lay_out

_CONTAINERS = (dict, list, set, deque)
_DEEPEST = 12  # containers inside of containers that are looked into
_LONGEST = (
    10_000  # entries of a container that are looked into; of a longer one (a data set) the entries are kept alone
)


@contextmanager
def preserved(*things: Any, numbers: bool = True) -> Iterator[None]:
    """Put networks, losses and whatever their code can reach back as they were, and every random generator.

    Attributes and containers are put back by what they hold and, with `numbers`, tensors and arrays by their bytes.
    What code writes elsewhere (files, objects of libraries) stays written.
    """
    state = _State(numbers=numbers)
    for thing in things:
        state.add(thing)
    with kept_draws():
        try:
            yield
        finally:
            state.restore()


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Have every module of a network in evaluation mode.

    The flags are set and put back one by one: `eval()` of a module may change its weights (adapters that merge).
    """
    modes = [(module, module.training) for module in network.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def laid_out(network: nn.Module) -> Iterator[None]:
    """Have parameters and buffers in row-major order: torch's batch norms misread others in their backward pass."""
    held = [(one, one.data) for one in (*network.parameters(), *network.buffers()) if not is_row_major(one)]
    try:
        lay_out(network)
        yield
    finally:
        for one, data in held:
            one.data = data


@contextmanager
def requiring_gradients(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Have parameters require gradients and no hook of theirs change them: hooks are no part of a function."""
    held = list(parameters)
    flags, hooks = [one.requires_grad for one in held], [_taken(one._backward_hooks) for one in held]
    try:
        for one in held:
            one.requires_grad_()
        yield
    finally:
        for one, flag, own in zip(held, flags, hooks, strict=True):
            one.requires_grad_(flag)
            (one._backward_hooks or {}).update(own)


def _taken(hooks: dict[Any, Any] | None) -> dict[Any, Any]:
    """Return the hooks of a tensor, and leave it none."""
    own = dict(hooks or {})
    if hooks:
        hooks.clear()
    return own


class _State:
    """What is put back: one function for each thing, called in reverse order."""

    def __init__(self, *, numbers: bool) -> None:
        self._seen, self._undo, self._kept = set[int](), list[Callable[[], object]](), list[Any]()
        self._numbers = numbers

    def add(self, thing: Any, depth: int = 0) -> None:
        """Note the state of a thing and of what it holds."""
        if id(thing) in self._seen or depth > _DEEPEST:
            return
        self._seen.add(id(thing))
        self._kept.append(thing)  # its id stays its own
        for part in self._parts(thing):
            self.add(part, depth + 1)

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for undo in reversed(self._undo):
                undo()

    def _parts(self, thing: Any) -> Iterable[Any]:
        if isinstance(thing, Tensor | numpy.ndarray):
            return self._of_numbers(thing)
        if isinstance(thing, FunctionType):
            return self._of_function(thing)
        if isinstance(thing, MethodType):
            return thing.__func__, thing.__self__
        if isinstance(thing, partial):
            return thing.func, *thing.args, *thing.keywords.values()
        if isinstance(thing, CellType):
            return self._of_cell(thing)
        if isinstance(thing, tuple):
            return thing
        if isinstance(thing, _CONTAINERS):
            return self._of_container(thing)
        if isinstance(thing, nn.Module | SimpleNamespace) or (hasattr(thing, "__dict__") and _is_own_object(thing)):
            return self._of_container(vars(thing))
        return ()

    def _of_numbers(self, thing: Tensor | NDArray[Any]) -> tuple[()]:
        if self._numbers and isinstance(thing, numpy.ndarray):
            self._undo.append(partial(numpy.copyto, thing, thing.copy()))
        elif self._numbers and isinstance(thing, Tensor) and _is_dense(thing):
            self._undo.append(partial(_put_back, thing, thing.detach().clone()))
        return ()

    def _of_function(self, function: FunctionType) -> list[Any]:
        if is_library(function.__module__):
            return []
        known = function.__globals__
        shared = {name: known[name] for name in names_in(function.__code__) if name in known}
        self._undo.append(partial(known.update, shared))
        return [*(function.__closure__ or ()), *(function.__defaults__ or ()), *shared.values()]

    def _of_cell(self, cell: CellType) -> list[Any]:
        try:
            held = cell.cell_contents
        except ValueError:  # nothing is bound to it yet
            return []
        self._undo.append(partial(setattr, cell, "cell_contents", held))
        return [held]

    def _of_container(self, thing: Any) -> list[Any]:
        copy = type(thing)(thing) if type(thing) in (dict, list, set) else _plain_copy(thing)
        self._undo.append(partial(_refill, thing, copy))
        held = list(copy.values()) if isinstance(copy, Mapping) else list(copy)
        return held if len(held) <= _LONGEST else []


def _plain_copy(thing: Any) -> Any:
    """Return what a container of a derived type holds."""
    return dict(thing) if isinstance(thing, Mapping) else list(thing)


def _refill(thing: Any, copy: Any) -> None:
    """Give a container what it held, where it holds something else."""
    if _is_alike(thing, copy):
        return
    if isinstance(thing, dict):
        for key in [key for key in thing if key not in copy]:
            del thing[key]
        thing.update(copy)
    else:
        thing.clear()
        (thing.update if isinstance(thing, set) else thing.extend)(copy)


def _is_alike(thing: Any, copy: Any) -> bool:
    """Whether a container holds the very objects that it held."""
    if len(thing) != len(copy):
        return False
    if isinstance(thing, dict):
        pairs = zip(thing.items(), copy.items(), strict=True)
        return all(mine is own and value is other for (mine, value), (own, other) in pairs)
    return all(mine is own for mine, own in zip(thing, copy, strict=True))


def _put_back(tensor: Tensor, copy: Tensor) -> None:
    """Give a tensor its numbers back, where they are others; a graph that holds it does not see this."""
    if not torch.equal(_bytes(tensor), _bytes(copy)):
        tensor.data.copy_(copy)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _is_dense(tensor: Tensor) -> bool:
    is_strided = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)
    return is_strided and not (tensor.is_meta or tensor.is_inference())


def _is_own_object(thing: Any) -> bool:
    """Whether an object is of a class of the user's own; classes, modules of Python and tensors have no state here."""
    return not isinstance(thing, type | Tensor) and not is_library(type(thing).__module__)
