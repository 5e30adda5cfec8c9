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

PILOT_SIGMAS, PILOT_REPEATS, PILOT_PROBES = 4, 4, 8
FEWEST_PROBES = 6
Variants = list[tuple[str, Config]]
Numbers = dict[tuple[Any, ...], dict[float, list[dict[str, Any]]]]


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


def allocated(variants: Variants, store: CellStore) -> Variants:
    """Return the variants with the number of probes their pilots call for; without a pilot's result, unchanged.

    The rule sees settings and pilot networks only, never a network or a probe of the sweep. So the number of
    probes is a constant as far as the sweep's numbers go, and they stay unbiased; stopping when a number's own
    error looks small enough would favour the numbers that happen to look precise.
    """
    return [(name, _allocated(name, config, store)) for name, config in variants]


def is_exact(config: Config, block: Block, part: Part) -> bool:
    """Whether the configured estimator finds `part` of `block` without probes."""
    method = config.estimator.method
    cheap = method == Method.auto and exactness(config.model, block, part).level == Level.cheap
    return cheap or method == Method.exact


def probes_needed(rows: list[dict[str, Any]], share: float) -> float:
    """Return the probes at which every block's estimator variance is `share` of its variance over seeds.

    Relative variances: v of one probe, s^2 of the norm over networks at one sigma (the estimator's own taken off),
    both pooled over the pilot's sigmas; K = v / (share s^2), the largest over blocks and parts. Infinite where the
    spread over seeds cannot be told from the estimator's error, 0 where nothing is probed.
    """
    return max((_needed(numbers, share) for numbers in _by_block(rows).values()), default=0.0)


def _allocated(name: str, config: Config, store: CellStore) -> Config:
    rows = [row for cell in pilot_cells([(name, config)]) for row in _rows(cell, store)]
    if not rows:
        return config
    needed = probes_needed(rows, config.estimator.variance_share)
    ceiling = config.estimator.num_probes
    return _with_probes(config, ceiling if needed > ceiling else max(FEWEST_PROBES, math.ceil(needed)))


def _needed(at_sigma: dict[float, list[dict[str, Any]]], share: float) -> float:
    repeats = [rows for rows in at_sigma.values() if len(rows) > 1]
    if not repeats:
        return math.inf
    errors = [(row["frob_sem"] / row["frob"]) ** 2 for rows in repeats for row in rows]
    one_probe = statistics.fmean(errors) * repeats[0][0]["num_probes"]
    spread = statistics.fmean(statistics.variance(math.log(row["frob"]) for row in rows) for rows in repeats)
    over_seeds = spread - statistics.fmean(errors)
    return one_probe / (share * over_seeds) if over_seeds > 0 else math.inf


def _by_block(rows: list[dict[str, Any]]) -> Numbers:
    """Group what was probed and is not zero by block and part, then by sigma."""
    found: Numbers = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["status"] == "ok" and row["num_probes"] and row["frob"] > 0:
            found[row["layer"], row["row"], row["col"], row["part"]][row["sigma"]].append(row)
    return found


def _rows(cell: Cell, store: CellStore) -> list[dict[str, Any]]:
    try:
        return [{**row, "sigma": cell.sigma} for row in store.read(cell.key) or []]
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
