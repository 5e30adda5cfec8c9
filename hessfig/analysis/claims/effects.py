"""Numbers per seed that rules judge: norms, exponents in sigma and sizes, and gaps between two blocks' exponents."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.claims.rule import Evidence
from hessfig.analysis.slopes.fit import MIN_POINTS
from hessfig.analysis.slopes.printed import WHOLE, Window, within
from hessfig.record import FROBENIUS
from hessfig.terms import Part

Numbers = NDArray[np.float64]
SMALL: Window = (None, 0.1)
LARGE: Window = (1.0, None)
LEAST_GAP = 0.25  # of exponents that are whole numbers in theory
LEAST_DECADES = 0.1  # a quarter more or less
LEAST_SHARE = 0.05
ATTENTION, NORM = "model.attention", "model.norm"
_PAIR = ("W_Q", "W_V")


def diagonal_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of diagonal blocks within a layer."""
    return rows[(rows["row"] == rows["col"]) & (rows["row_layer"] == rows["layer"])]


def by_seed(rows: pd.DataFrame, *keys: str) -> pd.Series:
    """Return the mean value by (keys ..., seed)."""
    return rows.groupby([*keys, "seed"])["value"].mean()


def columns_of_level(values: pd.Series, level: str) -> pd.DataFrame:
    """Return one column per value of a level of the index, in ascending order."""
    return values.unstack(level).sort_index(axis=1)  # noqa: PD010 - one value a place is sure: nothing to aggregate


def norms(evidence: Evidence, *settings: str, part: Part = Part.H) -> pd.DataFrame:
    """Return the rows of Frobenius norms of a part of the Hessian."""
    return evidence.numbers(FROBENIUS, *settings, part=part.value)


def in_logs(rows: pd.DataFrame, log: np.ufunc = np.log10) -> pd.DataFrame:
    """Return the rows with positive values, with the values replaced by their logarithms."""
    positive = rows[rows["value"] > 0]
    return positive.assign(value=log(positive["value"]))


def numbered(rows: pd.DataFrame, setting: str) -> pd.DataFrame:
    """Return the rows whose setting is a number, with that number as `size`."""
    return rows.assign(size=pd.to_numeric(rows[setting], errors="coerce")).dropna(subset="size")


def exponents(rows: pd.DataFrame, x: str, *by: str, window: Window = WHOLE) -> pd.Series:
    """Return p of value ~ x^p for every (by ..., seed): least squares of log value on log x inside the window.

    Values that are not positive have no logarithm and are left out; nan with fewer than MIN_POINTS others. The mean
    over seeds of these is the slope of the geometric mean, and seeds are independent.
    """
    positive = rows[(rows["value"] > 0) & (rows[x] > 0)]
    kept = positive[within(positive[x], window)]
    slopes = {
        key if isinstance(key, tuple) else (key,): _exponent(curve[x], curve["value"])
        for key, curve in kept.groupby([*by, "seed"], sort=True)
    }
    index = pd.MultiIndex.from_tuples(list(slopes), names=[*by, "seed"])
    return pd.Series(list(slopes.values()), index=index, dtype=float)


def least_squares(x: Numbers, y: Numbers) -> float:
    """Return the slope of y on x; nan where x has no spread."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    return float(centred @ y) / spread if spread > 0 else float("nan")


def _exponent(x: pd.Series, values: pd.Series) -> float:
    if x.nunique() < MIN_POINTS:
        return float("nan")
    return least_squares(np.log(x.to_numpy(float)), np.log(values.to_numpy(float)))


def gaps(rows: pd.DataFrame, *by: str, window: Window) -> pd.Series:
    """Return the exponent of W_Q minus that of W_V by (by ..., seed)."""
    slopes = exponents(diagonal_rows(rows[rows["row"].isin(_PAIR)]), "sigma", *by, "row", window=window)
    if not set(_PAIR) <= set(slopes.index.get_level_values("row")):
        return pd.Series(dtype=float)
    query, value = (slopes.xs(name, level="row") for name in _PAIR)
    return (query - value).dropna()
