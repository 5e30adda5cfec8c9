"""Shifts of whole curves, and of the ratio of two curves of one layer, whose networks share what moves them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.batch_spread import Batches
from hessfig.analysis.comparison.student import averaged, difference, sample, weights

LAYER = ["num_layers", "layer"]
CURVE = [*LAYER, "block", "part"]
RATIO = [*CURVE, "over_block", "over_part"]
SHIFT = ["shift", "shift_se", "dof", "p", "z"]
Curve = tuple[Any, ...]
Wide = Mapping[Curve, pd.DataFrame]


def curve_shifts(ours: Wide, theirs: Wide, batches: Batches) -> pd.DataFrame:
    """Return a row a curve with the mean log ratio over sigma, its error and what it means.

    Points of one repeat share their weights along sigma: so each repeat is first averaged over sigma (its logs minus
    the reference's mean logs), and the error comes from the spread of these averages over repeats.
    """
    rows = []
    for curve in ours:
        spread = batches.spread(curve[0], *curve[2:])
        rows.append((*curve, *_shift(ours[curve], theirs[curve], spread.curve, spread.dof)))
    return _frame(rows, CURVE)


def ratio_shifts(ours: Wide, theirs: Wide, batches: Batches) -> pd.DataFrame:
    """Return a row for each two curves of one layer with the shift of their ratio, repeat by repeat of one side.

    What all blocks of a network share cancels, so an error in one curve shows. Batches shift the two by amounts taken
    as independent (measured: 0 to 1.2 times the spread that this gives).
    """
    rows = []
    for over, curve in combinations(ours, 2):
        if curve[:2] == over[:2]:
            mine, other = ours[curve] - ours[over], theirs[curve] - theirs[over]
            one, two = (batches.spread(name[0], *name[2:]) for name in (curve, over))
            sd, dof = float(np.hypot(one.curve, two.curve)), min(one.dof, two.dof)
            rows.append((*curve, *over[2:], *_shift(mine, other, sd, dof)))
    return _frame(rows, RATIO)


def wide(values: pd.DataFrame, used: pd.DataFrame) -> Wide:
    """Return for each curve the logs at the points `used`: a row a repeat, a column a sigma."""
    known = values.merge(used, on=[*CURVE, "sigma"])
    return {
        curve: here.pivot(index="repeat", columns="sigma", values="log")  # noqa: PD010 - one row a number
        for curve, here in known.groupby(CURVE, sort=False)
    }


def _frame(rows: list[tuple[Any, ...]], names: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*names, *SHIFT])
    return frame.astype({**dict.fromkeys(LAYER, int), **dict.fromkeys(SHIFT, float)})


def _shift(ours: pd.DataFrame, theirs: pd.DataFrame, batch_sd: float, batch_dof: int) -> tuple[float, ...]:
    """Return the columns SHIFT for two tables of logs, at the sigmas that both have with two repeats or more."""
    both = [name for name in ours.columns if name in theirs.columns]
    known = [name for name in both if ours[name].count() > 1 and theirs[name].count() > 1]
    if not known:
        return (np.nan,) * len(SHIFT)
    mine, other = ours[known].to_numpy(), theirs[known].to_numpy()
    weight, centre = weights(mine, other), np.nanmean(other, axis=0)
    samples = [sample(averaged(side, centre, weight)) for side in (mine, other)]
    found = difference(*samples, batch_sd=batch_sd, batch_dof=batch_dof)
    return tuple(float(column[0]) for column in (found.shift, found.error, found.dof, found.p, found.z))
