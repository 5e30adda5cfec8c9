"""The names that a pickle of numbers may use, and what stands in for each: nothing that a file names is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hessfig.errors import plain

_KINDS = {f"{letter}{size}" for letter in "iuf" for size in (1, 2, 4, 8)} - {"f1"} | {"b1"}


class Refused(Exception):
    """Something in a pickle that is neither a number nor a container of numbers, or too much of it."""


class NumberType:
    """Stands in for a numpy dtype, whose own reader would trust the layout a file claims."""

    def __init__(self, kind: Any, *flags: object) -> None:
        if not isinstance(kind, str) or kind not in _KINDS:
            raise Refused(f"numpy.dtype({plain(kind)!r})" if isinstance(kind, str) else "a numpy.dtype")
        self._kind, self._order = kind, "="

    def set_state(self, state: tuple[Any, ...]) -> None:
        """Take the byte order from a pickled state. Raises TypeError if it is none."""
        if not isinstance(state[1], str) or state[1] not in "<>=|":
            raise TypeError("a byte order that is none")
        self._order = state[1]

    def number(self, content: bytes) -> Any:
        """Return the one number `content` spells. Raises ValueError if it is not one."""
        (number,) = np.frombuffer(content, dtype=self._order + self._kind)
        return number


def _scalar(kind: NumberType, content: bytes) -> Any:
    """Stand in for numpy's rebuilder of scalars."""
    return kind.number(content)


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for _codecs.encode, by which old protocols spell bytes."""
    if encoding != "latin1":
        raise ValueError("bytes in another encoding than latin1")
    return text.encode("latin1")


def _empty_dict(default: object = None) -> dict[Any, Any]:
    """Stand in for dicts of every kind; `default` is what a defaultdict would make, and is not made."""
    return {}


def _empty_list() -> list[Any]:
    return []


BUILDERS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy", "dtype"): NumberType,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): _empty_dict,
    ("collections", "defaultdict"): _empty_dict,
    ("builtins", "dict"): _empty_dict,
    ("builtins", "list"): _empty_list,
}
