"""Read a pickle of numbers without unpickling it: bounded in size, steps, memory and depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hessfig.analysis.comparison.references.builders import Refused
from hessfig.analysis.comparison.references.pickle_machine import Machine, is_container
from hessfig.errors import UserError, plain

LARGEST_FILE = 16 * 2**20  # bytes; the authors' largest has some 60 000
DEEPEST = 8
_ALLOWED = "numbers, dicts, lists, tuples and numpy scalars"


def load(path: Path) -> Any:
    """Return the numbers in a pickle. Raises UserError naming whatever else is in it, before it is built."""
    try:
        content = Machine().run(_read(path))
        _check_depth(content)
    except Refused as error:
        raise UserError(
            f"{path}: refused to load {plain(error)}",
            got=plain(error),
            allowed=_ALLOWED,
            remedy="do not use this file; fetch the published one",
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UserError(
            f"{path} is damaged or cut short",
            got=plain(f"{type(error).__name__}: {error}"),
            allowed=f"a pickle of {_ALLOWED}",
            remedy="fetch the file again",
        ) from None
    return content


def _read(path: Path) -> bytes:
    with path.open("rb") as handle:
        content = handle.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise Refused(f"more than {LARGEST_FILE // 2**20} MiB")
    return content


def _check_depth(content: Any) -> None:
    """Go level by level, for nothing that calls itself may meet what a file nests. Raises Refused."""
    level = [content]
    for _ in range(DEEPEST):
        inner = [
            thing.values() if isinstance(thing, dict) else thing for thing in level if is_container(thing)
        ]
        level = [thing for things in inner for thing in things if is_container(thing)]
    if level:
        raise Refused(f"containers more than {DEEPEST} deep")
