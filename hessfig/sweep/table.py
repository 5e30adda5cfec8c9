"""The table of a sweep: one row a measured number, written from the stored cells."""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass
from typing import Any

from hessfig.record import COLUMNS, digest
from hessfig.sweep.plan import Cell
from hessfig.sweep.store import CellStore, CorruptCell, Rows


@dataclass(frozen=True)
class Gathered:
    """The table of the finished cells as text, where their arrays are, and the cells of the plan that are not there."""

    text: str
    arrays: list[dict[str, Any]]
    missing: list[Cell]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def gather(cells: list[Cell], store: CellStore) -> Gathered:
    """Read every cell once, in the order of the plan, as it is now: rows and arrays agree."""
    buffer, arrays, missing = io.StringIO(), [], []
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        found = _finished(cell, store)
        if found is None:
            missing.append(cell)
            continue
        rows, sha256 = found
        writer.writerows({**_shared(cell), **row} for row in rows)
        if sha256 is not None:
            arrays.append({**cell.labels, "file": _place(cell, store), "sha256": sha256})
    return Gathered(buffer.getvalue(), arrays, missing)


def _finished(cell: Cell, store: CellStore) -> tuple[Rows, str | None] | None:
    """Return rows and the hash of the arrays of a sound cell; None when it is missing or cannot be trusted."""
    try:
        return store.finished(cell.key)
    except CorruptCell:
        return None


def _place(cell: Cell, store: CellStore) -> str:
    """Return where the arrays are, below the folder of the sweep."""
    return store.arrays_path(cell.key).relative_to(store.folder.parent).as_posix()


def _shared(cell: Cell) -> dict[str, Any]:
    return {
        "sweep": cell.config.sweep.name,
        "variant": cell.setup.name,
        "sigma": cell.sigma,
        "step": cell.step,
        "seed": cell.seed,
        "config": digest(cell.setup.science(cell.quantity))[:12],
    }
