"""Which sweeps an outputs folder holds, and how far each of them is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hessfig.record import MANIFEST, TABLE

CELLS, FAILURES = "cells", "failures"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_LONGEST = 2000  # letters of a cause that are shown


class State(StrEnum):
    """How far a sweep is."""

    complete = "complete"
    incomplete = "incomplete"
    unfinished = "no table yet"
    unreadable = "cannot be read"
    bare = "no manifest"
    missing = "not measured"


@dataclass(frozen=True)
class Failure:
    """Why cells failed, and how many of them."""

    cause: str
    count: int


def find_sweeps(outputs: Path) -> list[str]:
    """Return the names of the folders that a run has begun, sorted. An outputs folder that is not there has none."""
    with suppress(OSError):
        folders = [path for path in outputs.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
        return sorted(path.name for path in folders if any((path / one).exists() for one in (TABLE, CELLS)))
    return []


def failures_in(folder: Path) -> list[Failure]:
    """Return why cells failed, as launchers noted it, the most frequent cause first.

    One of a cell that was measured since means nothing.
    """
    done = {path.stem for path in (folder / CELLS).glob("*/*.json")}
    causes: Counter[str] = Counter()
    for path in sorted((folder / FAILURES).glob("*.txt")):
        if path.stem not in done:
            with suppress(OSError):
                causes[path.read_text("utf-8", errors="replace").strip()[:_LONGEST]] += 1
    return [Failure(cause, count) for cause, count in causes.most_common()]


def cells_in(folder: Path) -> int:
    """Return how many cells are stored."""
    return sum(1 for _ in (folder / CELLS).glob("*/*.json"))


def state_of(folder: Path, manifest: Mapping[str, Any] | None, *, is_readable: bool) -> tuple[State, str]:
    """Return how far a sweep is, and the words for it."""
    if not (folder / TABLE).is_file():
        count = cells_in(folder)
        return State.unfinished, f"no table yet; cells stored: {count}"
    if not is_readable:
        return State.unreadable, "the table or its manifest cannot be read"
    if manifest is None:
        return State.bare, "no manifest beside the table: its settings are not known"
    return _counted(manifest)


def made_by(folder: Path) -> str:
    """Return the version of hessfig that wrote the manifest, however old it is; nothing where it does not say."""
    with suppress(OSError, ValueError, RecursionError, TypeError, AttributeError):
        return str(json.loads((folder / MANIFEST).read_text("utf-8")).get("hessfig", ""))[:40]
    return ""


def _counted(manifest: Mapping[str, Any]) -> tuple[State, str]:
    missing, cells = manifest.get("missing_cells", 0), manifest.get("cells", {})
    counts = cells if isinstance(cells, Mapping) else {}
    done = sum(counts.get(name, 0) for name in ("measured", "reused") if isinstance(counts.get(name), int))
    if isinstance(missing, int) and missing > 0:
        failed = counts.get("failed", 0)
        words = f"{missing} cells are missing" + (f", {failed} of them failed" if failed else "")
        return State.incomplete, words
    return State.complete, f"{done} cells"
