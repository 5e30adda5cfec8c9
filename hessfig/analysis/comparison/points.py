"""The points of two sides: which sigmas are the same, what each side averages to, and how far they lie apart."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.batch_spread import Batches
from hessfig.analysis.comparison.flaws import FLOAT32_FLOOR
from hessfig.analysis.comparison.shifts import CURVE
from hessfig.analysis.comparison.student import Sample, difference
from hessfig.errors import UserError

POINT = [*CURVE, "sigma"]
SAME_SIGMA = 1e-6


def on_grid(values: pd.DataFrame, sigma: np.ndarray) -> pd.DataFrame:
    """Return the rows whose sigma is one of `sigma`, spelt as there. Raises UserError for two that become one."""
    grid = np.sort(sigma)
    if not len(grid):
        return values.iloc[:0]
    theirs = values["sigma"].to_numpy()
    above = (
        np.clip(np.searchsorted(grid, theirs), 1, len(grid) - 1)
        if len(grid) > 1
        else np.zeros(len(theirs), int)
    )
    below = np.maximum(above - 1, 0)
    nearest = np.where(theirs - grid[below] < grid[above] - theirs, grid[below], grid[above])
    kept = values.assign(sigma=nearest)[np.isclose(nearest, theirs, rtol=SAME_SIGMA, atol=0)]
    if kept.duplicated([*POINT, "repeat"]).any():
        raise UserError(
            "the reference has two sigmas that are one to a millionth",
            got=f"{kept[kept.duplicated([*POINT, 'repeat'])]['sigma'].iloc[0]:g}",
            allowed="one number a repeat at each sigma",
            remedy="mend the file, or give another",
        )
    return kept


def averages(values: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard error of value and log over repeats; nan where a repeat cannot be compared."""
    points = (
        values.groupby(POINT)
        .agg(
            mean=("value", "mean"),
            sem=("value", "sem"),
            count=("value", "size"),
            largest=("value", "max"),
            usable=("log", "count"),
            log_mean=("log", "mean"),
            log_se=("log", "sem"),
        )
        .reset_index()
    )
    whole = points.pop("usable") == points["count"]
    averages = points[["mean", "sem", "log_mean", "log_se"]].where(whole)
    return points.assign(zero=points.pop("largest") < FLOAT32_FLOOR, **averages)


def compare_points(both: pd.DataFrame, between: Batches) -> pd.DataFrame:
    """Return the points with their log ratio, its error with the batches', and its p and z; nan where there is none."""
    spreads = [between.spread(row.num_layers, row.block, row.part) for row in both.itertuples()]
    found = difference(
        *(_sample(both, side) for side in ("", "_reference")),
        batch_sd=np.array([spread.point for spread in spreads]),
        batch_dof=np.array([spread.dof for spread in spreads]),
    )
    return both.assign(log_ratio=found.shift, log_ratio_se=found.error, dof=found.dof, p=found.p, z=found.z)


def _sample(both: pd.DataFrame, side: str) -> Sample:
    count, mean, error = (both[f"{name}{side}"].to_numpy(float) for name in ("count", "log_mean", "log_se"))
    return Sample(count, mean, error**2 * count * (count - 1))
