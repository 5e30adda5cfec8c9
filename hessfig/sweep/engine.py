"""Run a sweep: reuse what is finished, measure the rest in workers, then write table and manifest."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hessfig.config import Config
from hessfig.errors import UserError
from hessfig.files import unwritable
from hessfig.measurements.frobenius.allocation import Allocation
from hessfig.record import MANIFEST, TABLE
from hessfig.sweep.manifest import config_hash, now, read_hash, write_manifest
from hessfig.sweep.pilots import allocations, pilot_cells, settled_by
from hessfig.sweep.plan import Cell, Setup, Variants, plan, setups_of
from hessfig.sweep.pool import Pool
from hessfig.sweep.progress import Reporter
from hessfig.sweep.store import CellStore, CorruptCell
from hessfig.sweep.table import arrays_of, table_text, write_table

DERIVED = ("slopes.csv", "comparison.csv", "comparison_curves.csv")


@dataclass(frozen=True)
class Summary:
    """What a run did: cells measured, reused and failed, wall time in seconds, where the table is.

    `peak` is the most memory a worker held, in bytes (0 when nothing was to do). `missing` are cells of the plan that
    the table lacks, `notes` what else the user should know.
    """

    measured: int
    reused: int
    failed: int
    seconds: float
    peak: int
    table: Path
    missing: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.failed == 0 and self.missing == 0


def run_sweep(variants: Variants) -> Summary:
    """Measure every cell of the sweep that is not finished; write table.csv and manifest.json.

    A failed cell is reported and left out of the table, the others go on; without a finished cell no table is written.
    Raises UserError when something cannot be had, or nothing can be stored (checked before the first cell).
    """
    setups, started, start = setups_of(variants), time.perf_counter(), now()
    config = setups[0].config
    folder = sweep_folder(config)
    _check_writable(folder)
    store = CellStore(folder / "cells")
    pilot = _measure(f"{config.sweep.name}: pilot", pilot_cells(setups), store)
    chosen = allocations(setups, store)
    cells = plan(setups, settled_by(setups, chosen))
    main = _measure(config.sweep.name, cells, store)
    counts = {**main.counts, "failed": main.counts["failed"] + pilot.counts["failed"]}
    peak, seconds = max(main.peak, pilot.peak), time.perf_counter() - started
    run = {"start": start, "end": now(), "seconds": round(seconds, 2), "cells": counts}
    run["peak_worker_memory_mib"] = round(peak / 2**20)
    missing, notes = _write(folder, setups, chosen, cells, run)
    return Summary(**counts, seconds=seconds, peak=peak, table=folder / TABLE, missing=missing, notes=notes)


def sweep_folder(config: Config) -> Path:
    """Return outputs/<sweep>."""
    return Path(config.output_dir) / config.sweep.name


def unfinished(cells: list[Cell], store: CellStore) -> list[Cell]:
    """Return the cells without a sound result; a corrupt file is named on stderr and counts as none."""
    return [cell for cell in cells if not _is_sound(cell, store)]


def worker_count(config: Config, cells: int) -> int:
    """Return how many worker processes to start: at most one a cell."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cells, available if config.workers == "auto" else config.workers))


def _write(
    folder: Path, setups: list[Setup], chosen: list[Allocation], cells: list[Cell], run: dict[str, object]
) -> tuple[int, list[str]]:
    """Write table and manifest and take away what was derived from another table; return cells missing and notes."""
    store, path = CellStore(folder / "cells"), folder / TABLE
    text, missing = table_text(cells, store)
    if len(missing) == len(cells):
        return len(missing), [f"no cell is finished: {path} is left as it was"] if path.exists() else []
    before, notes = read_hash(folder / MANIFEST), []
    if before not in (None, config_hash(setups)):
        notes.append(f"{path} was made with other settings and is replaced; its finished cells are kept")
    if not path.is_file() or path.read_text() != text:
        for name in DERIVED:
            (folder / name).unlink(missing_ok=True)
    extra = {"arrays": arrays_of(cells, store, folder), "table_sha256": write_table(path, text)}
    write_manifest(folder / MANIFEST, setups, chosen, {**run, "missing_cells": len(missing), **extra})
    return len(missing), notes


def _is_sound(cell: Cell, store: CellStore) -> bool:
    try:
        return store.is_finished(cell.key)
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


def _check_writable(folder: Path) -> None:
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(20, "a file is in the way", str(existing))
        if not os.access(existing, os.W_OK):
            raise PermissionError(13, "permission denied", str(existing))
    except OSError as error:
        raise unwritable(folder, error) from error
