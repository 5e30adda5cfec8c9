"""Which modules of the package have their types and shapes checked at run time while tests run: found, not listed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError

ROOT = Path(__file__).parent.parent
# The tape's small steps run a million times here, and dense oracles hold their shapes; a monitor's warnings name the
# line that called it, counting frames.
UNCHECKED = ("hessfig.models.tape", "hessfig.monitor")
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
checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))
Checker = Callable[[Any], Any]
_thorough, _OWN_SHAPES = jaxtyping.jaxtyped, jaxtyping.jaxtyped("context")


def jaxtyped(*, typechecker: Checker) -> Checker:
    """Do what jaxtyping.jaxtyped does, for which the hook looks there, in less than half of the time.

    Its own binds the arguments of every call, for shapes that name them ("{size}"), and checks them twice, for better
    messages. Here a function is checked once, arguments before it runs and what it returns after, and has sizes of its
    own for the letters of its shapes.
    """
    return partial(_with_checks, typechecker=typechecker)


def _with_checks(made: Any, typechecker: Checker) -> Any:
    if isinstance(made, type):
        if is_dataclass(made) and "__init__" in vars(made) and not hasattr(made.__init__, "__wrapped__"):
            made.__init__ = _with_checks(made.__init__, typechecker)
        return made
    if inspect.isgeneratorfunction(made) or any("{" in str(one) for one in made.__annotations__.values()):
        return _thorough(made, typechecker=typechecker)
    called = typechecker(made)

    @wraps(made)
    def with_own_shapes(*args: Any, **named: Any) -> Any:
        with _OWN_SHAPES:
            return called(*args, **named)

    return with_own_shapes
