"""What the package has checked at run time while tests run: types and shapes, in modules that are found, not listed."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, wraps
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

ROOT = Path(__file__).parent.parent
# The tape's small steps run a million times here, and dense oracles hold their shapes;
# a monitor's warnings name the line that called it, counting frames; what networks are
# made of is walked through piece by piece, and has no shapes.
UNCHECKED = ("hessfig.models.tape", "hessfig.api.monitor", "hessfig.models.identity")
LIBRARIES = {"torch", "jaxtyping"}


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "hessfig").rglob("*.py")):
        yield (
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
                ".__init__"
            ),
            path,
        )


def _imported(path: Path) -> set[str]:
    """Return the libraries that a module imports when it is imported itself."""
    return {*_IMPORTED.findall(path.read_text("utf-8"))}


_IMPORTED = re.compile(r"^(?:from|import) (\w+)", flags=re.MULTILINE)
COMPUTING = [name for name, path in _modules() if _imported(path) & LIBRARIES]
CHECKED = [
    name
    for name in COMPUTING
    if not f"{name}.".startswith(tuple(f"{one}." for one in UNCHECKED))
]
TYPECHECKER = f"{__name__}.checked"
# A whole number is a float, as mypy has it.
checked = beartype(
    conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError)
)
_with_shapes = jaxtyping.jaxtyped


@dataclass
class Span:
    """The test that is running: how many ran before it, and whether it has all calls checked."""

    number: int = 0
    is_thorough: bool = False


SPAN = Span()


def begin(*, is_thorough: bool) -> None:
    """Begin a test: the calls of every function are counted anew."""
    SPAN.number += 1
    SPAN.is_thorough = is_thorough


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """Check a function's 1st, 2nd, 4th, 8th, ... call of every test; all calls of a test that is long.

    To check every call took a quarter of all time of the tests, for calls that are like
    the first ones of the same test. Of a function that others define when they are
    called, the definitions are counted, not the calls: the first of every test is
    checked, of a long test the 1st, 2nd, 4th, 8th, ... To make its checks anew takes a
    millisecond, and one test made 94 000. What checks is made when it is needed first:
    most functions are never called by one process.
    """
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isinstance(function, FunctionType):
        return _with_shapes(function, typechecker=typechecker)
    if function.__code__.co_flags & CO_GENERATOR:
        return _always(function, typechecker)
    counted = _COUNTED.get(id(function.__code__))
    if counted is None:
        counted = _COUNTED[id(function.__code__)] = _Counted(function.__code__)
    if SPAN.number and "<locals>" in function.__qualname__:
        number = counted.number()
        is_asked = number & (number - 1) == 0 if SPAN.is_thorough else number == 1
        return _always(function, typechecker) if is_asked else function
    checking: Any = None

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        nonlocal checking
        # The number of the call: as `number` counts, in place, for it is done millions of times.
        if counted.span == SPAN.number:
            counted.calls += 1
        else:
            counted.number()
        if counted.calls & (counted.calls - 1) and not SPAN.is_thorough:
            return function(*given, **named)
        checking = checking or _always(function, typechecker)
        return checking(*given, **named)

    return call


class _Counted:
    """How often the functions of one code were called, or defined, in the present test."""

    __slots__ = ("calls", "code", "span")

    def __init__(self, code: CodeType) -> None:
        self.code = code  # held: its identity stays its own
        self.span = -1
        self.calls = 0

    def number(self) -> int:
        """Count once more; return the number."""
        if self.span != SPAN.number:
            self.span = SPAN.number
            self.calls = 0
        self.calls += 1
        return self.calls


_COUNTED: dict[int, _Counted] = {}


def _always(function: FunctionType, typechecker: Any) -> Any:
    """Check types alone where no annotation has a shape, and else types and shapes in one go.

    What the hook does by default binds the arguments of every function, and checks them
    again with the result; three of four functions have no shapes that could be bound.
    """
    shapes = _shapes(function)
    if shapes is None or (shapes and function.__code__.co_flags & CO_GENERATOR):
        return _with_shapes(function, typechecker=typechecker)
    return (
        _with_shapes(checked(function), typechecker=None)
        if shapes
        else checked(function)
    )


def _shapes(function: FunctionType) -> bool | None:
    """Return whether an annotation is, or holds, a type of jaxtyping; None where it names what is not there yet."""
    known = {**vars(builtins), **function.__globals__}
    named = set()
    for annotation in function.__annotations__.values():
        if not isinstance(annotation, str):
            named.add(repr(annotation))
            continue
        names = {
            node.id
            for node in ast.walk(ast.parse(annotation, mode="eval"))
            if isinstance(node, ast.Name)
        }
        if not names <= known.keys():
            return None
        named |= {repr(known[name]) for name in names}
    return any("jaxtyping" in one for one in named)
