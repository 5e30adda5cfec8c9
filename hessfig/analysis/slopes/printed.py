"""Slopes, and levels, as tables for a terminal: all of them, or those of some rows and parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd

from hessfig.analysis.axis import Axis
from hessfig.analysis.slopes.verdicts import Verdict
from hessfig.analysis.variants import short_variant
from hessfig.analysis.windows import as_window, label
from hessfig.errors import UserError, did_you_mean
from hessfig.predictions.growth_rates import Prediction
from hessfig.record import FROBENIUS

if TYPE_CHECKING:
    from rich.table import Table


def rich_table(frame: pd.DataFrame) -> Table:
    """Return the slopes as a table that fits a terminal; a column that says nothing here is left out."""
    return _table(frame, _title(frame), _CELLS)


def level_table(frame: pd.DataFrame) -> Table:
    """Return levels in windows, or their exponents in a varied setting, as a table that fits a terminal."""
    if "level" in frame:
        return _table(frame, f"Mean levels in windows: {frame['quantity'].iloc[0]}", _LEVELS)
    return _table(frame, "How levels go with settings: level ~ setting^exponent", _TRENDS)


def chosen(frame: pd.DataFrame, *, rows: Any = None, parts: Any = None) -> pd.DataFrame:
    """Return the lines of some row weights and parts (a name, a list, or None for all).

    Raises UserError for a name that no line has.
    """
    for column, key, wanted in (("row", "rows", rows), ("part", "part", parts)):
        names = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
        known = [name for name in frame[column].unique() if name]
        unknown = [name for name in names if name not in known]
        if unknown and len(frame):
            raise UserError(
                f"{key}: no line is of {unknown[0]}",
                got=", ".join(names),
                allowed=", ".join(known),
                remedy=did_you_mean(unknown[0], known) or f"for example {key}={known[0]}",
            )
        frame = frame[frame[column].isin(names)] if names else frame
    return frame


def _table(frame: pd.DataFrame, title: str, columns: dict[str, Callable[[Any], str]]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    shown = {name: [cell(row) for row in frame.itertuples()] for name, cell in columns.items()}
    shown = {title: cells for title, cells in shown.items() if any(cells)}
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown:
        table.add_column(name, no_wrap=name not in ("variant", "verdict"))
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*map(escape, cells))
    return table


def _title(frame: pd.DataFrame) -> str:
    quantity, axis = frame["quantity"].iloc[0], Axis(frame["axis"].iloc[0])
    measured = "||block||_F" if quantity == FROBENIUS else str(quantity).replace("_", " ")
    return f"Growth rates: slope of log {measured} against log {'sigma' if axis.is_sigma else axis.symbol}"


def _block(row: Any) -> str:
    if row.row_layer != row.layer:
        return f"{row.row} of {row.row_layer}, {row.col}"
    return row.row if row.row == row.col else f"{row.row}, {row.col}"


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
    "block": _block,
    "part": lambda row: row.part,
    "number": lambda row: str(row.index or ""),
    "window": lambda row: label(as_window(row.window_low, row.window_high), Axis(row.axis).symbol),
    "slope ± se": _slope,
    "95 % interval": _interval,
    "theory": _predicted,
    "paper": lambda row: _number(row.published),
    "not finite": lambda row: str(row.num_nonfinite or ""),
    "verdict": lambda row: _SHORT.get(row.verdict, row.verdict),
}

_CURVE: dict[str, Callable[[Any], str]] = {
    **{name: _CELLS[name] for name in ("variant", "layer", "block", "part", "number")},
    "window": lambda row: label(as_window(row.window_low, row.window_high), _axis(row).symbol),
}
_LEVELS: dict[str, Callable[[Any], str]] = {
    **_CURVE,
    "level ± se": lambda row: f"{row.level:.4g}" + (f" ± {row.level_se:.2g}" if row.level_se >= 0 else ""),
    "95 % interval": lambda row: "" if math.isnan(row.ci_low) else f"[{row.ci_low:.4g}, {row.ci_high:.4g}]",
    "points": lambda row: str(row.num_points),
    "seeds": lambda row: str(row.num_seeds),
}
_TRENDS: dict[str, Callable[[Any], str]] = {
    **_CURVE,
    "setting": lambda row: row.setting,
    "exponent ± se": lambda row: (
        _number(row.exponent) + (f" ± {row.exponent_se:.2f}" if row.exponent_se >= 0 else "")
    ),
    "95 % interval": _interval,
    "values": lambda row: str(row.num_values),
}


def _axis(row: Any) -> Axis:
    return Axis(getattr(row, "axis", Axis().name))
