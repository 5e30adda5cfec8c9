"""The outermost eigenvalues, share negative, effective rank and condition number of every block, as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.axis import SIGMA, X
from hessfig.analysis.curves import growth_curves
from hessfig.analysis.manifest import read_run
from hessfig.figures.parts.grid import Margins, panel_grid
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.style import SMALL
from hessfig.figures.parts.words import symbol, variant_words
from hessfig.terms import Group

_WORDS = {
    "largest_eigenvalue": "largest",
    "smallest_eigenvalue": "smallest",
    "share_negative": "share < 0",
    "effective_rank": "effective rank",
    "condition_number": "condition number",
    "density_mean": "trace / n",
    "density_second_moment": "norm² / n",
}
_KEY = ["variant", "num_layers", "layer", "row", "part", X]
_LINE = 0.12  # height of a row in inches
_FIRST = 0.27  # share of the page that the first column takes
_MOMENTS = ("density_mean", "density_second_moment")  # shown where there is nothing exact


def extremes_page(folder: Path) -> Iterator[Page]:
    """Yield a table: mean ± standard error over seeds, the whole network's as text, all blocks' in the CSV.

    A quantity with several numbers (index) is the outermost one here. A table without such quantities gives no page.
    """
    table = read_run(folder).table
    names = [name for name in _WORDS if name in set(table["quantity"])]
    names = [name for name in names if name not in _MOMENTS] if len(names) > len(_MOMENTS) else names
    if not names:
        return
    first = table[table["quantity"].isin(names) & (table["index"] <= 1)]
    points = pd.concat([growth_curves(first, axis=SIGMA, quantity=name) for name in names])
    whole = points[points["row"].isin(list(Group)) & (points["layer"] == 0)]
    yield _draw(whole if len(whole) else points, points, names, len(set(table["seed"])))


def _draw(shown: pd.DataFrame, points: pd.DataFrame, names: list[str], seeds: int) -> Page:
    keys = list(shown[_KEY].drop_duplicates().itertuples(index=False, name=None))
    note = f"Mean ± standard error over {seeds} seeds. Every block's numbers are in the file of this page."
    margins = Margins(left=0.08, right=0.08, top=0.1, bottom=0.05)
    figure, axes = panel_grid(1, 1, note=note, panel_height=_LINE * (len(keys) + 2), margins=margins)
    ax = axes[0, 0]
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(len(keys) + 1.5, -0.5))
    width = (1 - _FIRST) / len(names)
    places = [0.0, *(_FIRST + width * (np.arange(len(names)) + 0.5))]
    header = ["", *(_WORDS[name] for name in names)]
    for x, word in zip(places, header, strict=True):
        ax.text(x, 0, word, weight="bold", ha="left" if x == 0 else "center", size=SMALL)
    ax.axhline(0.6, color="black", linewidth=0.5)
    for line, key in enumerate(keys, start=1):
        ax.text(0, line + 0.2, _row_words(key, keys), size=SMALL)
        for x, name in zip(places[1:], names, strict=True):
            ax.text(x, line + 0.2, _number(shown, key, name), ha="center", size=SMALL)
    written = points.drop(columns="is_zero").rename(columns={X: "sigma"})
    return Page("_table", figure, written)


def _row_words(key: tuple[object, ...], keys: list[tuple[object, ...]]) -> str:
    """Return which network and part a row is of, with its block, depth and sigma where several are shown."""
    variant, depth, layer, row, part, sigma = key
    several = [len({str(one[k]) for one in keys}) > 1 for k in range(len(key))]
    more = [
        f"{depth} layers" if several[1] else "",
        f"{row} {layer or ''}".strip() if several[3] else "",
        f"σ = {sigma:g}" if several[5] else "",
    ]
    return f"{symbol(str(part))}  " + ", ".join(filter(None, [variant_words(str(variant)), *more]))


def _number(points: pd.DataFrame, key: tuple[object, ...], name: str) -> str:
    chosen = points[points["quantity"] == name]
    for column, value in zip(_KEY, key, strict=True):
        same = chosen[column].isna() if value != value else chosen[column] == value
        chosen = chosen[same]
    if chosen.empty or not np.isfinite(chosen["mean"].iloc[0]):
        return "—"
    mean, error = chosen[["mean", "sem"]].iloc[0]
    return _short(mean) + (f" ± {_short(error, digits=1)}" if np.isfinite(error) else "")


def _short(value: float, *, digits: int = 3) -> str:
    """Return a number of so many digits: 1.23e7, 0.0012, −4e−16."""
    words = f"{value:.0f}" if 10 <= abs(value) < 100 and digits == 1 else f"{value:.{digits}g}"
    return re.sub(r"e([+-])0?", lambda found: "e" + found[1].strip("+"), words).replace("-", "−")
