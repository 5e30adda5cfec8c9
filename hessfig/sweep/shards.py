"""Measure one share of a sweep: cells only; whoever has all shares in one folder makes the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hessfig.config.machine import parse_shard
from hessfig.record import TABLE
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.runner import Summary, begun, measure_cells, on_this_machine

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
    return cell.trajectory.key if cell.trajectory else id(cell)


def run_shard(sweep: Sweep, shard: Shard) -> Summary:
    """Measure the cells of `shard` that are not finished, and the pilots that every share needs.

    Pilots are cells: on a shared folder each share begins with others of them, elsewhere each measures all; either way
    all settle the same probes. While one is missing it is not known how many probes the cells take, and none of them
    is measured. Raises UserError as `run_sweep` does.
    """
    started = time.perf_counter()
    with begun(sweep):
        pilots = shard.turned(sweep.pilots)
        pilot = measure_cells(sweep, f"{sweep.name}: pilot", pilots, on_this_machine)
        sweep = sweep.reread()
        lost = len(sweep.unfinished(pilots))
        cells = [] if lost else shard.cells(sweep.cells)
        main = measure_cells(sweep, f"{sweep.name}: shard {shard}", cells, on_this_machine)
    seconds, peak = time.perf_counter() - started, max(main.peak, pilot.peak)
    table = sweep.folder / TABLE
    return Summary(**main.counts, seconds=seconds, peak=peak, table=table, missing=lost, notes=[], is_written=False)
