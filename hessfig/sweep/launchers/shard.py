"""A share of a sweep's cells, K of N: dealt by their place in the plan, so that every machine finds the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hessfig.config.checks.launcher import parse_shard
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.plan import Cell

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
