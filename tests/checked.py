"""Which modules of the package have their types and shapes checked at run time while tests run: found, not listed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from beartype import BeartypeConf, beartype

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
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number is a float, as mypy has it
