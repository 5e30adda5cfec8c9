"""What the package has checked at run time while tests run: types and shapes, in modules that are found, not listed."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

ROOT = Path(__file__).parent.parent
# The tape's small steps run a million times here, and dense oracles hold their shapes; a monitor's warnings name the
# line that called it, counting frames; what networks are made of is walked through piece by piece, and has no shapes.
UNCHECKED = ("hessfig.models.tape", "hessfig.monitor", "hessfig.models.identity")
LIBRARIES = {"torch", "jaxtyping"}


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "hessfig").rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


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
CHECKED = [name for name in COMPUTING if not f"{name}.".startswith(tuple(f"{one}." for one in UNCHECKED))]
TYPECHECKER = f"{__name__}.checked"
# A whole number is a float, as mypy has it.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
_with_shapes = jaxtyping.jaxtyped


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """Check types alone where no annotation has a shape, and else what jaxtyping's own decorator checks.

    That binds the arguments and checks them twice at every call, a tenth of all time that the tests take; three of
    four functions have no shapes that could be bound.
    """
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    if isinstance(function, FunctionType) and not _has_shapes(function):
        return checked(function)
    return _with_shapes(function, typechecker=typechecker)


def _has_shapes(function: Callable[..., Any]) -> bool:
    """Return whether an annotation names what is, or holds, a type of jaxtyping, or what is not there yet."""
    known: Mapping[str, Any] = {**vars(builtins), **function.__globals__}
    for annotation in function.__annotations__.values():
        words = annotation if isinstance(annotation, str) else repr(annotation)
        if "jaxtyping" in words:
            return True
        if isinstance(annotation, str):
            names = [node.id for node in ast.walk(ast.parse(words, mode="eval")) if isinstance(node, ast.Name)]
            if any(name not in known or "jaxtyping" in repr(known[name]) for name in names):
                return True
    return False
