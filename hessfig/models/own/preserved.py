"""Restores a user's network, loss or loader after a run: tensors, attributes, closures and random generators."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hessfig.models.identity import is_library, names_in
from hessfig.rng import is_row_major, kept_draws, row_major

_CONTAINERS = (dict, list, set, deque)
# What most of the things that are reached are; for these, the first question is enough.
_NUMBERS_AND_WORDS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_ARRAYS = (Tensor, numpy.ndarray)
# Methods that code runs without their name.
_CALLED = ("__init__", "__call__", "forward")


@contextmanager
def preserved(*things: Any, numbers: bool = True) -> Iterator[None]:
    """Restore networks, losses, everything that their code can reach, and all random generators.

    The contents of attributes and containers are restored, and the bytes of buffers;
    with `numbers`, those of all tensors and arrays. Files and objects of libraries that
    the code modifies are not restored.
    """
    state = _State(things, numbers=numbers)
    with kept_draws():
        try:
            yield
        finally:
            state.restore()


def reached_by(*things: Any) -> list[Any]:
    """Return what the code of functions and modules can reach, themselves included."""
    return _State(things, numbers=False).things


def methods_of(function: Any, holder: Any) -> list[FunctionType]:
    """Return the methods of an object that a function calls if the object is its argument."""
    found = _State((), numbers=False)._looked_up(holder, _names_of(function), set())
    return [one for one in found if isinstance(one, FunctionType)]


@contextmanager
def preserved_loader(loader: Any) -> Iterator[None]:
    """Restore the global generators after one pass over a loader, and generators and workers of a DataLoader."""
    if not isinstance(loader, DataLoader):
        with kept_draws():
            yield
        return
    found = [getattr(one, "generator", None) for one in (loader, loader.sampler)]
    with preserved(*found), ExitStack() as restored:
        # A loop that runs would end where this pass ends.
        restored.callback(setattr, loader, "_iterator", loader._iterator)
        loader._iterator = None
        yield


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Set every module of a network to evaluation mode within the context.

    Flags are set and restored one by one, because `eval()` may change weights (adapters
    that merge).
    """
    with ExitStack() as restored:
        for module in network.modules():
            restored.callback(setattr, module, "training", module.training)
            module.training = False
        yield


@contextmanager
def laid_out(network: nn.Module) -> Iterator[None]:
    """Store parameters and buffers in row-major order, which batch norms of torch require in their backward pass."""
    with ExitStack() as restored:
        for tensor in (*network.parameters(), *network.buffers()):
            if not is_row_major(tensor):
                restored.callback(setattr, tensor, "data", tensor.data)
                tensor.data = row_major(tensor.data)
        yield


@contextmanager
def requiring_gradients(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Make parameters require gradients and remove their hooks, which are not part of the function."""
    with ExitStack() as restored:
        for leaf in parameters:
            restored.callback(leaf.requires_grad_, leaf.requires_grad)
            hooks = leaf._backward_hooks or {}
            restored.callback(hooks.update, dict(hooks))
            hooks.clear()
            leaf.requires_grad_()
        yield


class _State:
    """State to restore: one function per object, called in reverse order.

    Objects are followed through `deepest` others; every module counts anew, since
    networks may be nested more deeply. For a container with more entries than `longest`
    (a data set), the entries are recorded but not their contents.
    """

    deepest, longest = 12, 10_000

    def __init__(self, things: Iterable[Any], *, numbers: bool) -> None:
        self._seen = set[int]()
        self._undo = list[Callable[[], object]]()
        self.things = list[Any]()
        self._numbers = numbers
        for thing in things:
            self.add(thing)

    def add(self, thing: Any, depth: int = 0) -> None:
        """Record the state of an object and of its contents; a number or a word has none."""
        if type(thing) in _NUMBERS_AND_WORDS:
            return
        if id(thing) in self._seen or depth > self.deepest:
            return
        self._seen.add(id(thing))
        self.things.append(thing)  # its id stays its own
        for part in self._parts(thing):
            self.add(part, 0 if isinstance(part, nn.Module) else depth + 1)

    def restore(self) -> None:
        """Restore everything."""
        with torch.no_grad():
            for undo in reversed(self._undo):
                undo()

    def _parts(self, thing: Any) -> Iterable[Any]:
        if isinstance(thing, _CONTAINERS):
            return self._of_container(thing)
        generator = _generator_of(thing)
        if generator is not None:
            self._undo.append(generator)
            return ()
        if isinstance(thing, _ARRAYS):
            if self._numbers and _is_writable(thing):
                self._undo.append(_numbers_of(thing))
            return ()
        if isinstance(thing, FunctionType):
            return self._of_function(thing)
        if isinstance(thing, MethodType):
            found = self._looked_up(thing.__self__, _names_of(thing.__func__), set())
            return thing.__func__, thing.__self__, *found
        if isinstance(thing, partial):
            return thing.func, *thing.args, *thing.keywords.values()
        if isinstance(thing, CellType):
            return self._of_cell(thing)
        if isinstance(thing, tuple):
            if len(thing) <= self.longest:
                return thing
            return ()
        if isinstance(thing, nn.Module) and not self._numbers:
            self._undo += [
                _numbers_of(one)
                for one in thing._buffers.values()
                if one is not None and _is_dense(one)
            ]
        if _is_open(thing):
            return self._of_container(vars(thing))
        return ()

    def _of_function(self, function: FunctionType) -> list[Any]:
        if is_library(function.__module__):
            return []
        known = function.__globals__
        names = _names_of(function)
        shared = {name: known[name] for name in names if name in known}
        self._undo.append(partial(known.update, shared))
        cells = [one for one in function.__closure__ or () if _is_filled(one)]
        imported = [
            sys.modules[name]
            for name in names
            if name in sys.modules and name not in known
        ]
        holders = [
            *(one.cell_contents for one in cells),
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
            *shared.values(),
        ]
        seen = set[int]()
        found = [
            one
            for holder in (*holders, *imported)
            for one in self._looked_up(holder, names, seen)
        ]
        return [*cells, *holders, *found]

    def _looked_up(
        self, holder: Any, names: Iterable[str], seen: set[int]
    ) -> Iterator[Any]:
        """Yield what code that looks up these names finds in a module or class of the user, or in an object of one.

        What methods look up in their turn is found, too. The contents of an object are
        left to `_of_container`.
        """
        if id(holder) in seen:
            return
        seen.add(id(holder))
        space = dict[str, Any]()
        for names_here in reversed([*_namespaces(holder)]):
            space.update(names_here)
        if not space:
            return
        is_module = isinstance(holder, ModuleType)
        wanted = dict.fromkeys(names if is_module else (*names, *_CALLED))
        found = dict[str, Any]()
        while new := {
            name: space[name] for name in wanted if name in space and name not in found
        }:
            found |= new
            functions = [one for value in new.values() for one in _functions_of(value)]
            yield from functions
            if not is_module:
                wanted |= dict.fromkeys(chain.from_iterable(map(_names_of, functions)))
        for owner in _owners(holder):
            attributes = {k: vars(owner)[k] for k in found if k in vars(owner)}
            self._undo.append(partial(_put_attributes, owner, attributes))
        for value in found.values():
            yield value
            yield from self._looked_up(value, wanted, seen)

    def _of_cell(self, cell: CellType) -> list[Any]:
        if not _is_filled(cell):
            return []
        content = cell.cell_contents
        self._undo.append(partial(setattr, cell, "cell_contents", content))
        return [content]

    def _of_container(self, thing: Any) -> list[Any]:
        copy = dict(thing) if isinstance(thing, dict) else list(thing)
        self._undo.append(partial(_refill, thing, copy))
        entries = list(copy.values()) if isinstance(copy, dict) else copy
        if len(entries) <= self.longest:
            return entries
        return []


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names_of(function: Any) -> list[str]:
    """Return the names that a function of the user looks up."""
    is_own = isinstance(function, FunctionType) and not is_library(function.__module__)
    if is_own:
        return list(names_in(function.__code__))
    return []


def _functions_of(value: Any) -> list[FunctionType]:
    """Return the functions of an attribute of a class: a method of any kind, or a property."""
    inner = [getattr(value, name, None) for name in ("__func__", "fget", "func")]
    return [one for one in (value, *inner) if isinstance(one, FunctionType)]


def _owners(holder: Any) -> list[Any]:
    """Return a module of the user, or a class and its bases, without those of libraries; of an object, its class's."""
    if isinstance(holder, ModuleType):
        if is_library(holder.__name__):
            return []
        return [holder]
    kind = holder if isinstance(holder, type) else type(holder)
    return [one for one in kind.__mro__ if not is_library(one.__module__)]


def _namespaces(holder: Any) -> Iterator[Any]:
    """Yield where the attributes of a module, class or object of the user are found; none for those of libraries."""
    if not isinstance(holder, ModuleType | type) and _is_open(holder):
        yield vars(holder)
        yield getattr(holder, "_modules", {})
    yield from map(vars, _owners(holder))


def _put_attributes(holder: Any, values: Mapping[str, Any]) -> None:
    """Restore attributes of a module or class, if they differ."""
    for name, value in values.items():
        if vars(holder).get(name) is not value:
            setattr(holder, name, value)


def _is_open(thing: Any) -> bool:
    """Whether the attributes of an object are restored."""
    if isinstance(thing, nn.Module | SimpleNamespace):
        return True
    is_object = hasattr(thing, "__dict__") and not isinstance(thing, type)
    return is_object and not is_library(type(thing).__module__)


def _generator_of(thing: Any) -> Callable[[], object] | None:
    """Return a function that resets a random generator to its present state; None for other objects."""
    state: Any
    if isinstance(thing, torch.Generator | numpy.random.RandomState):
        state = thing.get_state()
        return partial(thing.set_state, state)
    if isinstance(thing, random.Random):
        return partial(thing.setstate, thing.getstate())
    if isinstance(thing, numpy.random.Generator):
        return partial(setattr, thing.bit_generator, "state", thing.bit_generator.state)
    return None


def _numbers_of(thing: Tensor | NDArray[Any]) -> Callable[[], object]:
    """Return a function that resets a tensor or an array to its present numbers."""
    if isinstance(thing, Tensor):
        return partial(_put_back, thing, thing.data, thing.detach().clone())
    return partial(numpy.copyto, thing, thing.copy())


def _refill(thing: Any, copy: Any) -> None:
    """Restore the contents of a container, if they differ."""
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
    """Whether a container holds the same objects as before."""
    if not thing and not copy:  # as most dictionaries of a module
        return True
    if len(thing) != len(copy) or not all(map(is_, thing, copy)):
        return False
    if isinstance(thing, dict):
        return all(map(is_, thing.values(), copy.values()))
    return True


def _put_back(tensor: Tensor, own: Tensor, copy: Tensor) -> None:
    """Restore the memory and the numbers of a tensor, if they differ, without a new version for autograd graphs."""
    if tensor.dtype != own.dtype or tensor.data_ptr() != own.data_ptr():
        tensor.data = own
    if not torch.equal(_bits(tensor), _bits(copy)):
        tensor.data.copy_(copy)


def _bits(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as whole numbers: NaN equals itself, and 0.0 is not -0.0.

    Numbers of the tensor's own size are compared four to nine times faster than bytes.
    """
    flat = tensor.detach().contiguous().flatten()
    whole = _OF_SIZE.get(flat.element_size(), torch.uint8)
    return flat.view(whole)


_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _is_writable(numbers: Tensor | NDArray[Any]) -> bool:
    if isinstance(numbers, Tensor):
        return _is_dense(numbers)
    return numbers.flags.writeable


def _is_dense(tensor: Tensor) -> bool:
    is_strided = tensor.layout == torch.strided and not (
        tensor.is_nested or tensor.is_quantized
    )
    return is_strided and not (tensor.is_meta or tensor.is_inference())
