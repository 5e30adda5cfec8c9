"""Write the tree of the package into docs/architecture.md, with the opening sentence of every module.

    python scripts/pages/architecture.py [--write | --check]

A module says in its first sentence what it is for; the page repeats it, and a test compares the two.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "hessfig"
COMMAND = "python scripts/pages/architecture.py --write"


def parts(_outputs: Path | None) -> Iterator[tuple[Path, str, str]]:
    """Yield the tree."""
    yield PAGE, "tree", tree()


def tree() -> str:
    """Return a line for every folder and every module, folders last, each with its opening sentence."""
    return "\n".join([_line("hessfig/", PACKAGE / "__init__.py", 0), *_lines(PACKAGE, 1)]) + "\n"


def _lines(folder: Path, depth: int) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        if path.stem != "__init__":
            yield _line(path.name, path, depth)
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield _line(f"{inner.name}/", inner / "__init__.py", depth)
        yield from _lines(inner, depth + 1)


def _line(name: str, module: Path, depth: int) -> str:
    sentence = opening_sentence(module).replace("`", "")  # in marks a page shows commands that could be run
    return f"{'  ' * depth}- `{name}`: {sentence}"


def opening_sentence(module: Path) -> str:
    """Return the first sentence of a module's docstring, on one line; nothing where it has none."""
    paragraph = (ast.get_docstring(ast.parse(module.read_text("utf-8"))) or "").partition("\n\n")[0]
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(paragraph.split()))[0]


if __name__ == "__main__":
    from page import keep

    raise SystemExit(keep(__doc__, COMMAND, parts))
