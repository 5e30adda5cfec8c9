"""Run a sweep: reuse what is finished, measure the rest in workers, then write table and manifest."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hessfig.config import Config
from hessfig.errors import UserError
from hessfig.files import unwritable
from hessfig.measurements.frobenius.allocation import Variants, allocations, pilot_cells
from hessfig.sweep.manifest import now, write_manifest
from hessfig.sweep.plan import Cell, plan
from hessfig.sweep.pool import Pool, is_finished
from hessfig.sweep.progress import Reporter
from hessfig.sweep.store import CellStore, CorruptCell
from hessfig.sweep.table import write_table


@dataclass(frozen=True)
class Summary:
    """What a run did: cells measured, reused and failed, wall time in seconds, where the table is.

    `peak` is the most memory a worker held, in bytes (0 when nothing was to do).
    """

    measured: int
    reused: int
    failed: int
    seconds: float
    peak: int
    table: Path


def run_sweep(variants: Variants) -> Summary:
    """Measure every cell of the sweep that is not finished; write table.csv and manifest.json.

    A failed cell is reported and left out of the table, the others go on. Raises UserError when nothing can be
    stored (checked before the first cell).
    """
    config, started, start = variants[0][1], time.perf_counter(), now()
    folder = sweep_folder(config)
    plan(variants)  # what cannot be had is told before anything is measured
    _check_writable(folder)
    store = CellStore(folder / "cells")
    pilot = _measure(f"{config.sweep.name}: pilot", pilot_cells(variants), store)
    chosen = allocations(variants, store)
    cells = plan(variants, chosen)
    main = _measure(config.sweep.name, cells, store)
    counts = {**main.counts, "failed": main.counts["failed"] + pilot.counts["failed"]}
    peak = max(main.peak, pilot.peak)
    table_hash = write_table(folder / "table.csv", cells, store)
    seconds = time.perf_counter() - started
    run = {
        "start": start,
        "end": now(),
        "seconds": round(seconds, 2),
        "cells": counts,
        "peak_worker_memory_mib": round(peak / 2**20),
        "table_sha256": table_hash,
    }
    write_manifest(folder / "manifest.json", variants, chosen, run)
    return Summary(**counts, seconds=seconds, peak=peak, table=folder / "table.csv")


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


def _measure(name: str, cells: list[Cell], store: CellStore) -> Reporter:
    """Measure what is not finished; return the counts of cells measured, reused and failed, and the peak memory."""
    todo = unfinished(cells, store)
    with Reporter(name, len(cells), len(cells) - len(todo)) as reporter:
        _run(todo, store, reporter)
    return reporter


def _run(todo: list[Cell], store: CellStore, reporter: Reporter) -> None:
    if not todo:
        return
    pool = Pool(worker_count(todo[0].config, len(todo)), store)
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
