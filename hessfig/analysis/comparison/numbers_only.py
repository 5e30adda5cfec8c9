"""An unpickler that admits numbers, containers and numpy scalars, and refuses everything else by name."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hessfig.errors import UserError

_ALLOWED = "numbers, dicts, lists, tuples and numpy scalars"
_KINDS = {f"{letter}{size}" for letter in "iuf" for size in (1, 2, 4, 8)} | {"b1"}


def load(path: Path) -> Any:
    """Unpickle a file of numbers. Raises UserError naming whatever else is in it, before it is built."""
    try:
        with path.open("rb") as handle:
            return _NumbersOnly(handle).load()
    except _Refused as error:
        raise UserError(
            f"{path}: refused to load {error}",
            got=str(error),
            allowed=_ALLOWED,
            remedy="do not use this file; fetch the published one",
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UserError(
            f"{path} is damaged or cut short",
            got=f"{type(error).__name__}: {error}",
            allowed=f"a pickle of {_ALLOWED}",
            remedy="fetch the file again",
        ) from error


class _Refused(Exception):
    """A name in a pickle that is neither a number nor a container."""


class _NumbersOnly(pickle.Unpickler):
    """Looks names up in _BUILDERS and nowhere else: no module named by a file is ever imported."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")
        if (module, name) not in _BUILDERS:
            raise _Refused(f"{module}.{name}")
        return _BUILDERS[module, name]


class _NumberType:
    """Stands in for a numpy dtype, whose own reader would trust the layout a file claims."""

    def __init__(self, kind: str, *flags: object) -> None:
        if kind not in _KINDS:
            raise _Refused(f"numpy.dtype({kind!r})")
        self._kind, self._order = kind, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = state[1]

    def number(self, content: bytes) -> Any:
        """Return the one number `content` spells. Raises ValueError if it is not one."""
        (number,) = np.frombuffer(content, dtype=self._order + self._kind)
        return number


def _scalar(kind: _NumberType, content: bytes) -> Any:
    """Stand in for numpy's rebuilder of scalars."""
    return kind.number(content)


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for _codecs.encode, by which old protocols spell bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in encoding {encoding!r}")
    return text.encode("latin1")


_BUILDERS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy", "dtype"): _NumberType,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
}
