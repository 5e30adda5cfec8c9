"""How many probes `estimator=auto` takes: as few as the spread over seeds deserves, found on networks of its own."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from typing import Any

from hessfig.config import Config, Method, sigma_values
from hessfig.curvature.exact.support import Level, exactness
from hessfig.sweep.plan import Allocation, Cell, blocks
from hessfig.sweep.store import CellStore, CorruptCell
from hessfig.terms import Block, Part

PILOT_SIGMAS, PILOT_REPEATS, PILOT_PROBES = 4, 8, 8
FEWEST_PROBES = 6
Variants = list[tuple[str, Config]]


def pilot_cells(variants: Variants) -> list[Cell]:
    """Return the cells that say how the probes' error compares with the spread over seeds, for variants that probe.

    PILOT_SIGMAS values of the grid, at each PILOT_REPEATS networks of their own. Their seeds are negative, which no
    sweep's are.
    """
    return [
        Cell(name, _with_probes(config, min(PILOT_PROBES, config.estimator.num_probes)), sigma, seed)
        for name, config in variants
        if _probes(config)
        for index, sigma in enumerate(_few(sigma_values(config.grid)))
        for seed in range(-1 - index * PILOT_REPEATS, -1 - (index + 1) * PILOT_REPEATS, -1)
    ]


def allocations(variants: Variants, store: CellStore) -> list[Allocation]:
    """Return the probes that the pilots of each variant call for; without a pilot, none.

    The rule sees settings and pilot networks only, never a network or a probe of the sweep. So the number of
    probes is a constant as far as the sweep's numbers go, and they stay unbiased; stopping when a number's own
    error looks small enough would favour the numbers that happen to look precise.
    """
    return [_allocation(config, pilot_cells([(name, config)]), store) for name, config in variants]


def probes_needed(rows: list[dict[str, Any]], share: float, ceiling: int) -> int:
    """Return the probes at which the estimator's variance is `share` of the variance over seeds.

    Of the numbers of one column at one sigma: v, the relative variance of one probe, and s^2, that of the norm
    over networks (the estimator's own taken off), are pooled over layers and parts; K = v / (share s^2), rounded
    up, from FEWEST_PROBES to `ceiling` (also where s^2 cannot be told from the estimator's error).
    """
    return min(ceiling, max(FEWEST_PROBES, math.ceil(min(_needed(rows, share), ceiling))))


def is_exact(config: Config, block: Block, part: Part) -> bool:
    """Whether the configured estimator finds `part` of `block` without probes."""
    method = config.estimator.method
    cheap = method == Method.auto and exactness(config.model, block, part).level == Level.cheap
    return cheap or method == Method.exact


def _allocation(config: Config, pilots: list[Cell], store: CellStore) -> Allocation:
    share, ceiling = config.estimator.variance_share, config.estimator.num_probes
    found: dict[str, dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for cell in pilots:
        for row in _rows(cell, store):
            if row["status"] == "ok" and row["num_probes"] and row["frob"] > 0:
                found[row["col"]][cell.sigma].append(row)
    return Allocation(
        {
            column: {sigma: probes_needed(at_sigma[sigma], share, ceiling) for sigma in sorted(at_sigma)}
            for column, at_sigma in found.items()
        }
    )


def _needed(rows: list[dict[str, Any]], share: float) -> float:
    """Return K before rounding, from the numbers of several blocks at one sigma."""
    blocks: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        blocks[row["layer"], row["row"], row["part"]].append(row)
    repeated = [numbers for numbers in blocks.values() if len(numbers) > 1]
    if not repeated:
        return math.inf
    error = statistics.fmean((row["frob_sem"] / row["frob"]) ** 2 for numbers in repeated for row in numbers)
    spread = statistics.fmean(
        statistics.variance(math.log(row["frob"]) for row in numbers) for numbers in repeated
    )
    over_seeds = spread - error
    return error * rows[0]["num_probes"] / (share * over_seeds) if over_seeds > 0 else math.inf


def _rows(cell: Cell, store: CellStore) -> list[dict[str, Any]]:
    try:
        return store.read(cell.key) or []
    except CorruptCell:
        return []


def _probes(config: Config) -> bool:
    """Whether `auto` probes some block of this variant."""
    every = [(block, part) for block in blocks(config) for part in config.parts]
    return config.estimator.method == Method.auto and not all(is_exact(config, *one) for one in every)


def _with_probes(config: Config, count: int) -> Config:
    return dataclasses.replace(config, estimator=dataclasses.replace(config.estimator, num_probes=count))


def _few(sigmas: list[float]) -> list[float]:
    """Return PILOT_SIGMAS values spread over the grid, its ends among them."""
    last, steps = len(sigmas) - 1, PILOT_SIGMAS - 1
    return [sigmas[index] for index in dict.fromkeys(round(i * last / steps) for i in range(PILOT_SIGMAS))]
