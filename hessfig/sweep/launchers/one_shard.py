"""Measure one share of a sweep: cells only; whoever has all shares in one folder makes the table."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hessfig.files import check_writable
from hessfig.sweep.engine import measure_cells, on_this_machine, sweep_folder, unfinished
from hessfig.sweep.launchers.failures import FAILURES, Failures
from hessfig.sweep.launchers.shard import Shard
from hessfig.sweep.pilots import allocations, pilot_cells, settled_by
from hessfig.sweep.plan import Variants, note_met, plan, setups_of
from hessfig.sweep.store import CellStore
from hessfig.sweep.upkeep.mark import at_work


@dataclass(frozen=True)
class Share:
    """What was done of a share: its cells by what became of them, seconds, and where the cells are.

    `pilots` are those that are missing: without them it is not known how many probes the cells take, and none of them
    is measured.
    """

    measured: int
    reused: int
    failed: int
    seconds: float
    folder: Path
    pilots: int = 0

    @property
    def is_complete(self) -> bool:
        return self.failed == 0 and self.pilots == 0


def run_shard(variants: Variants, shard: Shard) -> Share:
    """Measure the cells of `shard` that are not finished, and the pilots that every share needs.

    Pilots are cells: on a shared folder each share begins with others of them, elsewhere each measures all; either way
    all settle the same probes. Raises UserError as `run_sweep` does.
    """
    started, setups = time.perf_counter(), setups_of(variants)
    folder, name = sweep_folder(setups[0].config), setups[0].config.sweep.name
    store, launch = CellStore(folder / "cells"), Failures(folder / FAILURES).noting(on_this_machine)
    check_writable(store.folder)
    note_met(folder, setups)
    with at_work(folder):
        pilots = shard.turned(pilot_cells(setups))
        measure_cells(f"{name}: pilot", pilots, store, launch)
        lost = len(unfinished(pilots, store))
        cells = shard.cells(plan(setups, settled_by(setups, allocations(setups, store))))
        counts = measure_cells(f"{name}: shard {shard}", [] if lost else cells, store, launch).counts
    return Share(**counts, seconds=time.perf_counter() - started, folder=store.folder, pilots=lost)
