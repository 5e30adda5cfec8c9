"""The number of probes of `estimator=auto`: as few as the spread over seeds allows, estimated on pilot networks."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hessfig.config.enums import Method
from hessfig.config.grid import sigma_values
from hessfig.config.schema import Config
from hessfig.measurements.settings_and_costs import (
    is_exact,
    is_few,
    norm_operations,
    too_expensive,
)
from hessfig.models.blocks import blocks_of
from hessfig.weights import Layout

PILOT_SIGMAS, PILOT_REPEATS, PILOT_PROBES = 4, 8, 8
PILOT_SHARE = 0.25  # of the cells' cost: what pilots may take
FEWEST_PROBES = Method.auto.facts.fewest
ALIGNED_PER_PLAIN = 0.6  # 12 probes in a block's own axes are as precise as 20 plain ones (docs/performance.md)
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Allocation:
    """The number of probes per column of blocks (by name) at a few ascending sigmas; empty: as configured."""

    probes: Mapping[str, Mapping[float, int]] = field(default_factory=dict)

    def at(self, sigma: float | None) -> dict[str, int]:
        """Return the number of probes of each column at `sigma`, interpolated linearly in log sigma and rounded up."""
        if sigma is None:
            return {}
        return {
            column: _interpolated(counts, sigma)
            for column, counts in self.probes.items()
        }


def needs_pilots(config: Config, layout: Layout) -> bool:
    """Whether `auto` uses probes for at least one block of this variant."""
    if config.estimator.method != Method.auto:
        return False
    blocks = blocks_of(config.blocks, layout, config.model)
    probed = [block for block in blocks if not is_few(layout, block.layer, block.col)]
    expensive = too_expensive(config, layout)
    return not all(
        is_exact(config, block, part, expensive)
        for block in probed
        for part in config.parts
    )


def pilot_config(config: Config) -> Config:
    """Return the settings of a pilot: those of the cells, with few probes."""
    estimator = config.estimator
    return replace(
        config,
        estimator=replace(
            estimator, num_probes=min(PILOT_PROBES, estimator.num_probes)
        ),
    )


def pilot_share(config: Config, layout: Layout) -> float:
    """Return what all pilots of a variant cost, as a share of its cells with the probes of the settings.

    In operations of a cell; for networks whose operations are not known, in probes.
    """
    sigmas, pilot = sigma_values(config.grid), pilot_config(config)
    pilots, cells = PILOT_REPEATS * len(few(sigmas)), config.seeds * len(sigmas)
    of_cell = norm_operations(config, layout)
    if of_cell:
        return pilots * norm_operations(pilot, layout) / (cells * of_cell)
    return pilots * pilot.estimator.num_probes / (cells * config.estimator.num_probes)


def allocation(rows: Mapping[float, Rows], config: Config) -> Allocation:
    """Return the numbers of probes that follow from the pilots' rows (by sigma); empty without pilots.

    At most as many as are as precise as `num_probes` plain ones, the published recipe.
    The rule sees settings and pilot networks only, never a network or a probe of the
    sweep. So the number of probes is a constant as far as the sweep's numbers go, and
    they stay unbiased; stopping when a number's own error looks small enough would
    favour the numbers that happen to look precise.
    """
    share = config.estimator.variance_share
    ceiling = max(
        FEWEST_PROBES, math.ceil(ALIGNED_PER_PLAIN * config.estimator.num_probes)
    )
    rows_of_columns: dict[str, dict[float, list[Mapping[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sigma, measured in rows.items():
        for row in measured:
            if row["status"] == "ok" and row["num_probes"] and row["value"] > 0:
                rows_of_columns[row["col"]][sigma].append(row)
    return Allocation(
        {
            column: {
                sigma: probes_needed(at_sigma[sigma], share, ceiling)
                for sigma in sorted(at_sigma)
            }
            for column, at_sigma in rows_of_columns.items()
        }
    )


def probes_needed(rows: Rows, share: float, ceiling: int) -> int:
    """Return the probes at which the estimator's variance is `share` of the variance over seeds.

    Of the numbers of one column at one sigma: v, the relative variance of one probe,
    and s^2, that of the norm over networks (the estimator's own taken off), are pooled
    over layers and parts; K = v / (share s^2), rounded up, from FEWEST_PROBES to
    `ceiling` (also where s^2 cannot be told from the estimator's error).
    """
    return min(
        ceiling, max(FEWEST_PROBES, math.ceil(min(_needed(rows, share), ceiling)))
    )


def few(sigmas: list[float]) -> list[float]:
    """Return PILOT_SIGMAS values spread over the grid, including both ends."""
    last, steps = len(sigmas) - 1, PILOT_SIGMAS - 1
    return [
        sigmas[index]
        for index in dict.fromkeys(round(i * last / steps) for i in range(PILOT_SIGMAS))
    ]


def _needed(rows: Rows, share: float) -> float:
    """Return K before rounding, from the numbers of several blocks at one sigma."""
    blocks: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        blocks[row["layer"], row["row_layer"], row["row"], row["part"]].append(row)
    repeated = [numbers for numbers in blocks.values() if len(numbers) > 1]
    if not repeated:
        return math.inf
    error = statistics.fmean(
        (row["error"] / row["value"]) ** 2 for numbers in repeated for row in numbers
    )
    spread = statistics.fmean(
        statistics.variance(math.log(row["value"]) for row in numbers)
        for numbers in repeated
    )
    over_seeds = spread - error
    if over_seeds > 0:
        return error * rows[0]["num_probes"] / (share * over_seeds)
    return math.inf


def _interpolated(counts: Mapping[float, int], sigma: float) -> int:
    logs, between = [math.log(given) for given in counts], list(counts.values())
    return math.ceil(np.interp(math.log(sigma), logs, between) - 1e-9)
