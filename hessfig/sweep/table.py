"""The table of a sweep: one row a measured number, written from the stored cells."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import Any

from hessfig.files import replacing
from hessfig.sweep.plan import Cell, digest, science
from hessfig.sweep.store import CellStore, CorruptCell

COLUMNS = [
    "sweep",
    "variant",
    "num_layers",
    "layer",
    "row",
    "col",
    "part",
    "sigma",
    "seed",
    "frob",
    "frob_sem",
    "num_probes",
    "estimator",
    "dtype",
    "status",
    "seconds",
    "config",
]


def write_table(path: Path, cells: list[Cell], store: CellStore) -> str:
    """Write the rows of every finished cell in the order of the plan; return the file's SHA-256."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        writer.writerows(_rows(cell, store))
    with replacing(path) as handle:
        handle.write(buffer.getvalue())
    return hashlib.sha256(buffer.getvalue().encode()).hexdigest()


def _rows(cell: Cell, store: CellStore) -> list[dict[str, Any]]:
    try:
        rows = store.read(cell.key) or []
    except CorruptCell:
        rows = []
    config = cell.config
    shared = {
        "sweep": config.sweep.name,
        "variant": cell.variant,
        "sigma": cell.sigma,
        "seed": cell.seed,
        "config": digest(science(config))[:12],
    }
    return [{**shared, **row} for row in rows]
