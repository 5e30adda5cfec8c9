"""Runs a sweep: reuses finished cells, measures the others in workers, then writes table and manifest."""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hessfig.config.machine import cores
from hessfig.config.schema import Config
from hessfig.errors import UserError, plain
from hessfig.files import check_writable, is_file, remove_leftovers
from hessfig.record import MANIFEST, TABLE, entry_of
from hessfig.register import check_replaceable, publish, remove_own, trusted_hashes
from hessfig.sweep.outputs import (
    Gathered,
    config_hash,
    gather_cells,
    manifest_text,
    now,
)
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.pool import CellOutcome, Here, Pool
from hessfig.sweep.progress import Reporter
from hessfig.sweep.store import CellStore
from hessfig.sweep.trainings import trained_for
from hessfig.sweep.variant import note_contents

DERIVED = ("slopes.csv", "levels.csv", "trends.csv")
_NAMED, KIND = 5, "table"
_DIVERGED = "Diverged"  # the name of the exception in states.training.loop, with which a cause begins
Launch = Callable[[list[Cell], CellStore], Generator[CellOutcome, None, None]]


@dataclass(frozen=True)
class Summary:
    """The summary of a run: cells measured, reused and failed, wall time in seconds, and the path of the table.

    `peak` is the most memory a worker held, in bytes (0 when nothing was to do).
    `missing` are cells of the plan that the table lacks (of a `share`, K/N: pilots),
    `notes` what else the user should know. Without a finished cell no table
    `is_written`, nor by a share; `collect` is the command that writes it then.
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
    share: str = ""
    collect: str = ""

    @property
    def is_complete(self) -> bool:
        return self.failed == 0 and self.missing == 0


def on_this_machine(
    cells: list[Cell], store: CellStore
) -> Generator[CellOutcome, None, None]:
    """Yield the outcome of every cell, measured by workers of this machine; what they need is trained first."""
    count = worker_count(cells[0].config, len(cells))
    ready = yield from trained_for(cells, store, count)
    pool = Pool(min(count, len(ready)), store) if count else Here(store)
    try:
        yield from pool.run(ready)
    finally:
        pool.stop()


def run_sweep(
    sweep: Sweep, launch: Launch = on_this_machine, command: str = ""
) -> Summary:
    """Measure every cell of the sweep that is not finished; write table.csv and manifest.json (with the `command`).

    A failed cell is reported, its cause noted in folder failures, and left out of the
    table, the others go on; without a finished cell no table is written. Raises
    UserError when nothing can be stored, and for a table or manifest that is there and
    not as hessfig left it (checked before the first cell).
    """
    check_replaceable(
        [sweep.folder / TABLE, sweep.folder / MANIFEST],
        KIND,
        known=trusted_hashes(sweep.folder),
    )
    started = time.perf_counter()
    start = now()
    begin(sweep)
    remove_leftovers(sweep.folder)
    pilot = measure_cells(sweep, f"{sweep.name}: pilot", sweep.pilots, launch)
    sweep = sweep.reread()
    main = measure_cells(sweep, sweep.name, sweep.cells, launch)
    counts = {**main.counts, "failed": main.counts["failed"] + pilot.counts["failed"]}
    peak = max(main.peak, pilot.peak)
    seconds = time.perf_counter() - started
    end = now()
    gathered = gather_cells(sweep.cells, sweep.store)
    lost = gather_cells(sweep.pilots, sweep.store).missing
    table, missing = sweep.folder / TABLE, len(gathered.missing) + len(lost)
    is_written = len(gathered.missing) < len(sweep.cells)
    diverged = _diverged(sweep, gathered.missing)
    run = {
        "command": command,
        "start": start,
        "end": end,
        "seconds": round(seconds, 2),
        "cells": counts,
        "peak_worker_memory_mib": round(peak / 2**20),
        "diverged_cells": len(diverged),
    }
    written = _write(sweep, gathered, run) if is_written else []
    # `begin` has said what is not read.
    planned = [note for note in sweep.notes if note not in sweep.unread]
    notes = [*planned, *written, *_lacks(sweep, gathered.missing, diverged)]
    if lost:
        notes.append(
            f"{len(lost)} pilot cells are not there: run the same command again, for its number of probes"
        )
    measured, reused, failed = (
        counts[kind] for kind in ("measured", "reused", "failed")
    )
    return Summary(
        measured, reused, failed, seconds, peak, table, missing, notes, is_written
    )


def begin(sweep: Sweep) -> None:
    """Note the content of the user's networks. Raises UserError if the sweep's folder cannot be written."""
    check_writable(sweep.store.folder)
    for note in sweep.unread:
        print(f"note: {plain(note)}", file=sys.stderr, flush=True)
    note_contents(sweep.folder, sweep.variants)


def measure_cells(
    sweep: Sweep, name: str, cells: list[Cell], launch: Launch
) -> Reporter:
    """Measure the unfinished cells; return counts of measured, reused and failed cells, and the peak memory."""
    todo = sweep.unfinished(cells)
    with Reporter(name, len(cells), len(cells) - len(todo)) as reporter:
        if todo:
            with closing(launch(todo, sweep.store)) as outcomes:
                for outcome in outcomes:
                    if outcome.kind == "unwritable":
                        raise UserError(outcome.cause)
                    if outcome.kind == "failed":
                        sweep.failures.note(outcome.cell.key, outcome.cause)
                    reporter.show(outcome)
    return reporter


def worker_count(config: Config, cells: int) -> int:
    """Return how many worker processes to start: at most one per cell; 0 if this process measures itself."""
    return int(min(cells, cores() if config.workers == "auto" else config.workers))


def _write(sweep: Sweep, gathered: Gathered, run: dict[str, object]) -> list[str]:
    """Write table and manifest, remove files derived from another table, and return notes."""
    path = sweep.folder / TABLE
    manifest = sweep.folder / MANIFEST
    notes = []
    if entry_of(manifest, "config_hash") not in (None, config_hash(sweep.variants)):
        notes.append(
            f"{path} was made with other settings and is replaced; its finished cells are kept"
        )
    if not is_file(path) or path.read_bytes() != gathered.text.encode():
        stale = [name for name in DERIVED if not remove_own(path.with_name(name))]
        notes += [
            f"{path.with_name(name)} is not as hessfig left it: it is kept next to the new table"
            for name in stale
        ]
    written = {
        "missing_cells": len(gathered.missing),
        "arrays": gathered.arrays,
        "table_sha256": gathered.sha256,
    }
    texts = {path: gathered.text, manifest: manifest_text(sweep, {**run, **written})}
    publish(texts, KIND, known=trusted_hashes(sweep.folder))
    return notes


def _diverged(sweep: Sweep, missing: Sequence[Cell]) -> list[Cell]:
    """Return the cells that have no number because their training diverged, which it would do again."""
    causes = sweep.failures.causes(cell.key for cell in missing)
    return [cell for cell in missing if causes.get(cell.key, "").startswith(_DIVERGED)]


def _lacks(sweep: Sweep, missing: list[Cell], diverged: list[Cell]) -> list[str]:
    """Return notes about cells that the table lacks because they failed, or were removed or damaged meanwhile."""
    table = sweep.folder / TABLE
    planned = sweep.cells
    if missing and len(missing) == len(planned):
        if is_file(table):
            return [f"no cell is finished: {table} is left as it was"]
        return []
    keys = {cell.key for cell in diverged}
    others = [cell for cell in missing if cell.key not in keys]
    kinds = (
        (diverged, "their trainings diverged"),
        (others, "run the same command again"),
    )
    lines = []
    for cells, words in kinds:
        if cells:
            what = f"{len(cells)} of {len(planned)} cells are not in the table"
            lines.append(f"{what} ({_first(cells)}): {words}")
    return lines


def _first(cells: Sequence[Cell]) -> str:
    return "; ".join(map(str, cells[:_NAMED])) + f"; and {len(cells) - _NAMED} more" * (
        len(cells) > _NAMED
    )
