"""Hashes of networks, losses and callables by content, as far as Python shows it: types, attributes, tensors, code."""

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from hessfig.curvature.problem import Objective, named_tensors

# Lent to it.
LIBRARIES = {
    Path(folder).resolve()
    for folder in [
        *(
            path
            for key, path in sysconfig.get_paths().items()
            if key.endswith(("lib", "stdlib"))
        ),
        *(
            path
            for path in sys.path
            if Path(path).name in ("site-packages", "dist-packages")
        ),
    ]
}
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    slice,
    range,
)
_OF_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_DEEPEST = 60  # maximal depth of nested objects
# Or hashed separately.
_OF_NO_OUTPUT = {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_is_full_backward_hook",
}


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return type, shape and numbers of a dense tensor as bytes."""
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return (
        f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
        + plain.view(torch.uint8).numpy().tobytes()
    )


def identity(*things: Any, without: Iterable[Tensor] = ()) -> str:
    """Return a hash of objects by content; for tensors in `without`, their presence counts but not their numbers.

    Code is hashed by instructions, constants, defaults, closures and the globals that
    it uses; code of libraries is hashed by name. Objects that Python does not show
    (compiled code, files, generators) are hashed by type.
    """
    walk = _Walk({id(tensor): "a tensor of its own" for tensor in without})
    for thing in things:
        walk.take(thing)
    return walk.hash.hexdigest()


def identities(network: nn.Module, **things: Any) -> dict[str, str]:
    """Return a short hash of every module and buffer of a network, without parameters, and of further objects.

    Each module is hashed by itself; its submodules have their own entries.
    """
    modules = {
        f"module {path}" if path else "the network": module
        for path, module in network.named_modules()
    }
    known = {id(module): path for path, module in modules.items()}
    for one in (network, getattr(network, "run_in_place", None)):
        if one is not None:
            known |= {id(held): name for name, held in named_tensors(one).items()}
    parts = {
        path: _short(known, module, itself=True) for path, module in modules.items()
    }
    for name, held in network.named_buffers(remove_duplicate=False):
        content = hashlib.sha256(tensor_bytes(held)).hexdigest()
        parts[f"buffer {name}"] = content[:16]
    return parts | {name: _short(known, thing) for name, thing in things.items()}


def _short(known: Mapping[int, str], thing: Any, *, itself: bool = False) -> str:
    walk = _Walk(known)
    if itself:
        walk.module(thing)
    else:
        walk.take(thing)
    return walk.hash.hexdigest()[:16]


def content_of(drawn: Objective) -> str:
    """Return a hash of a network, its batches, its loss and the names of its weights, as far as Python shows them.

    The fingerprint (hessfig.models.fingerprint) identifies the function that the
    network computes.
    """
    named = drawn.network.named_parameters(remove_duplicate=False)
    parameters = ((name, tensor_bytes(one)) for name, one in named)
    parts = identities(drawn.network, **{"the loss": drawn.loss})
    return _hash(chain(parameters, parts.items(), [("data", data_content(drawn))]))


def data_content(drawn: Objective) -> str:
    """Return a hash of the batches and the names of the weights, independent of network and loss."""
    weights = (*drawn.layout.weights, "all", *drawn.layout.parameters)
    parts: list[tuple[str, Any]] = [("weight", one) for one in weights]
    for one in getattr(drawn.network, "opaque_batches", ()):
        parts.append(("batch", identity(one)))
    tensors = list[tuple[str, Tensor]]()
    for batch in drawn.batches:
        tensors += [("inputs", batch.inputs), ("targets", batch.targets)]
    for one in getattr(drawn.network, "given", ()):
        tensors += one.tensors
    return _hash([*parts, *((name, tensor_bytes(one)) for name, one in tensors)])


def _hash(parts: Iterable[tuple[str, Any]]) -> str:
    digest = hashlib.sha256()
    for label, thing in parts:
        digest.update(f"{label}\n".encode())
        digest.update(thing if isinstance(thing, bytes) else f"{thing}\n".encode())
    return digest.hexdigest()


class _Walk:
    """Hashes objects recursively, each object once; `known` maps the ids of objects to words that replace them."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self.hash = hashlib.sha256()
        self._words = dict(known)
        self._held = list[Any]()
        self._depth = 0

    def take(self, thing: Any) -> None:
        """Add an object of any kind."""
        if isinstance(thing, (*_PLAIN, *_OF_TORCH)):
            self._say(f"{type(thing).__name__} {thing!r}")
        elif id(thing) in self._words:
            self._say(self._words[id(thing)])
        else:
            self._held.append(thing)  # so that its id is not reused
            self._words[id(thing)] = f"the {len(self._held)}th"
            self._depth += 1
            if self._depth < _DEEPEST:
                self._take(thing)
            else:
                self._say(f"too deep: {type(thing).__qualname__}")
            self._depth -= 1

    def module(self, module: nn.Module) -> None:
        """Add type, code, attributes and hooks of a module, without parameters, buffers and submodules."""
        self.take(type(module))
        self._say(
            f"{list(module._parameters)} {list(module._buffers)} {list(module._modules)}"
        )
        for name, value in sorted(vars(module).items()):
            if name.endswith(("hooks_with_kwargs", "hooks_always_called")):
                continue
            if "hooks" in name and "state_dict" in name:
                continue
            if "hooks" in name:
                self._all(name, value.values() if isinstance(value, Mapping) else ())
            elif name not in _OF_NO_OUTPUT:
                self._say(name)
                self.take(value)

    def _take(self, thing: Any) -> None:
        if isinstance(thing, nn.Module):
            self.module(thing)
            for part in (thing._parameters, thing._buffers, thing._modules):
                self._all("held", part.values())
        elif isinstance(thing, Tensor) and thing.grad_fn is not None:
            self._say("a result of a computation")
        elif isinstance(thing, Tensor):
            dense = thing.layout == torch.strided and not (
                thing.is_quantized or thing.is_meta or thing.is_nested
            )
            self.hash.update(tensor_bytes(thing) if dense else str(thing).encode())
        elif isinstance(thing, numpy.ndarray | numpy.generic):
            array = numpy.asarray(thing)
            self._say(f"array {array.dtype} {array.shape}")
            self.hash.update(
                b"objects"
                if array.dtype.hasobject
                else numpy.ascontiguousarray(array).tobytes()
            )
        elif isinstance(thing, dict):
            self._all(
                type(thing).__name__, [one for pair in thing.items() for one in pair]
            )
        elif isinstance(thing, list | tuple):
            self._all(type(thing).__name__, thing)
        elif isinstance(thing, set | frozenset):
            self._all("set", sorted(self._apart(one) for one in thing))
        else:
            self._all(type(thing).__name__, _pieces(thing))

    def _apart(self, thing: Any) -> str:
        """Return a hash of an entry of a set, independent of its position; objects seen before are known."""
        walk = _Walk(self._words)
        walk._depth = self._depth
        walk.take(thing)
        return walk.hash.hexdigest()[:16]

    def _all(self, kind: str, things: Iterable[Any]) -> None:
        members = list(things)
        self._say(f"{kind} of {len(members)}")
        for member in members:
            self.take(member)

    def _say(self, words: str) -> None:
        self.hash.update(f"{words}\n".encode("utf-8", "surrogatepass"))


def _pieces(thing: Any) -> Iterable[Any]:
    """Return the parts of code, classes, bound functions and other objects."""
    return next(parts(thing) for kind, parts in _PARTS if isinstance(thing, kind))


def _of_function(function: FunctionType) -> Iterator[Any]:
    is_own = not is_library(function.__module__)
    # Without checks of types, for example.
    inner = function if is_own else inspect.unwrap(function)
    # Torch.compile also wraps modules and C functions.
    if not isinstance(inner, FunctionType):
        yield inner
        return
    function = inner
    yield f"{function.__module__}.{function.__qualname__}"
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield "an empty cell"
    if is_own:
        yield function.__code__
        yield {
            name: function.__globals__[name]
            for name in names_in(function.__code__)
            if name in function.__globals__
        }


def _of_class(kind: type) -> Iterator[Any]:
    yield f"{kind.__module__}.{kind.__qualname__}"
    if is_library(kind.__module__):
        return
    yield from kind.__bases__
    code = (FunctionType, staticmethod, classmethod, property)
    data = (*_PLAIN, *_OF_TORCH, list, tuple, dict, Tensor)
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, code) or (
            isinstance(value, data) and not name.startswith("__")
        ):
            yield from (name, value)


def _of_object(thing: Any) -> Iterator[Any]:
    """Yield the class and attributes of an object; for objects of libraries (loggers, trainers) only plain attributes.

    Attributes of libraries with "hash" in their names usually contain Python hashes,
    which differ between processes.
    """
    kind = type(thing)
    named = str(getattr(thing, "__name__", ""))
    yield from (kind, named)
    slots = [slot for base in kind.__mro__ for slot in _slots(base)]
    entries = {
        **getattr(thing, "__dict__", {}),
        **{slot: getattr(thing, slot, None) for slot in slots},
    }
    whole = not is_library(kind.__module__) or kind.__module__.startswith(
        ("hessfig.models", "hessfig.tasks")
    )
    yield {
        name: value
        for name, value in sorted(entries.items())
        if whole or (_is_plain(value) and "hash" not in name)
    }


_PARTS: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    (Enum, lambda entry: (type(entry).__qualname__, entry.name)),
    (ModuleType | BuiltinFunctionType, lambda named: (named.__name__,)),
    (MethodType, attrgetter("__func__", "__self__")),
    (partial, attrgetter("func", "args", "keywords")),
    (staticmethod | classmethod, lambda method: (method.__func__,)),
    (property, attrgetter("fget", "fset")),
    (FunctionType, _of_function),
    (
        CodeType,
        attrgetter(
            "co_code", "co_consts", "co_names", "co_freevars", "co_argcount", "co_flags"
        ),
    ),
    (type, _of_class),
    (object, _of_object),
)


def _slots(kind: type) -> Iterator[str]:
    slots = vars(kind).get("__slots__", ())
    yield from (
        slot
        for slot in ((slots,) if isinstance(slots, str) else slots)
        if not slot.startswith("__")
    )


def _is_plain(thing: Any) -> bool:
    """Whether an object is a number, a string or a tensor, or a list or dictionary of these."""
    if isinstance(thing, list | tuple | set | frozenset):
        return all(map(_is_plain, thing))
    if isinstance(thing, dict):
        return all(_is_plain(one) for pair in thing.items() for one in pair)
    return isinstance(
        thing, (*_PLAIN, *_OF_TORCH, Tensor, numpy.ndarray, numpy.generic, Enum)
    )


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code and its inner functions look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


@cache
def is_library(module: str | None) -> bool:
    """Whether a module belongs to Python or an installed package (hessfig included), whose version fixes its code."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names or top in ("builtins", "hessfig"):
        return top != "__main__"
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and any(
        Path(file).resolve().is_relative_to(folder) for folder in LIBRARIES
    )
