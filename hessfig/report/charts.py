"""Turns the numbers of a picture into an interactive chart: panels, curves and maps, as its encoding declares."""

import json
import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.axis import Axis, X, short_variant
from hessfig.analysis.intervals import band
from hessfig.analysis.slopes.printed import as_window
from hessfig.errors import UserError
from hessfig.figures.parts.chart_encoding import CURVES_OF_TABLE, ChartEncoding, MapEncoding
from hessfig.figures.parts.labels import quantity_words
from hessfig.figures.parts.panels import coefficient, fitted, positive
from hessfig.predictions.growth_rates import Prediction
from hessfig.terms import Part

Chart = dict[str, Any]
# Columns of a table that tell curves, maps and, where no numbers run there, places apart.
_SERIES = ("variant", "num_layers", "layer", "part", "quantity", "sigma", "step", "status", "seed")
_MAPS = ("part", "variant", "num_layers", "quantity", "step", "sigma", "seed")
_NAMES = ("variant", "block", "num_layers", "layer")
_SCRIPT = ("package_data", "plotly.min.js")
_STEEP, _WIDE = 30.0, 8.0  # ratios of largest to smallest above which values, and places, are logarithmic


def library(wanted: bool | None, *, single_file: bool = False) -> Path | None:
    """Return plotly's script, which draws charts, from its installed wheel; None for a report without charts.

    With wanted=None a site has charts if plotly is installed; a single file, which grows by 5 MB, has none.
    Raises UserError when they are wanted and plotly is missing.
    """
    spec = find_spec("plotly") if wanted or (wanted is None and not single_file) else None
    paths = [Path(folder, *_SCRIPT) for folder in (spec and spec.submodule_search_locations) or ()]
    file = next((path for path in paths if path.is_file()), None)
    if wanted and file is None:
        raise UserError(
            "interactive=true draws charts with plotly, which is not installed",
            got="interactive=true",
            allowed="interactive=false: the pictures alone",
            remedy="pip install 'hessfig[interactive]'",
        )
    return file


def chart_of(numbers: pd.DataFrame, encoding: ChartEncoding | MapEncoding = CURVES_OF_TABLE) -> str:
    """Return a chart of a picture's numbers as JSON for the page's script; empty if there is nothing to draw.

    Curves have places, values, ends of intervals, counts of seeds and a text on their slope; maps a matrix per panel.
    `whole`: every number is in the chart, which may then stand for the picture.
    """
    if numbers.empty:
        return ""
    named = _named(numbers)
    cells = _cells(named, encoding)
    if cells is not None:
        title = encoding.title if isinstance(encoding, MapEncoding) else _value_words(cells, "mean")
        return _as_json(_maps(cells, title))
    curves = _curves(named, encoding) if isinstance(encoding, ChartEncoding) and encoding.y in named else None
    return _as_json(curves) if curves else ""


def _as_json(chart: Chart) -> str:
    return json.dumps(chart, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _named(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers with texts in place of gaps in names, variants in short, and a name for each block."""
    texts = [name for name in numbers if not pd.api.types.is_numeric_dtype(numbers[name])]
    named = numbers.assign(**{str(name): [_words(cell) for cell in numbers[name].fillna("")] for name in texts})
    if "variant" in named:
        named["variant"] = [short_variant(_words(cell)) for cell in named["variant"].astype(object).fillna("")]
    if "row" in named:
        named["block"] = [_block(row) for row in named.to_dict("records")]
    if {"bin_low", "bin_high"} <= set(named):
        named["x"] = np.sqrt((named["bin_low"] * named["bin_high"]).abs())
    return named


def _words(value: Any) -> str:
    """Return a text without the marks of a formula: W_E for $W_{\\mathrm{E}}$."""
    return re.sub(r"\$|\\mathrm|[{}]", "", str(value)) if "$" in str(value) else str(value)


def _block(row: dict[Any, Any]) -> str:
    """Return the name of a block: a weight, two of them, or two of different layers."""
    first, second = str(row["row"]), str(row.get("col", row["row"]))
    if row.get("row_layer", row.get("layer")) != row.get("layer"):
        return f"{first}@{row['row_layer']:g}, {second}@{row['layer']:g}"
    return first if first == second else f"{first}, {second}"


def _place(numbers: pd.DataFrame, declared: str = "") -> str:
    """Return the column of numbers along x: the one `declared`, or the axis of the sweep; nothing for names."""
    settings = [str(name) for name in numbers if "." in str(name)]
    return next((name for name in (declared, *settings, "sigma", "step", "index") if _has_places(numbers, name)), "")


def _has_places(numbers: pd.DataFrame, name: str) -> bool:
    has_numbers = name in numbers and pd.api.types.is_numeric_dtype(numbers[name])
    return has_numbers and len(numbers[name].dropna().unique()) > 1


def _varied(numbers: pd.DataFrame, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in numbers and len(numbers[name].unique()) > 1]


def _telling(numbers: pd.DataFrame, names: Iterable[str], given: Sequence[str]) -> list[str]:
    """Return the names that distinguish rows which the names `given`, and earlier names, do not."""
    chosen: list[str] = []
    for name in names:
        groups = [_count(numbers, [*given, *chosen, *more]) for more in ([], [name])]
        chosen += [name] * (groups[1] > groups[0])
    return chosen


def _count(numbers: pd.DataFrame, names: Sequence[str]) -> int:
    return len(numbers[list(names)].drop_duplicates()) if names else 1


def _curves(numbers: pd.DataFrame, encoding: ChartEncoding) -> Chart | None:
    """Return the numbers as curves; None if there is no column along x."""
    value, names = encoding.y, _varied(numbers, dict.fromkeys((*_NAMES, encoding.x)))
    x = _place(numbers, encoding.x) or max(names, key=lambda name: numbers[name].nunique(), default="")
    shown = numbers.dropna(subset=[value, x]) if x else numbers[:0]
    if shown.empty or value == x:
        return None
    panels, series = _apart(shown, x, encoding)
    low, high, spread = _ends(shown, encoding, value)
    shown = shown.assign(low=low, high=high)
    titles = _titles(shown, panels)
    keys = [(name, _in_order(shown[name])) for name in series]
    return {
        "kind": "curves",
        "whole": encoding.is_whole,
        "x": {"title": Axis(x).symbol if x != X else "x", "log": _is_log_place(shown[x])},
        "y": {"title": _value_words(shown, value), "log": _is_log(shown[value], _STEEP)},
        "spread": spread,
        "panels": titles,
        "keys": [{"title": _key_words(name), "values": list(map(_text, values))} for name, values in keys],
        "curves": [_curve(rows, x, value, titles, panels, keys) for rows in _groups(shown, [*panels, *series])],
        "guides": _guides(shown, x, titles, panels, series),
    }


def _apart(numbers: pd.DataFrame, x: str, encoding: ChartEncoding) -> tuple[list[str], list[str]]:
    """Return the columns that distinguish panels, and those that distinguish the curves of a panel."""
    lone = ["block"] if "block" in numbers and not _varied(numbers, ["block"]) else []
    candidates = [name for name in encoding.panels if name != x]
    panels = [*lone, *_telling(numbers, _varied(numbers, candidates), [])]
    others = [name for name in (*encoding.series, *_SERIES) if name not in (x, *panels)]
    series = _telling(numbers, _varied(numbers, others), panels)
    if "part" in series and len(series) > 1:  # parts stand side by side where curves are many
        return [*panels, "part"], [name for name in series if name != "part"]
    return panels, series


def _ends(numbers: pd.DataFrame, encoding: ChartEncoding, value: str) -> tuple[Any, Any, str]:
    """Return both ends of the interval of every value, and its meaning; nan without an interval."""
    if {encoding.low, encoding.high} <= set(numbers):
        return numbers[encoding.low], numbers[encoding.high], encoding.spread
    if {"sem", "count"} <= set(numbers):
        logs = bool((numbers[value] >= 0).all())
        return *band(numbers[value], numbers["sem"], numbers["count"].fillna(0), logs=logs), "95 % interval"
    return np.nan, np.nan, ""


def _groups(numbers: pd.DataFrame, names: Sequence[str]) -> list[pd.DataFrame]:
    return [group for _, group in numbers.groupby(list(names), sort=False, dropna=False)] if names else [numbers]


def _curve(
    rows: pd.DataFrame, x: str, value: str, titles: Sequence[str], panels: Sequence[str], keys: Sequence[Any]
) -> Chart:
    ordered = rows.sort_values(x, kind="stable") if pd.api.types.is_numeric_dtype(rows[x]) else rows
    curve: Chart = {
        "panel": titles.index(_title(ordered.iloc[0], panels)),
        "at": [values.index(ordered[name].iloc[0]) for name, values in keys],
        **{name: _plain(ordered[column]) for name, column in (("x", x), ("y", value))},
    }
    if ordered[["low", "high"]].notna().any(axis=None):
        curve |= {name: _plain(ordered[name]) for name in ("low", "high")}
    if "count" in ordered:
        curve["seeds"] = _plain(ordered["count"])
    if "slope" in ordered and value != "slope" and pd.notna(ordered["slope"].iloc[0]):
        curve["slope"] = _slope(ordered.iloc[0])
    return curve


def _slope(row: pd.Series) -> str:
    words = f"slope {fitted(row['slope'], row['slope_se'])}"
    return words + (f", predicted {row['predicted']:g}" if pd.notna(row.get("predicted")) else "")


def _guides(
    numbers: pd.DataFrame, x: str, titles: Sequence[str], panels: Sequence[str], series: Sequence[str]
) -> list[Chart]:
    """Return the predicted power laws, each once per panel, through the window of its first curve."""
    if not {"predicted", "mean"} <= set(numbers) or not pd.api.types.is_numeric_dtype(numbers[x]):
        return []
    known = numbers[(numbers["prediction"] == Prediction.exponent) & numbers["predicted"].notna()]
    guides: dict[tuple[int, float], Chart] = {}
    for rows in _groups(known.rename(columns={x: X}), [*panels, *series]):
        drawn = rows[positive(rows)]
        if drawn.empty:
            continue
        first = rows.iloc[0]
        place, power = titles.index(_title(first, panels)), float(first["predicted"])
        c = coefficient(rows, power, as_window(first["window_low"], first["window_high"]))
        line = np.geomspace(drawn[X].min(), drawn[X].max(), 40)
        words = f"predicted power {power:g}"
        guides.setdefault(
            (place, power), {"panel": place, "name": words, "x": _plain(line), "y": _plain(c * line**power)}
        )
    return list(guides.values())


def _cells(numbers: pd.DataFrame, encoding: ChartEncoding | MapEncoding) -> pd.DataFrame | None:
    """Return the numbers with row, column and value of each cell of a map; None if there are no maps."""
    if isinstance(encoding, MapEncoding):
        down, across = (_at(numbers, *side) for side in (encoding.down, encoding.across))
        return numbers.assign(down=down, across=across, value=numbers[encoding.value])
    is_table = encoding == CURVES_OF_TABLE and {"row", "col", "layer", "mean"} <= set(numbers)
    return _of_blocks(numbers) if is_table and not _place(numbers) else None


def _of_blocks(numbers: pd.DataFrame) -> pd.DataFrame | None:
    """Return the blocks of one place by both their weights, or by layer and weight."""
    pairs = numbers["row"] != numbers["col"]
    if pairs.any():
        sides = [numbers, numbers[pairs].rename(columns={"row": "col", "col": "row"})]
        both = pd.concat(sides, ignore_index=True)
        return both.assign(down=both["row"], across=both["col"], value=both["mean"])
    if min(numbers["layer"].nunique(), numbers["row"].nunique()) > 1:
        return numbers.assign(down=numbers["layer"].map("{:g}".format), across=numbers["row"], value=numbers["mean"])
    return None


def _at(numbers: pd.DataFrame, name: str, layer: str) -> pd.Series:
    """Return weights with their layers where a weight is in several layers."""
    several = bool(layer) and numbers.groupby(name)[layer].nunique().max() > 1
    return numbers[name] + "@" + numbers[layer].map("{:g}".format) if several else numbers[name]


def _maps(cells: pd.DataFrame, title: str) -> Chart:
    panels = _telling(cells, _varied(cells, _MAPS), ["down", "across"])
    low, high, spread = _ends(cells, CURVES_OF_TABLE, "value")
    groups = _groups(cells.assign(low=low, high=high), panels)
    bulk = cells["value"].clip(cells["value"].quantile(0.25))
    return {
        "kind": "maps",
        "whole": True,
        "value": {"title": title, "log": _is_log(bulk, _STEEP)},
        "panels": [_title(rows.iloc[0], panels) for rows in groups],
        "maps": [_map(rows, spread) for rows in groups],
    }


def _map(rows: pd.DataFrame, spread: str) -> Chart:
    down, across = (_in_order(rows[name]) for name in ("down", "across"))
    first = rows.drop_duplicates(["down", "across"]).set_index(["down", "across"])
    index = pd.MultiIndex.from_product([down, across])
    values = first["value"].reindex(index).to_numpy().reshape(len(down), len(across))
    chart: Chart = {"x": _plain(across), "y": _plain(down), "z": [_plain(line) for line in values]}
    if first["low"].notna().any():
        words = first.assign(said=[_said(row, spread) for row in first.to_dict("records")])["said"]
        chart["words"] = words.reindex(index, fill_value="").to_numpy().reshape(values.shape).tolist()
    return chart


def _said(row: dict[Any, Any], spread: str) -> str:
    interval = f"{spread} {row['low']:.3g} to {row['high']:.3g}" if pd.notna(row["low"]) else ""
    return ", ".join(filter(None, (interval, f"{row['count']:g} seeds" if "count" in row else "")))


def _titles(numbers: pd.DataFrame, panels: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(_title(group.iloc[0], panels) for group in _groups(numbers, panels)))


def _title(row: pd.Series, panels: Sequence[str]) -> str:
    """Return the name of a panel: names as they are, numbers with what they are."""
    return ", ".join(filter(None, (_panel_words(name, row[name]) for name in panels)))


def _panel_words(name: str, value: Any) -> str:
    if name in ("quantity", "shown"):
        return quantity_words(str(value))
    return value if isinstance(value, str) else f"{_key_words(name)} {_text(value)}"


def _in_order(values: pd.Series) -> list[Any]:
    """Return the unique values: numbers ascending, parts in the order of Part, names in order of appearance."""
    different = list(values.unique())
    if pd.api.types.is_numeric_dtype(values):
        return sorted(different)
    parts = [part.value for part in Part]
    return sorted(different, key=parts.index) if set(different) <= set(parts) else different


def _key_words(name: str) -> str:
    return {"num_layers": "layers", "sigma": "σ"}.get(name, name.replace("_", " "))


def _text(value: Any) -> str:
    return value or "as set" if isinstance(value, str) else f"{value:g}"


def _value_words(numbers: pd.DataFrame, value: str) -> str:
    if value == "mean" and "quantity" in numbers and len(numbers["quantity"].unique()) == 1:
        return quantity_words(str(numbers["quantity"].iloc[0]))
    return {"mean": "value", "y": "value", "lanczos": "density"}.get(value, value)


def _is_log(values: pd.Series, ratio: float) -> bool:
    """Whether values are spread over so many times their smallest, none of them below zero (zeros are not drawn)."""
    above_zero = values[values > 0]
    return bool((values >= 0).all() and len(above_zero) and above_zero.max() >= ratio * above_zero.min())


def _is_log_place(values: pd.Series) -> bool:
    """Whether places are spread evenly on a logarithmic axis rather than on a linear one."""
    if not pd.api.types.is_numeric_dtype(values) or (values <= 0).any() or not _is_log(values, _WIDE):
        return False
    places = np.sort(values.unique())
    uneven = [float(np.std(gaps) / np.mean(gaps)) for gaps in (np.diff(np.log(places)), np.diff(places))]
    return len(places) == 2 or uneven[0] < uneven[1]


def _plain(values: Any) -> list[Any]:
    """Return a list for JSON: numbers with six digits, null for what is not finite, words as legends have them."""
    return [_text(value) if isinstance(value, str) else _number(float(value)) for value in values]


def _number(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short
