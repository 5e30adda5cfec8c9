"""Exponents of power laws, seed by seed: a claim about growth is one about their mean."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.slopes.bootstrap import MIN_POINTS
from hessfig.analysis.windows import WHOLE, Window, within

Numbers = NDArray[np.float64]


def exponents(rows: pd.DataFrame, x: str, *by: str, window: Window = WHOLE) -> pd.Series:
    """Return p of value ~ x^p for every (by ..., seed): least squares of log value on log x inside the window.

    Values that are not positive have no logarithm and are left out; nan with fewer than MIN_POINTS others. The mean
    over seeds of these is the slope of the geometric mean, and seeds are independent.
    """
    positive = rows[(rows["value"] > 0) & (rows[x] > 0)]
    kept = positive[within(positive[x], window)]
    found = {
        key if isinstance(key, tuple) else (key,): _exponent(one[x], one["value"])
        for key, one in kept.groupby([*by, "seed"], sort=True)
    }
    index = pd.MultiIndex.from_tuples(list(found), names=[*by, "seed"])
    return pd.Series(list(found.values()), index=index, dtype=float)


def least_squares(x: Numbers, y: Numbers) -> float:
    """Return the slope of y on x; nan where x has no spread."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    return float(centred @ y) / spread if spread > 0 else float("nan")


def _exponent(x: pd.Series, values: pd.Series) -> float:
    if x.nunique() < MIN_POINTS:
        return float("nan")
    return least_squares(np.log(x.to_numpy(float)), np.log(values.to_numpy(float)))
