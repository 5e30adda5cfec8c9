"""Fits of growth rates: slopes of means over seeds and their errors, next to predictions and published values."""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, MultiIndex, Series

from hessfig.analysis.axis import SIGMA, Axis, X, along, check_places
from hessfig.analysis.curves import of_quantity, quantity_to_fit, seed_matrix
from hessfig.analysis.intervals import half_width
from hessfig.analysis.manifest import Architectures, read_run
from hessfig.analysis.presented import write_csv
from hessfig.analysis.slopes.printed import Window, check_windows, judge, within
from hessfig.analysis.table import in_reading_order
from hessfig.errors import UserError, did_you_mean
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import (
    GrowthRate,
    Prediction,
    borders,
    growth_rate,
    regime_between,
)
from hessfig.predictions.network_series import Regime
from hessfig.record import CURVE, FROBENIUS, LEFT_OUT, Status
from hessfig.terms import Block, Part

PublishedKey = tuple[str, str, str, str, Window]


@cache
def published_slopes() -> dict[PublishedKey, tuple[float, float]]:
    """Return the slope of each published mean curve on exactly one window, and its standard error.

    The record holds for every layer and depth the paper shows for that block.
    """
    text = files("hessfig.data").joinpath("published_slopes.csv").read_text()
    slopes = {}
    for row in csv.DictReader(text.splitlines()):
        window = (_end(row["window_low"]), _end(row["window_high"]))
        key = (row["sweep"], row["row"], row["col"], row["part"], window)
        slopes[key] = float(row["slope"]), float(row["slope_se"] or "nan")
    return slopes


def _end(text: str) -> float | None:
    return float(text) if text else None


Array = NDArray[np.float64]
MIN_POINTS = 3
ARITHMETIC, GEOMETRIC = "arithmetic", "geometric"


@dataclass(frozen=True)
class Fit:
    """A fitted slope: its standard error over seeds, its 95 % interval, and what it rests on.

    `lower_half` and `lower_half_se` belong to the lower half of the points (the smaller
    sigmas). They distinguish an exponent that is reached as sigma -> 0 from a wrong
    one. Values that cannot be computed are nan.
    """

    slope: float = math.nan
    slope_se: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    lower_half: float = math.nan
    lower_half_se: float = math.nan
    num_points: int = 0
    num_seeds: int = 0


def fit_slope(values: Array, sigma: Array, *, average: str = ARITHMETIC) -> Fit:
    """Fit log(mean over seeds) = a + slope * log(sigma) by least squares; rows of `values` are seeds.

    The mean is arithmetic or geometric. Norms that grow like sigma^54 differ by decades
    between seeds: one or two dominate the arithmetic mean, whose error nothing can
    estimate; the geometric mean is well determined. Missing values (nan) are left out
    of the means.

    Points of one seed share their weights along sigma and are not independent; seeds
    are. The error is therefore that of the jackknife, from the slopes b_i that are
    fitted without seed i (Efron and Stein 1981):

        se^2 = (n - 1) / n * sum_i (b_i - mean b)^2,    interval: slope +- t_(n-1) se.

    For geometric means se is exactly the standard error of the mean over seeds of each
    seed's slope. Intervals contain 92 to 96 % of true slopes with 3, 5 and 20 seeds,
    also of heavy-tailed numbers (docs/accuracy.md).

    >>> sigma = np.array([0.1, 0.2, 0.4, 0.8])
    >>> fit = fit_slope(np.array([sigma**1.9, sigma**2.0, sigma**2.1]), sigma, average=GEOMETRIC)
    >>> print(f"{fit.slope:.3f} {fit.slope_se:.3f} [{fit.ci_low:.3f}, {fit.ci_high:.3f}]")
    2.000 0.058 [1.752, 2.248]
    """
    log_means, sigma, values = _usable(values, sigma, average)
    if sigma.size < MIN_POINTS:
        return Fit(num_points=sigma.size)
    values = values[np.isfinite(values).any(axis=1)]
    # A network that no seed changes.
    if all(np.array_equal(one, values[0], equal_nan=True) for one in values):
        values = values[:1]
    num_seeds = len(values)
    without_one = _log_means(1 - np.eye(num_seeds), values, average)
    slope, se = _slope_and_error(log_means, without_one, sigma)
    reach = half_width(se, num_seeds)
    half = math.ceil(sigma.size / 2)
    lower, lower_se = _slope_and_error(
        log_means[:half], without_one[:, :half], sigma[:half]
    )
    return Fit(
        slope=slope,
        slope_se=se,
        ci_low=slope - reach,
        ci_high=slope + reach,
        lower_half=lower,
        lower_half_se=lower_se,
        num_points=sigma.size,
        num_seeds=num_seeds,
    )


def _usable(values: Array, sigma: Array, average: str) -> tuple[Array, Array, Array]:
    """Return log means, sigmas and values at the sigmas with a positive mean; zeros have no geometric mean."""
    values = np.where(values > 0, values, np.nan) if average == GEOMETRIC else values
    known = np.isfinite(values)
    keep = known.any(axis=0) & (np.where(known, values, 0.0).sum(axis=0) > 0)
    log_means = _log_means(np.ones((1, len(values))), values[:, keep], average)[0]
    return log_means, sigma[keep], values[:, keep]


def _log_means(weights: Array, values: Array, average: str) -> Array:
    """Return the log of the weighted mean over seeds for each row of `weights`; nan or -inf where it does not exist."""
    known = np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.log(values) if average == GEOMETRIC else values
        means = (weights @ np.where(known, terms, 0.0)) / (
            weights @ known.astype(float)
        )
        return means if average == GEOMETRIC else np.log(means)


def _slope_and_error(
    log_means: Array, without_one: Array, sigma: Array
) -> tuple[float, float]:
    """Return the slope of the means, and its error from the means without each seed in turn; nan if unknown."""
    if sigma.size < MIN_POINTS:
        return math.nan, math.nan
    slopes = np.array([_slope(one, sigma) for one in without_one])
    count = len(slopes)
    se = math.nan
    if count > 1:
        se = math.sqrt((count - 1) / count * ((slopes - slopes.mean()) ** 2).sum())
    return _slope(log_means, sigma), se


def _slope(log_means: Array, sigma: Array) -> float:
    """Return the least-squares slope over the places with a mean; nan for fewer than two."""
    known = np.isfinite(log_means)
    if known.sum() < 2:
        return math.nan
    places = np.log(sigma[known])
    centred = places - places.mean()
    return float(log_means[known] @ (centred / (centred @ centred)))


Key = tuple[str, int, int, int, str, str, str, str, int]
SLOPES = "slopes.csv"

_FITTED = ["window_low", "window_high", "slope", "slope_se", "ci_low", "ci_high"]
_COMPARED = [
    *[
        "predicted",
        "verdict",
        "tolerance",
        "published",
        "published_se",
        "joint_se",
        "prediction",
        "regime",
    ],
    "reference",
]
_EVIDENCE = [
    *[
        "lower_half",
        "lower_half_se",
        "num_points",
        "num_seeds",
        "num_nonfinite",
        "num_not_converged",
    ],
    *["is_zero", "x_high", "axis"],
]
COLUMNS = [*CURVE, *_FITTED, *_COMPARED, *_EVIDENCE]


@dataclass(frozen=True)
class FitSettings:
    """Settings of fits and verdicts: `average` over seeds, `tolerance` of the verdict.

    `preset` names the shipped sweep with this network and task; it is "" for other
    sweeps, which have no published slopes. `predictions` replace the theory's exponents
    by block and part ("zero": the block vanishes) and apply to every window.
    """

    average: str = ARITHMETIC
    tolerance: float = 0.1
    preset: str = ""
    predictions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def own_predictions(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the exponents that the sweep itself predicts, from its manifest. Raises UserError for anything else."""
    stated = config.get("sweep", {}).get("predictions") or {}
    try:
        predictions: dict[str, dict[str, Any]] = {}
        for block, parts in stated.items():
            predictions[block] = {}
            for part, one in parts.items():
                predictions[block][part] = one if one == "zero" else float(one)
        return predictions
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            "the manifest's sweep.predictions are not exponents",
            got=str(stated)[:200],
            allowed="{block: {part: exponent}}, zero for a block that vanishes",
            remedy="measure the sweep again, or repair its file",
        ) from error


def write_slopes(
    folder: Path,
    windows: Sequence[Window],
    settings: FitSettings = FitSettings(),
    *,
    quantity: str | None = None,
    among: Collection[str] | None = None,
) -> DataFrame:
    """Fit every curve of folder/table.csv, write folder/slopes.csv and return it as a table.

    For `quantity` and `among` see quantity_to_fit. The other quantities of the table
    are listed in `attrs["others"]`. Raises UserError for an invalid table, manifest or
    window.
    """
    measured = read_run(folder)
    fitted = quantity_to_fit(measured.table, quantity, among)
    frame = fit_slopes(
        measured.table,
        measured.architectures,
        windows,
        settings,
        axis=measured.axis,
        quantity=fitted,
    )
    write_csv({folder / SLOPES: frame}, "table of slopes")
    frame.attrs["others"] = [
        name for name in measured.table["quantity"].unique() if name != fitted
    ]
    return frame


def fit_slopes(
    table: DataFrame,
    architectures: Architectures,
    windows: Sequence[Window],
    settings: FitSettings = FitSettings(),
    *,
    axis: Axis = SIGMA,
    quantity: str = FROBENIUS,
) -> DataFrame:
    """Return one row per curve and window: the log-log least-squares fit of the mean over seeds.

    Errors come from `fit_slope`, predicted exponents from predictions.growth_rates,
    published slopes from data/published_slopes.csv, with the joint error of the
    difference where the published error is known. The latter two exist for Frobenius
    norms along sigma only.
    """
    check_windows(windows)
    numbers = along(of_quantity(table, quantity), axis)
    check_places(numbers, axis)
    _check_stated(settings.predictions, numbers)
    originals = dict(list(numbers.groupby(CURVE)))
    rows = []
    for key, values in seed_matrix(numbers, axis, quantity).groupby(
        level=CURVE, sort=False
    ):
        for window in windows:
            context = _context(
                key, settings, window, architectures, axis, _reach(values, window)
            )
            found = _row(values, window, settings) | _measure_of(
                originals[key], window, context["prediction"]
            )
            rows.append(context | found | _stated_zero(key, originals, settings))
    frame = DataFrame(rows).astype(
        {"predicted": float, "window_low": float, "window_high": float}
    )
    frame = in_reading_order(frame, numbers)
    frame = frame.assign(joint_se=np.hypot(frame["slope_se"], frame["published_se"]))
    verdicts = [judge(row, settings.tolerance).value for row in frame.itertuples()]
    return frame.assign(verdict=verdicts, tolerance=settings.tolerance)[COLUMNS]


# Shares of the norm of H that count as zero where a sweep states zero.
ROUNDING = {"float64": 1e-10, "float32": 1e-4}


def _stated_zero(
    key: Key, originals: Mapping[Key, DataFrame], settings: FitSettings
) -> dict[str, Any]:
    """Return that a block is zero if the sweep states so and its numbers are at most a share ROUNDING of those of H.

    Otherwise return nothing; the status of the numbers then decides. A user's own
    network has no structural zeros, and products with its H_f are differences of other
    products.
    """
    _, _, _, _, row, col, part, _, _ = key
    if _stated_of(settings, row, col, part) != "zero":
        return {}
    rows = originals[key]
    whole = originals.get((*key[:6], Part.H.value, *key[7:]))
    place = [X, "seed"]
    bound = Series(0.0, index=MultiIndex.from_frame(rows[place]))
    if whole is not None and part != Part.H:
        bound = whole.set_index(place)["value"].abs().reindex(bound.index).fillna(0.0)
    sizes = rows["value"].abs().to_numpy()
    share = rows["dtype"].map(ROUNDING).fillna(0.0).to_numpy()
    return {"is_zero": True} if (sizes <= share * bound.to_numpy()).all() else {}


def _stated_of(settings: FitSettings, row: str, col: str, part: str) -> Any:
    return settings.predictions.get(row if row == col else f"{row},{col}", {}).get(part)


def _row(values: DataFrame, window: Window, settings: FitSettings) -> dict[str, Any]:
    places = values.columns.to_numpy(float)
    inside = within(places, window) & (places > 0)  # 0 has no logarithm
    numbers = values.loc[:, inside].to_numpy(float)
    fit = fit_slope(numbers, places[inside], average=settings.average)
    low, high = window
    return {"window_low": low, "window_high": high, **asdict(fit)}


def _reach(values: DataFrame, window: Window) -> tuple[float, float]:
    """Return the first and the last place in the window, or the window itself if it holds none."""
    places = values.columns.to_numpy(float)
    inside = places[within(places, window) & (places > 0)]
    low, high = window
    if inside.size:
        return (float(inside.min()), float(inside.max()))
    return (low or 0.0, high or math.inf)


def _context(
    key: Key,
    settings: FitSettings,
    window: Window,
    architectures: Architectures,
    axis: Axis,
    reach: tuple[float, float],
) -> dict[str, Any]:
    """Return the values to compare the slope with: the prediction for the window's regime, and the published slope."""
    variant, num_layers, layer, row_layer, row, col, part, quantity, _ = key
    block = Block(layer, row, col, row_layer)
    of_norms = quantity == FROBENIUS and axis.is_sigma
    stated = _stated_of(settings, row, col, part)
    theory = _rate(
        block, part, architectures.get((variant, num_layers)), reach, of_norms=of_norms
    )
    rate = theory if stated is None else _stated(stated)
    published = error = math.nan
    known = (settings.preset, row, col, part, window)
    if of_norms and not variant and not block.is_across and known in published_slopes():
        published, error = published_slopes()[known]
    return {
        **dict(zip(CURVE, key, strict=True)),
        "axis": axis.name,
        "predicted": rate.exponent,
        "prediction": rate.prediction.value,
        "regime": rate.regime.value,
        "reference": rate.reference,
        "published": published,
        "published_se": error,
    }


def _stated(exponent: float | str) -> GrowthRate:
    kind = Prediction.structural_zero
    power = None
    if exponent != "zero":
        kind = Prediction.exponent
        power = float(exponent)
    return GrowthRate(kind, power, Regime.every_sigma, "sweep.predictions")


def _check_stated(
    predictions: Mapping[str, Mapping[str, Any]], numbers: DataFrame
) -> None:
    """Raise UserError for a stated exponent of a block or part that the table does not hold."""
    blocks = numbers["row"].where(
        numbers["row"] == numbers["col"], numbers["row"] + "," + numbers["col"]
    )
    known = sorted((blocks + ": " + numbers["part"]).unique())
    unknown = []
    for block, parts in predictions.items():
        stated = [f"{block}: {part}" for part in parts]
        unknown += [name for name in stated if name not in known]
    if unknown:
        raise UserError(
            "sweep.predictions: the table has no such block and part",
            got=unknown[0],
            allowed="; ".join(known[:20]),
            remedy=did_you_mean(unknown[0], known) or "leave it out",
        )


def _rate(
    block: Block,
    part: str,
    architecture: Architecture | None,
    reach: tuple[float, float],
    *,
    of_norms: bool,
) -> GrowthRate:
    reason = "predictions are for norms along sigma"
    if of_norms:
        reason = "no manifest.json next to the table"
    if of_norms and architecture is not None:
        regime = regime_between(architecture, *reach)
        rate = growth_rate(
            block, Part(part), architecture, regime or Regime.small_sigma
        )
        if regime or rate.regime == Regime.every_sigma:
            return rate
        reason = _across(architecture, reach)
    return GrowthRate(Prediction.unknown, None, Regime.small_sigma, reason)


ACROSS = "no prediction where a window does not lie in one regime of sigma"


def _across(architecture: Architecture, reach: tuple[float, float]) -> str:
    """Return why the window has no prediction, and which windows have one."""
    reached = " to ".join(f"{sigma:.2g}" for sigma in reach)
    meet = ", ".join(f"{sigma:.2g}" for sigma in borders(architecture))
    return (
        f"{ACROSS}: this one reaches from {reached}; "
        f"regimes begin or end at {meet} (sweep.windows)"
    )


def _measure_of(rows: DataFrame, window: Window, prediction: str) -> dict[str, Any]:
    inside = rows[within(rows[X], window)]
    kept = inside[~inside["status"].isin(LEFT_OUT)]
    # By theory: then a number that is 0 is one.
    vanishes = prediction == Prediction.structural_zero
    zero = (kept["status"] == Status.structural_zero) | (
        vanishes & (kept["value"] == 0)
    )
    return {
        "is_zero": bool(zero.all() and len(zero)),
        "num_nonfinite": int((inside["status"] == Status.nonfinite).sum()),
        "num_not_converged": int((inside["status"] == Status.not_converged).sum()),
        "x_high": inside[X].max(),
    }
