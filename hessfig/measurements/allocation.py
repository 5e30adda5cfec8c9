r"""The number of probes of `estimator=auto`: as few as the spread over seeds allows, estimated on pilot networks.

The mean of a norm over seeds has two sources of error: networks differ, with a relative
variance s^2, and each norm is estimated, with a relative variance v / K for K probes. More
probes than make the second a small share of the first are wasted, so that

.. math:: K = \frac{v}{\text{share} \cdot s^2}.

Pilots are networks of other seeds than the sweep's, with few probes, which estimate v and
s^2 at a few values of sigma.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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

# Pilots: this many values of sigma, networks at each, and probes of each network.
PILOT_SIGMAS = 4
PILOT_REPEATS = 8
PILOT_PROBES = 8
PILOT_SHARE = 0.25  # of the cells' cost: what pilots may take
FEWEST_PROBES = Method.auto.facts.fewest
ALIGNED_PER_PLAIN = 0.6  # 12 probes in a block's own axes are as precise as 20 plain ones (docs/performance.md)
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Allocation:
    """The number of probes per column of blocks (by name) at a few ascending sigmas; empty: as configured."""

    probes: Mapping[str, Mapping[float, int]] = field(default_factory=dict)

    def at(self, sigma: float | None) -> dict[str, int]:
        """Return the number of probes of each column at `sigma`, interpolated linearly in log sigma and rounded up.

        Empty without a sigma: as the settings say.

        Examples
        --------
        >>> Allocation({"W_V": {0.1: 10, 1.0: 4}}).at(10**-0.5)
        {'W_V': 7}
        """
        if sigma is None:
            return {}
        counts = {}
        for column, by_sigma in self.probes.items():
            counts[column] = _interpolated(by_sigma, sigma)
        return counts


class _Place(NamedTuple):
    """The block and part of a row, inside of its column."""

    layer: int
    row_layer: int
    row: str
    part: str


def needs_pilots(config: Config, layout: Layout) -> bool:
    """Whether `auto` uses probes for at least one block of this variant."""
    if config.estimator.method != Method.auto:
        return False
    expensive = too_expensive(config, layout)
    for block in blocks_of(config.blocks, layout, config.model):
        if is_few(layout, block.layer, block.col):
            continue
        for part in config.parts:
            if not is_exact(config, block, part, expensive):
                return True
    return False


def pilot_config(config: Config) -> Config:
    """Return the settings of a pilot: those of the cells, with few probes."""
    count = min(PILOT_PROBES, config.estimator.num_probes)
    return replace(config, estimator=replace(config.estimator, num_probes=count))


def pilot_share(config: Config, layout: Layout) -> float:
    r"""Return what all pilots of a variant cost, as a share of its cells with the probes of the settings.

    .. math:: \frac{\text{pilots} \cdot \text{cost of a pilot}}
                   {\text{seeds} \cdot \text{sigmas} \cdot \text{cost of a cell}}

    In operations of a cell; for networks whose operations are not known, in probes.
    """
    sigmas = sigma_values(config.grid)
    pilot = pilot_config(config)
    pilots = PILOT_REPEATS * len(few(sigmas))
    cells = config.seeds * len(sigmas)
    of_cell = norm_operations(config, layout)
    if of_cell:
        return pilots * norm_operations(pilot, layout) / (cells * of_cell)
    return pilots * pilot.estimator.num_probes / (cells * config.estimator.num_probes)


def allocation(rows: Mapping[float, Rows], config: Config) -> Allocation:
    """Return the numbers of probes that follow from the pilots' rows (by sigma); empty without pilots.

    At most as many as are as precise as `num_probes` plain ones, the published recipe. The
    rule sees settings and pilot networks only, never a network or a probe of the sweep. So
    the number of probes is a constant as far as the sweep's numbers go, and they stay
    unbiased; stopping when a number's own error looks small enough would favour the numbers
    that happen to look precise.

    Parameters
    ----------
    rows : dict
        From sigma to the rows of all pilots there; rows without probes, of zero or with
        another status than ok are left out.
    config : Config
        With estimator.variance_share and estimator.num_probes.
    """
    share = config.estimator.variance_share
    ceiling = math.ceil(ALIGNED_PER_PLAIN * config.estimator.num_probes)
    ceiling = max(FEWEST_PROBES, ceiling)
    by_column: dict[str, dict[float, list[Mapping[str, Any]]]] = {}
    for sigma, measured in rows.items():
        for row in measured:
            if row["status"] == "ok" and row["num_probes"] and row["value"] > 0:
                by_sigma = by_column.setdefault(row["col"], {})
                by_sigma.setdefault(sigma, []).append(row)
    probes: dict[str, dict[float, int]] = {}
    for column, by_sigma in by_column.items():
        probes[column] = {}
        for sigma in sorted(by_sigma):
            needed = probes_needed(by_sigma[sigma], share, ceiling)
            probes[column][sigma] = needed
    return Allocation(probes)


def probes_needed(rows: Rows, share: float, ceiling: int) -> int:
    """Return the probes at which the estimator's variance is `share` of the variance over seeds.

    Of the numbers of one column at one sigma: v, the relative variance of one probe, and s^2,
    that of the norm over networks (the estimator's own taken off), are pooled over layers and
    parts; K = v / (share s^2), rounded up, from FEWEST_PROBES to `ceiling` (also where s^2
    cannot be told from the estimator's error).

    Examples
    --------
    Two networks whose norms differ by a factor e (the variance of the logarithm is 1/2), each
    with a relative error of 0.25 from 8 probes: v = 0.5, s^2 = 0.4375, and K = 22.9 for a
    share of 1/20.

    >>> place = {"layer": 1, "row_layer": 1, "row": "W_V", "part": "H", "num_probes": 8}
    >>> rows = [place | {"value": norm, "error": norm / 4} for norm in (1.0, math.e)]
    >>> probes_needed(rows, share=0.05, ceiling=100), probes_needed(rows, share=0.05, ceiling=12)
    (23, 12)
    """
    needed = min(_needed(rows, share), ceiling)
    return min(ceiling, max(FEWEST_PROBES, math.ceil(needed)))


def few(sigmas: list[float]) -> list[float]:
    """Return PILOT_SIGMAS values spread over the grid, including both ends; all of a grid that has no more.

    Examples
    --------
    >>> few([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    [0.1, 0.4, 1.6, 6.4]
    """
    last = len(sigmas) - 1
    steps = PILOT_SIGMAS - 1
    places = [round(step * last / steps) for step in range(PILOT_SIGMAS)]
    # A grid of fewer values has each of them once.
    return [sigmas[place] for place in dict.fromkeys(places)]


def _needed(rows: Rows, share: float) -> float:
    """Return the number of probes K at which their variance is `share` of that over seeds, before rounding.

    K = v / (share s^2) from the pilots' numbers of several blocks at one sigma, with v the
    relative variance of one probe and s^2 the variance over networks of log norms. With K_0
    the probes of the pilots, v / K_0 is the mean of the squared relative errors. To first
    order an error e of a norm x changes log x by e / x, so that pilots' logarithms have the
    variance s^2 + v / K_0. Infinite where s^2 is not above 0.
    """
    blocks: dict[_Place, list[Mapping[str, Any]]] = {}
    for row in rows:
        place = _Place(row["layer"], row["row_layer"], row["row"], row["part"])
        blocks.setdefault(place, []).append(row)
    errors = []
    spreads = []
    for numbers in blocks.values():
        if len(numbers) < 2:
            continue
        errors += [(row["error"] / row["value"]) ** 2 for row in numbers]
        logs = [math.log(row["value"]) for row in numbers]
        spreads.append(statistics.variance(logs))
    if not spreads:
        return math.inf
    error = statistics.fmean(errors)
    over_seeds = statistics.fmean(spreads) - error
    if over_seeds > 0:
        return error * rows[0]["num_probes"] / (share * over_seeds)
    return math.inf


def _interpolated(counts: Mapping[float, int], sigma: float) -> int:
    """Return the count at `sigma`, linear in log sigma between its neighbours, rounded up; constant beyond the ends."""
    logs = [math.log(one) for one in counts]
    between = list(counts.values())
    return math.ceil(np.interp(math.log(sigma), logs, between) - 1e-9)
