"""Fitted growth rates: slope, error and verdict of every curve on every window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hessfig.analysis.curves import seed_matrix
from hessfig.analysis.manifest import Architectures, read_sweep
from hessfig.analysis.slopes.bootstrap import ARITHMETIC, fit_slope
from hessfig.analysis.slopes.published import published_slope
from hessfig.analysis.slopes.verdicts import Verdict, judge
from hessfig.analysis.table import CURVE, in_reading_order, short_variant
from hessfig.analysis.windows import Window, as_window, check_windows, label, within
from hessfig.files import write_text
from hessfig.predictions.growth_rates import GrowthRate, Prediction, Regime, growth_rate
from hessfig.terms import Block, Matrix, Part

if TYPE_CHECKING:
    from rich.table import Table

Key = tuple[str, int, int, str, str, str]
SLOPES = "slopes.csv"
UNPREDICTED = GrowthRate(Prediction.unknown, None, Regime.small_sigma, "no manifest.json beside the table")

_FITTED = ["window_low", "window_high", "slope", "slope_se", "ci_low", "ci_high"]
_COMPARED = ["predicted", "verdict", "published", "prediction", "regime", "reference"]
_EVIDENCE = [
    "lower_half",
    "lower_half_se",
    "num_points",
    "num_seeds",
    "num_nonfinite",
    "is_zero",
    "sigma_high",
]
COLUMNS = [*CURVE, *_FITTED, *_COMPARED, *_EVIDENCE]


def run(
    folder: Path,
    windows: Sequence[Window],
    *,
    tolerance: float = 0.1,
    resamples: int = 2000,
    seed: int = 0,
    average: str = ARITHMETIC,
) -> pd.DataFrame:
    """Fit every curve of folder/table.csv, write folder/slopes.csv and return it as a table.

    Raises UserError for a bad table, manifest or window.
    """
    table, architectures = read_sweep(folder)
    options = {"tolerance": tolerance, "resamples": resamples, "seed": seed, "average": average}
    frame = fit_slopes(table, architectures, windows, **options)  # type: ignore[arg-type]
    write_slopes(frame, folder / SLOPES)
    return frame


def fit_slopes(
    table: pd.DataFrame,
    architectures: Architectures,
    windows: Sequence[Window],
    *,
    tolerance: float = 0.1,
    resamples: int = 2000,
    seed: int = 0,
    average: str = ARITHMETIC,
) -> pd.DataFrame:
    """Return one row per curve and window: log-log least squares of the mean over seeds (`average`: which mean).

    Errors are those of bootstrap.fit_slope, predicted exponents those of theory.growth_rates, published
    slopes those of data/published_slopes.csv.
    """
    check_windows(windows)
    sweep, originals = str(table["sweep"].iloc[0]), dict(list(table.groupby(CURVE)))
    rows = [
        _context(key, sweep, window, architectures)
        | _row(values, window, resamples, seed, average)
        | _measure_of(originals[key], window)
        for key, values in seed_matrix(table).groupby(level=CURVE, sort=False)
        for window in windows
    ]
    frame = pd.DataFrame(rows).astype({"predicted": float, "window_low": float, "window_high": float})
    frame = in_reading_order(frame, table)
    return frame.assign(verdict=[judge(row, tolerance).value for row in frame.itertuples()])[COLUMNS]


def write_slopes(frame: pd.DataFrame, path: Path) -> None:
    """Write the table as CSV, in one move."""
    write_text(path, frame.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def rich_table(frame: pd.DataFrame) -> Table:
    """Return the slopes as a table that fits a terminal; a column that says nothing here is left out."""
    from rich import box
    from rich.table import Table

    shown = {title: [cell(row) for row in frame.itertuples()] for title, cell in _CELLS.items()}
    shown = {title: cells for title, cells in shown.items() if any(cells)}
    title = "Growth rates: slope of log ||block||_F against log sigma"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown:
        table.add_column(name, no_wrap=name not in ("variant", "verdict"))
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def _row(values: pd.DataFrame, window: Window, resamples: int, seed: int, average: str) -> dict[str, Any]:
    inside = values.loc[:, within(values.columns.to_numpy(float), window)]
    numbers, sigma = inside.to_numpy(float), inside.columns.to_numpy(float)
    fit = fit_slope(numbers, sigma, resamples=resamples, seed=seed, average=average)
    low, high = window
    return {"window_low": low, "window_high": high, **asdict(fit)}


def _context(key: Key, sweep: str, window: Window, architectures: Architectures) -> dict[str, Any]:
    """Return what the slope is compared with: the prediction and the published slope."""
    variant, num_layers, layer, row, col, part = key
    architecture = architectures.get((variant, num_layers))
    block = Block(layer, Matrix(row), Matrix(col))
    rate = UNPREDICTED if architecture is None else growth_rate(block, Part(part), architecture)
    return {
        **dict(zip(CURVE, key, strict=True)),
        "predicted": rate.exponent,
        "prediction": rate.prediction.value,
        "regime": rate.regime.value,
        "reference": rate.reference,
        "published": math.nan if variant else published_slope(sweep, row, col, part, window),
    }


def _measure_of(rows: pd.DataFrame, window: Window) -> dict[str, Any]:
    inside = rows[within(rows["sigma"], window)]
    return {
        "is_zero": bool((rows["status"] == "structural_zero").all()),
        "num_nonfinite": int((inside["status"] == "nonfinite").sum()),
        "sigma_high": inside["sigma"].max(),
    }


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _slope(row: Any) -> str:
    return (
        "= 0" if row.is_zero else _number(row.slope) + (f" ± {row.slope_se:.2f}" if row.slope_se >= 0 else "")
    )


def _interval(row: Any) -> str:
    return "" if math.isnan(row.ci_low) else f"[{row.ci_low:.2f}, {row.ci_high:.2f}]"


def _predicted(row: Any) -> str:
    return "= 0" if row.prediction == Prediction.structural_zero else _number(row.predicted, 0)


_SHORT: dict[str, str] = {Verdict.structural_zero: "agrees", Verdict.no_prediction: "-"}
_CELLS: dict[str, Callable[[Any], str]] = {
    "variant": lambda row: short_variant(row.variant),
    "layer": lambda row: f"{row.layer}/{row.num_layers}",
    "block": lambda row: row.row if row.row == row.col else f"{row.row}, {row.col}",
    "part": lambda row: row.part,
    "window": lambda row: label(as_window(row.window_low, row.window_high)),
    "slope ± se": _slope,
    "95 % interval": _interval,
    "theory": _predicted,
    "paper": lambda row: _number(row.published),
    "not finite": lambda row: str(row.num_nonfinite or ""),
    "verdict": lambda row: _SHORT.get(row.verdict, row.verdict),
}
