"""Measure one share of a sweep: cells only; whoever has all shares in one folder makes the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hessfig.config.machine import parse_shard
from hessfig.files import check_writable
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.engine import measure_cells, on_this_machine, sweep_folder, unfinished
from hessfig.sweep.launchers.failures import FAILURES, Failures
from hessfig.sweep.plan import Cell, Variants, note_met, plan, setups_of
from hessfig.sweep.stages import allocations, pilot_cells, settled_by
from hessfig.sweep.store import CellStore, at_work

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """The `index`-th of `count` shares (from 1). Together they are the whole, and no two have a cell in common."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the share that 'K/N' names. Raises UserError for what is none."""
        return cls(*parse_shard(text))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def cells(self, plan: Iterable[Cell]) -> list[Cell]:
        """Return this share of a plan's cells. The steps of one trained network stay together: it is trained once."""
        return self.of(list(plan), together=_needs)

    def of(self, items: Sequence[T], *, together: Callable[[T], Hashable] = id) -> list[T]:
        """Return every `count`-th of `items`, in their order; those that are `together` the same are dealt as one.

        Each round of dealing begins one share later than the last, for plans are periodic: with two quantities and two
        shares, one of them would get all cells of the costly quantity.
        """
        places = {key: place for place, key in enumerate(dict.fromkeys(map(together, items)))}
        return [item for item in items if self._takes(places[together(item)])]

    def turned(self, items: Sequence[T]) -> list[T]:
        """Return all of `items`, from this share's place on: who measures all of them in company begins elsewhere."""
        start = (self.index - 1) * len(items) // self.count
        return [*items[start:], *items[:start]]

    def _takes(self, place: int) -> bool:
        return (place + place // self.count) % self.count == self.index - 1


def _needs(cell: Cell) -> Hashable:
    """Return what a cell shares with others: its trained network, or nothing."""
    return id(cell) if cell.step is None else Trajectory(cell.config, cell.sigma, cell.seed).key


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
