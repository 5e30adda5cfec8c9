"""Mean levels of curves in windows, such as plateaus, with errors over seeds, and their trends in varied settings."""

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, concat

from hessfig.analysis.axis import (
    DEPTH,
    SIGMA,
    Axis,
    X,
    along,
    as_numbers,
    check_places,
    varied_settings,
)
from hessfig.analysis.curves import of_quantity, quantity_to_fit, seed_matrix
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.manifest import read_run
from hessfig.analysis.presented import write_csv
from hessfig.analysis.slopes.fit import ARITHMETIC, GEOMETRIC, fit_slope
from hessfig.analysis.slopes.printed import Window, check_windows, within
from hessfig.analysis.table import in_reading_order
from hessfig.record import CURVE, FROBENIUS

LEVELS, TRENDS = "levels.csv", "trends.csv"
_WINDOW = ["window_low", "window_high"]
_FOUND = [
    "level",
    "level_se",
    "ci_low",
    "ci_high",
    "num_points",
    "num_seeds",
    "average",
    "axis",
]
_TREND = [
    "setting",
    "exponent",
    "exponent_se",
    "ci_low",
    "ci_high",
    "num_values",
    "num_seeds",
    "axis",
]


def run(
    folder: Path,
    windows: Sequence[Window],
    *,
    average: str = ARITHMETIC,
    quantity: str | None = None,
    among: Collection[str] | None = None,
) -> tuple[DataFrame, DataFrame]:
    """Write folder/levels.csv and folder/trends.csv and return both. For `quantity` and `among` see quantity_to_fit.

    Raises UserError for an invalid table or window.
    """
    measured = read_run(folder)
    fitted = quantity_to_fit(measured.table, quantity, among)
    of_seeds = _of_seeds(
        measured.table, windows, axis=measured.axis, quantity=fitted, average=average
    )
    levels = _over_seeds(of_seeds, measured.axis, average)
    trends = _trends(of_seeds, measured.axis)
    write_csv({folder / LEVELS: levels, folder / TRENDS: trends}, "table of levels")
    return levels, trends


def window_levels(
    table: DataFrame,
    windows: Sequence[Window],
    *,
    axis: Axis = SIGMA,
    quantity: str = FROBENIUS,
    average: str = ARITHMETIC,
) -> DataFrame:
    """Return one row per curve and window: the mean level, with its error and 95 % interval over seeds.

    The level of a seed is its mean over the places of the window, each with the same
    weight. Seeds are independent, so the error is their standard deviation / sqrt(n),
    and the interval uses Student's t with n - 1 degrees of freedom (both nan for one
    seed). Places without numbers are left out, and then seeds that lack a number at
    another place. With average=geometric both means are geometric, and the interval is
    that of the logarithm.
    """
    return _over_seeds(
        _of_seeds(table, windows, axis=axis, quantity=quantity, average=average),
        axis,
        average,
    )


def _of_seeds(
    table: DataFrame,
    windows: Sequence[Window],
    *,
    axis: Axis,
    quantity: str,
    average: str,
) -> DataFrame:
    """Return the level of every curve, window and seed; nan where a seed has none."""
    check_windows(windows)
    numbers = along(of_quantity(table, quantity), axis)
    check_places(numbers, axis)
    wide = seed_matrix(numbers, axis, quantity)
    places = wide.columns.to_numpy(float)
    frames = []
    for rank, (low, high) in enumerate(windows):
        inside = wide.loc[:, within(places, (low, high))]
        for _, curve in inside.groupby(level=CURVE, sort=False):
            known = curve.dropna(axis="columns", how="all")
            level = _mean(known.to_numpy(float), average)
            here = curve.index.to_frame(index=False).assign(
                rank=rank, window_low=low, window_high=high
            )
            frames.append(here.assign(level=level, num_points=known.shape[1]))
    frame = concat(frames, ignore_index=True).astype(dict.fromkeys(_WINDOW, float))
    frame = frame.assign(sigma=math.nan, step=math.nan)  # a level has no single place
    return in_reading_order(
        frame.sort_values("rank", kind="stable", ignore_index=True), numbers
    )


def _mean(values: np.ndarray, average: str) -> np.ndarray:
    """Return the mean of each seed over places; nan if a place is missing, or if a value has no logarithm."""
    if not values.shape[1]:
        return np.full(len(values), math.nan)
    if average != GEOMETRIC:
        return values.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.exp(np.log(values).mean(axis=1))
    return np.where(means > 0, means, math.nan)


def _over_seeds(of_seeds: DataFrame, axis: Axis, average: str) -> DataFrame:
    rows = []
    for key, seeds in of_seeds.groupby([*CURVE, "rank"], sort=False):
        level = seeds["level"].dropna().to_numpy(float)
        shared = dict(zip(CURVE, key, strict=False)) | {
            name: seeds[name].iloc[0] for name in (*_WINDOW, "num_points")
        }
        rows.append(
            shared
            | _found(level, average)
            | {"num_seeds": len(level), "average": average, "axis": axis.name}
        )
    return DataFrame(rows, columns=[*CURVE, *_WINDOW, *_FOUND])


def _found(level: np.ndarray, average: str) -> dict[str, float]:
    interval = student_interval(np.log(level) if average == GEOMETRIC else level)
    ends = (interval.mean, interval.low, interval.high)
    mean, low, high = map(math.exp, ends) if average == GEOMETRIC else ends
    se = interval.se * mean if average == GEOMETRIC else interval.se
    return {"level": mean, "level_se": se, "ci_low": low, "ci_high": high}


def _trends(of_seeds: DataFrame, axis: Axis) -> DataFrame:
    """Return the exponent of level ~ setting^exponent for every varied setting of three or more positive numbers.

    The fit, its error and its interval are those of fit.fit_slope: the values of a
    setting share their seeds.
    """
    rows: list[Any] = []
    for setting in _settings(of_seeds):
        rows.extend(_trend(along(of_seeds, Axis(setting)), setting, axis))
    return DataFrame(rows, columns=[*CURVE, *_WINDOW, *_TREND])


def _settings(of_seeds: DataFrame) -> Iterator[str]:
    """Yield the varied settings along which there is a curve: numbers, at least three of them, all above zero."""
    for key, texts in varied_settings(of_seeds["variant"].unique()).items():
        values = as_numbers(set(texts))
        if values and len(values) > 2 and min(values) > 0:
            yield key
    if len(of_seeds["num_layers"].unique()) > 2:
        yield DEPTH


def _trend(levels: DataFrame, setting: str, axis: Axis) -> Iterator[dict[str, Any]]:
    for key, curve in levels.groupby([*CURVE, "rank"], sort=False):
        wide = curve.set_index(["seed", X])["level"].unstack(X)  # noqa: PD010 - one level a seed and place
        fit = fit_slope(wide.to_numpy(float), wide.columns.to_numpy(float))
        if fit.num_points:
            slope = (
                fit.slope,
                fit.slope_se,
                fit.ci_low,
                fit.ci_high,
                fit.num_points,
                fit.num_seeds,
            )
            numbers = (setting, *slope, axis.name)
            windows = {name: curve[name].iloc[0] for name in _WINDOW}
            yield (
                dict(zip(CURVE, key, strict=False))
                | windows
                | dict(zip(_TREND, numbers, strict=True))
            )
