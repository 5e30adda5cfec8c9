"""What the package has checked at run time while tests run: types and shapes, in modules that are found, not listed."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import partial
from inspect import isgeneratorfunction
from pathlib import Path
from types import FunctionType
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
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
    return found


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


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """Check types alone where no annotation has a shape, and else types and shapes in one go.

    What the hook does by default binds the arguments of every function, and checks them
    again with the result: a tenth of all time that the tests take, and three of four
    functions have no shapes that could be bound.
    """
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    shapes = _shapes(function) if isinstance(function, FunctionType) else None
    if shapes is None or (shapes and isgeneratorfunction(function)):
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
