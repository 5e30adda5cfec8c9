"""The table of a sweep: one row a measured number, written from the stored cells."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import Any

from hessfig.files import write_text
from hessfig.record import COLUMNS
from hessfig.sweep.plan import Cell, digest
from hessfig.sweep.store import CellStore, CorruptCell


def table_text(cells: list[Cell], store: CellStore) -> tuple[str, list[Cell]]:
    """Return the table of every finished cell in the order of the plan, and the cells that are not there."""
    buffer, missing = io.StringIO(), []
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        rows = finished_rows(cell, store)
        if rows is None:
            missing.append(cell)
        else:
            writer.writerows({**_shared(cell), **row} for row in rows)
    return buffer.getvalue(), missing


def write_table(path: Path, text: str) -> str:
    """Write a table; return its SHA-256."""
    write_text(path, text)
    return hashlib.sha256(text.encode()).hexdigest()


def arrays_of(cells: list[Cell], store: CellStore, folder: Path) -> list[dict[str, Any]]:
    """Return where the arrays of finished cells are: what they are of, the file below `folder`, its SHA-256."""
    found = [(cell, store.arrays_hash(cell.key)) for cell in cells if finished_rows(cell, store) is not None]
    return [
        {**cell.labels, "file": store.arrays_path(cell.key).relative_to(folder).as_posix(), "sha256": sha256}
        for cell, sha256 in found
        if sha256 is not None
    ]


def finished_rows(cell: Cell, store: CellStore) -> list[dict[str, Any]] | None:
    """Return the rows of a cell; None when it is missing or cannot be trusted."""
    try:
        return store.read(cell.key)
    except CorruptCell:
        return None


def _shared(cell: Cell) -> dict[str, Any]:
    return {
        "sweep": cell.config.sweep.name,
        "variant": cell.setup.name,
        "sigma": cell.sigma,
        "step": cell.step,
        "seed": cell.seed,
        "config": digest(cell.setup.science(cell.quantity))[:12],
    }
