"""How many probes `estimator=auto` takes: as few as the spread over seeds deserves, found on networks of its own."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from typing import Any

from hessfig.config import Config, Method, sigma_values
from hessfig.curvature.exact.support import Level, exactness
from hessfig.sweep.plan import Cell, blocks
from hessfig.sweep.store import CellStore, CorruptCell
from hessfig.terms import Block, Part

PILOT_SIGMAS, PILOT_REPEATS, PILOT_PROBES = 4, 6, 8
FEWEST_PROBES = 6
Variants = list[tuple[str, Config]]


def pilot_cells(variants: Variants) -> list[Cell]:
    """Return the cells that say how the probes' error compares with the spread over seeds, for variants that probe.

    PILOT_SIGMAS values of the grid, at each PILOT_REPEATS networks of their own. Their seeds are negative, which no
    sweep's are.
    """
    return [
        Cell(name, _with(config, num_probes=min(PILOT_PROBES, config.estimator.num_probes)), sigma, seed)
        for name, config in variants
        if _probes(config)
        for index, sigma in enumerate(_few(sigma_values(config.grid)))
        for seed in range(-1 - index * PILOT_REPEATS, -1 - (index + 1) * PILOT_REPEATS, -1)
    ]


def allocated(variants: Variants, store: CellStore) -> Variants:
    """Return the variants with the probes of each column that their pilots call for; without a pilot, unchanged.

    The rule sees settings and pilot networks only, never a network or a probe of the sweep. So the number of
    probes is a constant as far as the sweep's numbers go, and they stay unbiased; stopping when a number's own
    error looks small enough would favour the numbers that happen to look precise.
    """
    return [(name, _allocated(name, config, store)) for name, config in variants]


def probes_needed(rows: list[dict[str, Any]], share: float, ceiling: int) -> int:
    """Return the probes at which the estimator's variance is `share` of the variance over seeds.

    Of the numbers of one column: v, the relative variance of one probe, and s^2, that of the norm over networks
    (the estimator's own taken off), are pooled over layers and parts at each sigma; K = v / (share s^2), at most
    `ceiling` (also where s^2 cannot be told from the estimator's error), is averaged over sigma and rounded up.
    Averaging v and s^2 themselves would let the largest sigmas decide, where networks differ by factors.
    """
    at_sigma: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        at_sigma[row["sigma"]].append(row)
    needed = statistics.fmean(min(_needed(numbers, share), ceiling) for numbers in at_sigma.values())
    return min(ceiling, max(FEWEST_PROBES, math.ceil(needed)))


def is_exact(config: Config, block: Block, part: Part) -> bool:
    """Whether the configured estimator finds `part` of `block` without probes."""
    method = config.estimator.method
    cheap = method == Method.auto and exactness(config.model, block, part).level == Level.cheap
    return cheap or method == Method.exact


def _allocated(name: str, config: Config, store: CellStore) -> Config:
    columns: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in (row for cell in pilot_cells([(name, config)]) for row in _rows(cell, store)):
        if row["status"] == "ok" and row["num_probes"] and row["frob"] > 0:
            columns[row["col"]].append(row)
    share, ceiling = config.estimator.variance_share, config.estimator.num_probes
    return _with(config, allotted={col: probes_needed(rows, share, ceiling) for col, rows in columns.items()})


def _needed(rows: list[dict[str, Any]], share: float) -> float:
    """Return K at one sigma, from the numbers of several blocks."""
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
        return [{**row, "sigma": cell.sigma} for row in store.read(cell.key) or []]
    except CorruptCell:
        return []


def _probes(config: Config) -> bool:
    """Whether `auto` probes some block of this variant."""
    every = [(block, part) for block in blocks(config) for part in config.parts]
    return config.estimator.method == Method.auto and not all(is_exact(config, *one) for one in every)


def _with(config: Config, **estimator: Any) -> Config:
    return dataclasses.replace(config, estimator=dataclasses.replace(config.estimator, **estimator))


def _few(sigmas: list[float]) -> list[float]:
    """Return PILOT_SIGMAS values spread over the grid, its ends among them."""
    last, steps = len(sigmas) - 1, PILOT_SIGMAS - 1
    return [sigmas[index] for index in dict.fromkeys(round(i * last / steps) for i in range(PILOT_SIGMAS))]
