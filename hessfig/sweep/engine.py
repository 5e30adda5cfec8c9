"""Run a sweep: reuse what is finished, measure the rest in workers, then write table and manifest."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hessfig.config import Config
from hessfig.config.machine import cores
from hessfig.errors import UserError
from hessfig.files import check_writable, is_file, remove_leftovers, write_together
from hessfig.measurements.allocation import Allocation
from hessfig.record import MANIFEST, TABLE
from hessfig.sweep.launchers.failures import FAILURES, Failures, Launch
from hessfig.sweep.outputs import Gathered, config_hash, gather, manifest_text, now, read_hash
from hessfig.sweep.plan import Cell, Setup, Variants, note_met, plan, setups_of
from hessfig.sweep.pool import Outcome, Pool
from hessfig.sweep.progress import Reporter
from hessfig.sweep.stages import allocations, pilot_cells, settled_by, trained_for
from hessfig.sweep.store import CellStore, CorruptCell, at_work

DERIVED = (
    *("slopes.csv", "levels.csv", "trends.csv", "paired.csv", "paired_curves.csv"),
    *("comparison.csv", "comparison_curves.csv", "comparison_ratios.csv"),
)
_NAMED = 5


@dataclass(frozen=True)
class Summary:
    """What a run did: cells measured, reused and failed, wall time in seconds, where the table is.

    `peak` is the most memory a worker held, in bytes (0 when nothing was to do). `missing` are cells of the plan that
    the table lacks, `notes` what else the user should know. Without a finished cell no table `is_written`.
    """

    measured: int
    reused: int
    failed: int
    seconds: float
    peak: int
    table: Path
    missing: int = 0
    notes: list[str] = field(default_factory=list)
    is_written: bool = True

    @property
    def is_complete(self) -> bool:
        return self.failed == 0 and self.missing == 0


def on_this_machine(cells: list[Cell], store: CellStore) -> Generator[Outcome, None, None]:
    """Yield the outcome of every cell, measured by workers of this machine; what they need is trained first."""
    count = worker_count(cells[0].config, len(cells))
    ready = yield from trained_for(cells, store, count)
    pool = Pool(min(count, len(ready)), store)
    try:
        yield from pool.run(ready)
    finally:
        pool.stop()


def run_sweep(variants: Variants, launch: Launch = on_this_machine, command: str = "") -> Summary:
    """Measure every cell of the sweep that is not finished; write table.csv and manifest.json (with the `command`).

    A failed cell is reported, its cause noted in folder failures, and left out of the table, the others go on; without
    a finished cell no table is written.
    Raises UserError when something cannot be had, or nothing can be stored (checked before the first cell).
    """
    setups, started, start = setups_of(variants), time.perf_counter(), now()
    config = setups[0].config
    folder = sweep_folder(config)
    store = CellStore(folder / "cells")
    check_writable(store.folder)
    remove_leftovers(folder)
    note_met(folder, setups)
    with at_work(folder):
        return _carried_out(setups, store, Failures(folder / FAILURES).noting(launch), command, start, started)


def _carried_out(
    setups: list[Setup], store: CellStore, launch: Launch, command: str, start: str, started: float
) -> Summary:
    """Measure pilots, then cells, and write the table; `start` and `started` are now, as a text and in seconds."""
    config, folder = setups[0].config, store.folder.parent
    pilots = pilot_cells(setups)
    pilot = measure_cells(f"{config.sweep.name}: pilot", pilots, store, launch)
    chosen = allocations(setups, store)
    cells = plan(setups, settled_by(setups, chosen))
    main = measure_cells(config.sweep.name, cells, store, launch)
    counts = {**main.counts, "failed": main.counts["failed"] + pilot.counts["failed"]}
    peak, seconds = max(main.peak, pilot.peak), time.perf_counter() - started
    run = {"command": command, "start": start, "end": now(), "seconds": round(seconds, 2), "cells": counts}
    run["peak_worker_memory_mib"] = round(peak / 2**20)
    gathered, lost = gather(cells, store), gather(pilots, store).missing
    is_written = len(gathered.missing) < len(cells)
    notes = _write(folder, setups, chosen, gathered, run) if is_written else []
    notes += _lacks(folder / TABLE, gathered.missing, len(cells))
    if lost:
        notes.append(f"{len(lost)} pilot cells are not there: run the same command again, for its number of probes")
    missing = len(gathered.missing) + len(lost)
    return Summary(
        **counts, seconds=seconds, peak=peak, table=folder / TABLE, missing=missing, notes=notes, is_written=is_written
    )


def measure_cells(name: str, cells: list[Cell], store: CellStore, launch: Launch) -> Reporter:
    """Measure what is not finished; return the counts of cells measured, reused and failed, and the peak memory."""
    todo = unfinished(cells, store)
    with Reporter(name, len(cells), len(cells) - len(todo)) as reporter:
        _launch(todo, store, launch, reporter)
    return reporter


def sweep_folder(config: Config) -> Path:
    """Return outputs/<sweep>."""
    return Path(config.output_dir) / config.sweep.name


def unfinished(cells: list[Cell], store: CellStore) -> list[Cell]:
    """Return the cells without a sound result; a corrupt file is named on stderr and counts as none."""
    return [cell for cell in cells if not _is_sound(cell, store)]


def worker_count(config: Config, cells: int) -> int:
    """Return how many worker processes to start: at most one a cell."""
    return max(1, min(cells, cores() if config.workers == "auto" else config.workers))


def _write(
    folder: Path, setups: list[Setup], chosen: list[Allocation], gathered: Gathered, run: dict[str, object]
) -> list[str]:
    """Write table and manifest and take away what was derived from another table; return notes."""
    path, notes = folder / TABLE, []
    if read_hash(folder / MANIFEST) not in (None, config_hash(setups)):
        notes.append(f"{path} was made with other settings and is replaced; its finished cells are kept")
    if not is_file(path) or path.read_bytes() != gathered.text.encode():
        for name in DERIVED:
            (folder / name).unlink(missing_ok=True)
    extra = {"arrays": gathered.arrays, "table_sha256": gathered.sha256}
    manifest = manifest_text(setups, chosen, {**run, "missing_cells": len(gathered.missing), **extra})
    write_together({path: gathered.text, folder / MANIFEST: manifest})
    return notes


def _lacks(table: Path, missing: list[Cell], planned: int) -> list[str]:
    """Return what to say of cells that the table lacks: because they failed, or were removed or damaged meanwhile."""
    if not missing:
        return []
    if len(missing) == planned:
        return [f"no cell is finished: {table} is left as it was"] if is_file(table) else []
    some = "; ".join(map(str, missing[:_NAMED])) + f"; and {len(missing) - _NAMED} more" * (len(missing) > _NAMED)
    return [f"{len(missing)} of {planned} cells are not in the table ({some}): run the same command again"]


def _is_sound(cell: Cell, store: CellStore) -> bool:
    try:
        return store.is_finished(cell.key)
    except CorruptCell as error:
        print(f"warning: {error}; it counts as not measured", file=sys.stderr)
        return False


def _launch(todo: list[Cell], store: CellStore, launch: Launch, reporter: Reporter) -> None:
    if not todo:
        return
    with closing(launch(todo, store)) as outcomes:
        for outcome in outcomes:
            if outcome.kind == "unwritable":
                raise UserError(outcome.cause)
            reporter.show(outcome)
