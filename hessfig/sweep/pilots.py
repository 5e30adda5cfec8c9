"""The pilot stage: cells of other seeds that settle how many probes estimator=auto takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hessfig.config import Config, State, sigma_values
from hessfig.measurements.frobenius.allocation import (
    PILOT_PROBES,
    PILOT_REPEATS,
    Allocation,
    allocation,
    few,
    needs_pilots,
)
from hessfig.record import FROBENIUS
from hessfig.sweep.plan import Cell, Settled, Setup
from hessfig.sweep.store import CellStore, CorruptCell


def pilot_cells(setups: list[Setup]) -> list[Cell]:
    """Return the cells that say how the probes' error compares with the spread over seeds, for variants that probe.

    A few values of the grid, at each PILOT_REPEATS networks of their own. Their seeds are negative, which no sweep's
    are. A network that does not change with sigma and seed has no such spread, and no pilots; nor has a trained state,
    for which every pilot would be a training.
    """
    return [cell for setup in setups if _has_pilots(setup) for cell in _of_setup(setup)]


def allocations(setups: list[Setup], store: CellStore) -> list[Allocation]:
    """Return the probes that the pilots of each variant call for; without a pilot, none."""
    return [_allocation(setup, store) for setup in setups]


def settled_by(setups: list[Setup], chosen: list[Allocation]) -> Settled:
    """Return what a plan asks: the probes of a variant's columns at a sigma."""
    by_setup = dict(zip(map(id, setups), chosen, strict=True))
    return lambda setup, sigma: by_setup[id(setup)].at(sigma)


def _has_pilots(setup: Setup) -> bool:
    config = setup.config
    spreads = {"sigma", "seed"} <= setup.axes and config.state.kind != State.trained
    return FROBENIUS in config.quantities and spreads and needs_pilots(config, setup.layout)


def _of_setup(setup: Setup) -> list[Cell]:
    count = min(PILOT_PROBES, setup.config.estimator.num_probes)
    pilot = dataclasses.replace(setup, config=_with_probes(setup.config, count), _sciences={})
    return [
        Cell(pilot, sigma, seed)
        for index, sigma in enumerate(few(sigma_values(setup.config.grid)))
        for seed in range(-1 - index * PILOT_REPEATS, -1 - (index + 1) * PILOT_REPEATS, -1)
    ]


def _allocation(setup: Setup, store: CellStore) -> Allocation:
    found: dict[float, list[Mapping[str, Any]]] = {}
    for cell in pilot_cells([setup]):
        assert cell.sigma is not None
        found.setdefault(cell.sigma, []).extend(_rows(cell, store))
    return allocation(found, setup.config)


def _rows(cell: Cell, store: CellStore) -> list[dict[str, Any]]:
    try:
        return store.read(cell.key) or []
    except CorruptCell:
        return []


def _with_probes(config: Config, count: int) -> Config:
    return dataclasses.replace(config, estimator=dataclasses.replace(config.estimator, num_probes=count))
