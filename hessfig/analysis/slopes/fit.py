"""Fitted growth rates: slope, error and verdict of every curve on every window."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.axis import SIGMA, Axis, X, along, check_places
from hessfig.analysis.curves import of_quantity, quantity_to_fit, seed_matrix
from hessfig.analysis.manifest import Architectures, read_run
from hessfig.analysis.slopes.bootstrap import ARITHMETIC, RESAMPLES, fit_slope
from hessfig.analysis.slopes.printed import rich_table
from hessfig.analysis.slopes.published import published_slope
from hessfig.analysis.slopes.verdicts import judge
from hessfig.analysis.table import in_reading_order
from hessfig.analysis.windows import Window, check_windows, within
from hessfig.files import write_text
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import GrowthRate, Prediction, Regime, growth_rate
from hessfig.record import CURVE, FROBENIUS, Status
from hessfig.terms import Block, Part

__all__ = ["SLOPES", "fit_slopes", "rich_table", "run", "write_slopes"]

Key = tuple[str, int, int, int, str, str, str, str, int]
SLOPES = "slopes.csv"

_FITTED = ["window_low", "window_high", "slope", "slope_se", "ci_low", "ci_high"]
_COMPARED = ["predicted", "verdict", "published", "prediction", "regime", "reference"]
_EVIDENCE = [
    *["lower_half", "lower_half_se", "num_points", "num_seeds", "num_nonfinite", "num_not_converged"],
    *["is_zero", "x_high", "axis"],
]
COLUMNS = [*CURVE, *_FITTED, *_COMPARED, *_EVIDENCE]


def run(
    folder: Path,
    windows: Sequence[Window],
    *,
    tolerance: float = 0.1,
    resamples: int = RESAMPLES,
    seed: int | None = None,
    average: str = ARITHMETIC,
    quantity: str | None = None,
    among: Collection[str] | None = None,
    preset: str = "",
) -> pd.DataFrame:
    """Fit every curve of folder/table.csv, write folder/slopes.csv and return it as a table.

    `seed` of the bootstrap: the first seed of the run, as in figures, unless told. `quantity` and `among`: see
    quantity_to_fit; the others of the table are listed in `attrs`, under "others". Raises UserError for a bad table,
    manifest or window.
    """
    measured = read_run(folder)
    fitted = quantity_to_fit(measured.table, quantity, among)
    frame = fit_slopes(
        measured.table,
        measured.architectures,
        windows,
        axis=measured.axis,
        quantity=fitted,
        tolerance=tolerance,
        resamples=resamples,
        seed=measured.first_seed if seed is None else seed,
        average=average,
        preset=preset,
    )
    write_slopes(frame, folder / SLOPES)
    frame.attrs["others"] = [name for name in measured.table["quantity"].unique() if name != fitted]
    return frame


def fit_slopes(
    table: pd.DataFrame,
    architectures: Architectures,
    windows: Sequence[Window],
    *,
    axis: Axis = SIGMA,
    quantity: str = FROBENIUS,
    tolerance: float = 0.1,
    resamples: int = RESAMPLES,
    seed: int = 0,
    average: str = ARITHMETIC,
    preset: str = "",
) -> pd.DataFrame:
    """Return one row per curve and window: log-log least squares of the mean over seeds (`average`: which mean).

    Errors are those of bootstrap.fit_slope, predicted exponents those of predictions.growth_rates, published
    slopes those of data/published_slopes.csv; the latter two speak of Frobenius norms along sigma. `preset` is the
    shipped sweep whose network and task these are, "" for others: nobody published their slopes.
    """
    check_windows(windows)
    numbers = along(of_quantity(table, quantity), axis)
    check_places(numbers, axis)
    originals = dict(list(numbers.groupby(CURVE)))
    rows = [
        _context(key, preset, window, architectures, axis)
        | _row(values, window, resamples, seed, average)
        | _measure_of(originals[key], window)
        for key, values in seed_matrix(numbers, axis=axis, quantity=quantity).groupby(level=CURVE, sort=False)
        for window in windows
    ]
    frame = pd.DataFrame(rows).astype({"predicted": float, "window_low": float, "window_high": float})
    frame = in_reading_order(frame, numbers)
    return frame.assign(verdict=[judge(row, tolerance).value for row in frame.itertuples()])[COLUMNS]


def write_slopes(frame: pd.DataFrame, path: Path) -> None:
    """Write the table as CSV, in one move."""
    write_text(path, frame.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def _row(values: pd.DataFrame, window: Window, resamples: int, seed: int, average: str) -> dict[str, Any]:
    places = values.columns.to_numpy(float)
    inside = values.loc[:, within(places, window) & (places > 0)]  # a place at 0 has no logarithm
    numbers, x = inside.to_numpy(float), inside.columns.to_numpy(float)
    fit = fit_slope(numbers, x, resamples=resamples, seed=seed, average=average)
    low, high = window
    return {"window_low": low, "window_high": high, **asdict(fit)}


def _context(
    key: Key, preset: str, window: Window, architectures: Architectures, axis: Axis
) -> dict[str, Any]:
    """Return what the slope is compared with: the prediction and the published slope."""
    variant, num_layers, layer, row_layer, row, col, part, quantity, _ = key
    block, of_norms = Block(layer, row, col, row_layer), quantity == FROBENIUS and axis.is_sigma
    rate = _rate(block, part, architectures.get((variant, num_layers)), of_norms=of_norms)
    shown = of_norms and not variant and not block.is_across
    return {
        **dict(zip(CURVE, key, strict=True)),
        "axis": axis.name,
        "predicted": rate.exponent,
        "prediction": rate.prediction.value,
        "regime": rate.regime.value,
        "reference": rate.reference,
        "published": published_slope(preset, row, col, part, window) if shown else math.nan,
    }


def _rate(block: Block, part: str, architecture: Architecture | None, *, of_norms: bool) -> GrowthRate:
    if of_norms and architecture is not None:
        return growth_rate(block, Part(part), architecture)
    reason = "no manifest.json beside the table" if of_norms else "predictions are for norms along sigma"
    return GrowthRate(Prediction.unknown, None, Regime.small_sigma, reason)


def _measure_of(rows: pd.DataFrame, window: Window) -> dict[str, Any]:
    inside = rows[within(rows[X], window)]
    return {
        "is_zero": bool((rows["status"] == Status.structural_zero).all()),
        "num_nonfinite": int((inside["status"] == Status.nonfinite).sum()),
        "num_not_converged": int((inside["status"] == Status.not_converged).sum()),
        "x_high": inside[X].max(),
    }
