"""Fitting windows, verdicts on slopes, and printed tables of slopes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from pandas import DataFrame

from hessfig.analysis.axis import Axis, short_variant
from hessfig.analysis.intervals import half_width
from hessfig.analysis.presented import terminal_table
from hessfig.errors import UserError, unknown_name
from hessfig.predictions.growth_rates import Prediction
from hessfig.predictions.network_series import Regime
from hessfig.record import FROBENIUS

if TYPE_CHECKING:
    from rich.table import Table


Window = tuple[float | None, float | None]
WHOLE: Window = (None, None)


def within(x: Any, window: Window) -> Any:
    """Return whether x (number, array or column; positive) lies in the window, up to rounding."""
    low, high = window
    inside = x >= (low or 0.0) * (1 - 1e-9)
    if high is not None:
        inside = inside & (x <= high * (1 + 1e-9))
    return inside


def label(window: Window, symbol: str = "σ") -> str:
    """Return the window in words for a figure, e.g. 'σ ≤ 0.1'; `symbol` is the symbol of the axis."""
    low, high = window
    if low is None and high is None:
        return f"all {symbol}"
    if low is None:
        return f"{symbol} ≤ {high:g}"
    return f"{symbol} ≥ {low:g}" if high is None else f"{low:g} ≤ {symbol} ≤ {high:g}"


def window_of(row: Any) -> Window:
    """Return the window of a row of slopes or levels, where nan stands for an open end."""
    low, high = row.window_low, row.window_high
    return (None if math.isnan(low) else low, None if math.isnan(high) else high)


def check_windows(windows: Sequence[Window]) -> None:
    """Raise UserError for windows that are empty intervals."""
    bad = [w for w in windows if len(w) != 2 or (None not in w and not w[0] < w[1])]  # type: ignore[operator]
    if bad or not windows:
        raise UserError(
            "sweep.windows: a fit needs windows [low, high]",
            got=[list(w) for w in bad] or "none",
            allowed="pairs with low < high; null leaves an end open",
            remedy="for example sweep.windows=[[null,1.0]]",
        )


class SlopeVerdict(StrEnum):
    """Outcome of comparing a slope with its prediction, at a tolerance t.

    agrees           |slope - predicted| <= t, and the slope is known well enough (2 se <= t)
    deviates         it is further off than t, and not by its own error alone; or a block does not vanish
                     that should
    asymptote only   as `deviates`, but the exponent is a limit for sigma -> 0 and the smaller half of the
                     sigmas agrees with it, known to se <= t: the curve bends away
                     inside the window, so that the law is that of the limit, not of
                     this window; no pass, and not a refutation
    undecided        the standard error is too large for t to tell anything (or there is one seed only)
    structural zero  every number is exactly zero, as predicted; where a sweep states it, up to rounding beside H
    no prediction    theory is silent
    too few points   fewer than three sigmas with a positive mean in the window
    """

    agrees = "agrees"
    deviates = "deviates"
    asymptote_only = "asymptote only"
    undecided = "undecided"
    structural_zero = "structural zero"
    no_prediction = "no prediction"
    too_few_points = "too few points"


class SlopeRow(Protocol):
    """The columns of slopes.csv that a verdict rests on."""

    slope: float
    slope_se: float
    lower_half: float
    lower_half_se: float
    num_points: int
    num_seeds: int
    is_zero: bool
    predicted: float
    prediction: str
    regime: str


def judge(row: SlopeRow, tolerance: float) -> SlopeVerdict:
    """Return the verdict on one row of the slopes table."""
    if row.prediction == Prediction.structural_zero:
        if row.is_zero:
            return SlopeVerdict.structural_zero
        return SlopeVerdict.deviates if row.num_points else SlopeVerdict.too_few_points
    if row.is_zero:
        if row.prediction == Prediction.exponent:
            return SlopeVerdict.deviates
        return SlopeVerdict.structural_zero
    if row.num_points < 3:
        return SlopeVerdict.too_few_points
    if row.prediction == Prediction.unknown:
        return SlopeVerdict.no_prediction
    return _judge_exponent(row, tolerance)


def _judge_exponent(row: SlopeRow, tolerance: float) -> SlopeVerdict:
    distance = abs(row.slope - row.predicted)
    error = row.slope_se if math.isfinite(row.slope_se) else math.inf
    reach = half_width(error, row.num_seeds) if row.num_seeds > 1 else math.inf
    if distance > tolerance + reach:
        if _lower_half_agrees(row, tolerance):
            return SlopeVerdict.asymptote_only
        return SlopeVerdict.deviates
    if 2 * error > tolerance or (distance > tolerance and reach > tolerance):
        return SlopeVerdict.undecided
    if distance > tolerance:
        if _lower_half_agrees(row, tolerance):
            return SlopeVerdict.asymptote_only
        return SlopeVerdict.deviates
    return SlopeVerdict.agrees


def _lower_half_agrees(row: SlopeRow, tolerance: float) -> bool:
    if (
        row.regime not in (Regime.small_sigma, Regime.between)
        or not row.lower_half_se <= tolerance
    ):
        return False
    return abs(row.lower_half - row.predicted) <= max(tolerance, 2 * row.lower_half_se)


def rich_table(frame: DataFrame) -> Table:
    """Return slopes, levels or trends as a table for a terminal."""
    from rich.markup import escape

    title, heads, rows = cells(frame)
    escaped = (list(map(escape, row)) for row in rows)
    return terminal_table(
        heads, escaped, title=escape(title), wrapped=("variant", "verdict")
    )


def cells(frame: DataFrame) -> tuple[str, list[str], list[Sequence[str]]]:
    """Return title, column heads and rows of slopes or levels for print, without columns that hold no information."""
    title, columns = _kind(frame)
    shown = {}
    for name, cell in columns.items():
        texts = list(map(cell, frame.itertuples()))
        if any(texts):
            shown[name] = texts
    return title, list(shown), list(zip(*shown.values(), strict=True))


def _kind(frame: DataFrame) -> tuple[str, dict[str, Callable[[Any], str]]]:
    if "slope" in frame:
        return _title(frame), _CELLS
    if "level" in frame:
        return f"Mean levels in windows: {frame['quantity'].iloc[0]}", _LEVELS
    return "How levels go with settings: level ~ setting^exponent", _TRENDS


def chosen(frame: DataFrame, *, rows: Any = None, parts: Any = None) -> DataFrame:
    """Return the rows with these row weights and parts (a name, a list, or None for all).

    Raises UserError for a name that no row has.
    """
    for column, key, wanted in (("row", "rows", rows), ("part", "part", parts)):
        if isinstance(wanted, list):
            names = wanted
        elif wanted is None:
            names = []
        else:
            names = [wanted]
        known = [name for name in frame[column].unique() if name]
        unknown = [name for name in names if name not in known]
        if unknown and len(frame):
            what = f"{key}: no line is of {unknown[0]}"
            otherwise = f"for example {key}={known[0]}"
            raise unknown_name(what, unknown[0], known, otherwise, got=", ".join(names))
        frame = frame[frame[column].isin(names)] if names else frame
    return frame


def _title(frame: DataFrame) -> str:
    quantity = frame["quantity"].iloc[0]
    axis = Axis(frame["axis"].iloc[0])
    if quantity == FROBENIUS:
        measured = "||block||_F"
    else:
        measured = str(quantity).replace("_", " ")
    against = "sigma" if axis.is_sigma else axis.symbol
    return f"Growth rates: slope of log {measured} against log {against}"


def _block(row: Any) -> str:
    if row.row_layer != row.layer:
        return f"{row.row} of {row.row_layer}, {row.col}"
    return row.row if row.row == row.col else f"{row.row}, {row.col}"


def window_words(row: Any) -> str:
    """Return the window of a row of slopes, levels or trends in words."""
    return label(window_of(row), Axis(row.axis).symbol)


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _with_error(value: str, error: float, digits: str = ".2f") -> str:
    return f"{value} ± {error:{digits}}" if error >= 0 else value


def _slope(row: Any) -> str:
    if row.is_zero:
        return "= 0"
    return _with_error(_number(row.slope), row.slope_se)


def _interval(row: Any) -> str:
    return "" if math.isnan(row.ci_low) else f"[{row.ci_low:.2f}, {row.ci_high:.2f}]"


def _predicted(row: Any) -> str:
    if row.prediction == Prediction.structural_zero:
        return "= 0"
    return _number(row.predicted, 0)


_SHORT: dict[str, str] = {
    SlopeVerdict.structural_zero: "agrees",
    SlopeVerdict.no_prediction: "-",
}
_CELLS: dict[str, Callable[[Any], str]] = {
    "variant": lambda row: short_variant(row.variant),
    "layer": lambda row: f"{row.layer}/{row.num_layers}" if row.num_layers else "",
    "block": _block,
    "part": lambda row: row.part,
    "number": lambda row: str(row.index or ""),
    "window": window_words,
    "slope ± se": _slope,
    "95 % interval": _interval,
    "theory": _predicted,
    "paper": lambda row: _number(row.published),
    "not finite": lambda row: str(row.num_nonfinite or ""),
    "verdict": lambda row: _SHORT.get(row.verdict, row.verdict),
}

_CURVE: dict[str, Callable[[Any], str]] = {
    name: _CELLS[name]
    for name in ("variant", "layer", "block", "part", "number", "window")
}
_LEVELS: dict[str, Callable[[Any], str]] = {
    **_CURVE,
    "level ± se": lambda row: _with_error(f"{row.level:.4g}", row.level_se, ".2g"),
    "95 % interval": lambda row: (
        "" if math.isnan(row.ci_low) else f"[{row.ci_low:.4g}, {row.ci_high:.4g}]"
    ),
    "points": lambda row: str(row.num_points),
    "seeds": lambda row: str(row.num_seeds),
}
_TRENDS: dict[str, Callable[[Any], str]] = {
    **_CURVE,
    "setting": lambda row: row.setting,
    "exponent ± se": lambda row: _with_error(_number(row.exponent), row.exponent_se),
    "95 % interval": _interval,
    "values": lambda row: str(row.num_values),
}
