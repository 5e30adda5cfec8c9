"""Run a sweep: reuse what is finished, measure the rest in workers, then write table and manifest."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from hessfig.config import Config
from hessfig.errors import UserError
from hessfig.sweep.manifest import now, write_manifest
from hessfig.sweep.plan import Cell, plan
from hessfig.sweep.pool import Pool, is_finished
from hessfig.sweep.progress import Reporter
from hessfig.sweep.store import CellStore, CorruptCell, unwritable
from hessfig.sweep.table import write_table

Variants = list[tuple[str, Config]]


@dataclass(frozen=True)
class Summary:
    """What a run did: cells measured, reused and failed, wall time in seconds, and where the table is."""

    measured: int
    reused: int
    failed: int
    seconds: float
    table: Path


def run_sweep(variants: Variants) -> Summary:
    """Measure every cell of the sweep that is not finished; write table.csv and manifest.json.

    A failed cell is reported and left out of the table, the others go on. Raises UserError when nothing can be
    stored (checked before the first cell).
    """
    folder = sweep_folder(variants[0][1])
    _check_writable(folder)
    cells, store, start = plan(variants), CellStore(folder / "cells"), now()
    todo = unfinished(cells, store)
    with Reporter(variants[0][1].sweep.name, len(cells), len(cells) - len(todo)) as reporter:
        _measure(todo, store, worker_count(variants[0][1], len(todo)), reporter)
    table_hash = write_table(folder / "table.csv", cells, store)
    run = {
        "start": start,
        "end": now(),
        "seconds": round(reporter.seconds, 2),
        "cells": reporter.counts,
        "table_sha256": table_hash,
    }
    write_manifest(folder / "manifest.json", variants, run)
    return Summary(**reporter.counts, seconds=reporter.seconds, table=folder / "table.csv")


def sweep_folder(config: Config) -> Path:
    """Return outputs/<sweep>."""
    return Path(config.output_dir) / config.sweep.name


def unfinished(cells: list[Cell], store: CellStore) -> list[Cell]:
    """Return the cells without a sound result; a corrupt file is named on stderr and counts as none."""
    return [cell for cell in cells if not _is_sound(cell, store)]


def _is_sound(cell: Cell, store: CellStore) -> bool:
    try:
        return is_finished(cell, store)
    except CorruptCell as error:
        print(f"warning: {error}; it counts as not measured", file=sys.stderr)
        return False


def _measure(todo: list[Cell], store: CellStore, workers: int, reporter: Reporter) -> None:
    if not todo:
        return
    pool = Pool(workers, store)
    try:
        for outcome in pool.run(todo):
            if outcome.kind == "unwritable":
                raise UserError(outcome.cause)
            reporter.show(outcome)
    finally:
        pool.stop()


def worker_count(config: Config, cells: int) -> int:
    """Return how many worker processes to start: at most one a cell."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cells, available if config.workers == "auto" else config.workers))


def _check_writable(folder: Path) -> None:
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(20, "a file is in the way", str(existing))
        if not os.access(existing, os.W_OK):
            raise PermissionError(13, "permission denied", str(existing))
    except OSError as error:
        raise unwritable(folder, error) from error
