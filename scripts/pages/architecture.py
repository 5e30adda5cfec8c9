"""Write the tree of the package into docs/tree.md, with the opening sentence of every folder.

    python scripts/pages/architecture.py [--write | --check]

A folder says in its first sentence what it is for, and so does a module; a test
compares the page with the folders.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tree.md"
PACKAGE = ROOT / "hessfig"
COMMAND = "python scripts/pages/architecture.py --write"


def parts(_outputs: Path | None) -> Iterator[tuple[Path, str, str]]:
    """Yield the tree."""
    yield PAGE, "tree", tree()


def tree() -> str:
    """Return a line for every folder, with its opening sentence and the names of its modules."""
    return "\n".join(_lines(PACKAGE, 0)) + "\n"


def _lines(folder: Path, depth: int) -> Iterator[str]:
    # In marks a page shows commands.
    sentence = opening_sentence(folder / "__init__.py").replace("`", "")
    modules = ", ".join(
        f"`{path.name}`"
        for path in sorted(folder.glob("*.py"))
        if path.stem != "__init__"
    )
    yield f"{'  ' * depth}- `{folder.name}/`: {sentence} {modules}".rstrip()
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _lines(inner, depth + 1)


def opening_sentence(module: Path) -> str:
    """Return the first sentence of a module's docstring, on one line; nothing where it has none."""
    paragraph = (
        ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    ).partition("\n\n")[0]
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(paragraph.split()))[0]


if __name__ == "__main__":
    from page import keep

    raise SystemExit(keep(__doc__, COMMAND, parts))
