"""The tables on the pages of a report: slopes, comparisons, claims and numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hessfig.analysis.axis import Axis, short_variant
from hessfig.analysis.slopes.printed import as_window, label
from hessfig.predictions.growth_rates import Prediction
from hessfig.report.readings import Compared, SweepFound, has_slopes

MOST_ROWS = 800
_GOOD = ("agrees", "structural zero", "yes", "holds", "follows from a theorem", "complete")
_BAD = ("deviates", "differs", "no", "ill-typed", "does not hold", "cannot be read")
_OPEN = ("asymptote only", "undecided", "left out", "holds only if", "true but small")
_OPEN_YET = ("incomplete", "no table yet", "no manifest")
KINDS = dict.fromkeys(_GOOD, "good") | dict.fromkeys(_BAD, "bad") | dict.fromkeys((*_OPEN, *_OPEN_YET), "open")


@dataclass(frozen=True)
class TableCell:
    """A cell: the text that it shows, its exact `value` if that is more, and the kind of a verdict."""

    text: str
    value: str = ""
    kind: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table; `cut` is the number of all rows if not all are shown."""

    name: str
    caption: str
    titles: Sequence[str]
    numeric: Sequence[bool]
    rows: Sequence[Sequence[TableCell]]
    cut: int = 0


def slopes_table(sweep: SweepFound) -> PageTable | None:
    """Return the fitted slopes with predictions, published values and verdicts; None without one that was fitted."""
    frame = sweep.slopes
    if frame is None or not has_slopes(sweep):
        return None
    quantity = str(frame["quantity"].iloc[0]).replace("_", " ")
    caption = f"Slopes of log {quantity} against log {Axis(frame['axis'].iloc[0]).symbol}"
    return _table("slopes", caption, frame, _SLOPES)


def compared_table(compared: Compared) -> PageTable:
    """Return the shift of every curve against the reference."""
    return _table("comparison", "Mean shift of each curve against the reference", compared.curves, _COMPARED)


def any_table(name: str, caption: str, frame: pd.DataFrame) -> PageTable:
    """Return a frame as it is: numbers with four digits, verdicts as such."""
    getters = {str(column).replace("_", " "): _plain(str(column)) for column in frame.columns}
    return _table(name, caption, frame, getters)


def _table(name: str, caption: str, frame: pd.DataFrame, cells: Mapping[str, Callable[[Any], TableCell]]) -> PageTable:
    """Return a table of at most MOST_ROWS evenly chosen rows, without empty columns."""
    chosen = frame.iloc[:: math.ceil(len(frame) / MOST_ROWS)] if len(frame) > MOST_ROWS else frame
    columns = {
        title: [cell(row) for row in chosen.to_dict("records")]  # by name: columns may have any
        for title, cell in cells.items()
    }
    columns = {title: column for title, column in columns.items() if any(cell.text for cell in column)}
    numeric = [all(_is_number(cell) for cell in column) for column in columns.values()]
    rows = list(zip(*columns.values(), strict=True))
    return PageTable(name, caption, list(columns), numeric, rows, len(frame) if len(frame) > len(chosen) else 0)


def _is_number(cell: TableCell) -> bool:
    try:
        float(cell.value or cell.text or "nan")
    except ValueError:
        return False
    return True


def number_cell(value: Any, digits: str = ".4g") -> TableCell:
    """Return a number's cell: few digits for reading, all digits for sorting and copying; empty for nan."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return TableCell("")
    return TableCell(format(value, digits).replace("-", "−"), f"{value:.10g}")


def word(value: Any) -> TableCell:
    """Return a word's cell, with the kind of a verdict."""
    return TableCell(str(value), kind=KINDS.get(str(value), ""))


def _plain(column: str) -> Callable[[Any], TableCell]:
    def cell(row: Any) -> TableCell:
        value = _variant(str(row[column])).text if column == "variant" else row[column]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return number_cell(value) if is_number else word("" if pd.isna(value) else value)

    return cell


def _variant(variant: str) -> TableCell:
    """Return a variant's text with breaks between its settings, so that later columns are not cut."""
    return TableCell(short_variant(variant).replace(",", ", "))


def _block(row: Any) -> TableCell:
    if row["row_layer"] != row["layer"]:
        return TableCell(f"{row['row']} of layer {row['row_layer']}, {row['col']}")
    return TableCell(row["row"] if row["row"] == row["col"] else f"{row['row']}, {row['col']}")


def _interval(row: Any) -> TableCell:
    low, high = row["ci_low"], row["ci_high"]
    return TableCell("") if math.isnan(low) else TableCell(f"[{low:.2f}, {high:.2f}]".replace("-", "−"))


def _slope(row: Any) -> TableCell:
    return TableCell("= 0", "0") if row["is_zero"] else number_cell(row["slope"], ".2f")


def _off(row: Any) -> TableCell:
    """Return the distance of a slope from its prediction, by which the table is sorted."""
    known = row["prediction"] == Prediction.exponent and not row["is_zero"]
    return number_cell(abs(row["slope"] - row["predicted"]), ".2f") if known else TableCell("")


def _theory(row: Any) -> TableCell:
    is_zero = row["prediction"] == Prediction.structural_zero
    return TableCell("= 0", "0") if is_zero else number_cell(row["predicted"], "g")


def _window(row: Any) -> TableCell:
    return TableCell(label(as_window(row["window_low"], row["window_high"]), Axis(row["axis"]).symbol))


def _shift(row: Any) -> TableCell:
    if row["zero"] or row["zero_reference"]:
        return TableCell("both are zero" if row["zero"] and row["zero_reference"] else "one side is zero")
    return number_cell(100 * math.expm1(row["shift"]), "+.1f")


_SLOPES: dict[str, Callable[[Any], TableCell]] = {
    "variant": lambda row: _variant(row["variant"]),
    "layers": lambda row: number_cell(int(row["num_layers"]), "d"),
    "layer": lambda row: number_cell(int(row["layer"]), "d"),
    "block": _block,
    "part": lambda row: TableCell(row["part"]),
    "number": lambda row: number_cell(int(row["index"]), "d") if row["index"] else TableCell(""),
    "window": _window,
    "slope": _slope,
    "± se": lambda row: number_cell(row["slope_se"], ".2f"),
    "95 % interval": _interval,
    "theory": _theory,
    "off by": _off,
    "paper": lambda row: number_cell(row["published"], ".2f"),
    "not finite": lambda row: number_cell(int(row["num_nonfinite"]), "d") if row["num_nonfinite"] else TableCell(""),
    "verdict": lambda row: word(row["verdict"]),
}
_COMPARED: dict[str, Callable[[Any], TableCell]] = {
    "layers": lambda row: number_cell(int(row["num_layers"]), "d"),
    "layer": lambda row: number_cell(int(row["layer"]), "d"),
    "block": lambda row: TableCell(str(row["block"])),
    "part": lambda row: TableCell(str(row["part"])),
    "points": lambda row: number_cell(int(row["num_points"]), "d"),
    "within 3 se, %": lambda row: number_cell(100 * row["share_within_3"], ".0f"),
    "mean shift, %": _shift,
    "± %": lambda row: number_cell(100 * row["shift_se"], ".1f"),
    "z": lambda row: number_cell(row["z"], "+.1f"),
}
