"""The blocks of a network beside each other at one point of weight space: values with error bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, along
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import read_run
from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import MARGINS, Margins, label_side, panel_width, say
from hessfig.figures.parts.looks import set_y_scale
from hessfig.figures.parts.numbers import (
    BLOCK_KEY,
    BlockKey,
    as_written,
    at_one_place,
    blocks_in_order,
    with_pairs,
)
from hessfig.figures.parts.panels import why_no_line
from hessfig.figures.parts.save import Page, file_words, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import TINY, fitting, shades, width_of
from hessfig.figures.parts.words import (
    block_title,
    note_words,
    part_title,
    plain,
    quantity_words,
    variant_words,
)
from hessfig.record import FROBENIUS

_BLOCK = 0.16  # inches of the page for a block
_STEP = 0.14  # between layers, in units of one block
_PAGE = ["variant", "num_layers", "quantity", "index"]
_LONGEST = 1.4  # inches for a name
_COLOUR = "#4575b4"


def bars(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the value of every block at one place on the axis (or without one), a panel per part, a page per network.

    How to read it: a dot is the mean over seeds and its bar the standard error (of a single seed: the estimate's own
    error). Layers stand side by side, darker for later ones; `= 0` stands for a block that is zero.
    Requires: the sweep's table.csv (options `quantity`, `index`, and `at`: the nearest place on the axis is drawn).
    """
    run = read_run(folder)
    chosen = of_quantity(run.table, spec.quantity, spec.index)
    yield from all_bars(
        along(chosen, run.axis), [spec.quantity], run.axis, at=spec.number("at"), config=run.config
    )


def all_bars(
    table: pd.DataFrame,
    quantities: Sequence[str],
    axis: Axis,
    *,
    at: float | None = None,
    config: Mapping[str, Any] | None = None,
) -> Iterator[Page]:
    """Draw every network's blocks, a page for each quantity."""
    every = [growth_curves(table, axis=axis, quantity=quantity) for quantity in quantities]
    points, place = at_one_place(with_pairs(pd.concat(every)), at, axis)
    networks = list(points[_PAGE[:2]].drop_duplicates().itertuples(index=False, name=None))
    several = [name for name in _PAGE[2:] if len(points[name].unique()) > 1]
    for key, here in points.groupby(_PAGE, sort=False):
        of_page = dict(zip(_PAGE, key, strict=True))
        words = "".join(f"_{file_words(str(of_page[name]))}" for name in several)
        suffix = page_suffix(of_page["variant"], of_page["num_layers"], networks) + words
        names = [variant_words(of_page["variant"]), *(f"{name} {of_page[name]}" for name in several)]
        note = note_words(table, axis, names, place=place, config=config)
        yield from _sheets(here, axis, note, suffix)


def _sheets(points: pd.DataFrame, axis: Axis, note: str, suffix: str) -> Iterator[Page]:
    blocks = blocks_in_order(points)
    most = int(panel_width(1, MARGINS) / _BLOCK)
    sheets = [blocks[start : start + most] for start in range(0, len(blocks), most)]
    for number, names in enumerate(sheets, start=1):
        yield _draw_page(points, names, axis, note, suffix + (f"_sheet{number}" if len(sheets) > 1 else ""))


def _draw_page(points: pd.DataFrame, blocks: list[BlockKey], axis: Axis, note: str, suffix: str) -> Page:
    place = {key: rank for rank, key in enumerate(blocks)}
    keys = list(points[BLOCK_KEY].itertuples(index=False, name=None))
    points = points.assign(place=[place.get(key, -1) for key in keys])
    points, parts = points[points["place"] >= 0], list(points["part"].unique())
    names = [fitting([block_title(*key, quantity="")], _LONGEST) for key in blocks]
    margins = Margins(bottom=0.12 + max(map(width_of, names)), down=0.3)
    sheet = panel_sheet([[part or "all"] for part in parts], note=note, margins=margins, share_y=False)
    for row, _, ax in sheet:
        _draw_panel(ax, points[points["part"] == parts[row]], points)
        ax.set_title(part_title(parts[row]))
        label_side(ax, _label(points))
    lowest = sheet.panels[sheet.lines[-1][0]]
    lowest.set_xticks(range(len(blocks)), names, rotation=90)
    lowest.set_xlim(-0.6, len(blocks) - 0.4)
    return Page(suffix, sheet.figure, as_written(points.drop(columns=["across", "place"]), axis))


def _draw_panel(ax: Axes, points: pd.DataFrame, page: pd.DataFrame) -> None:
    log_y = set_y_scale(ax, page["mean"])  # the same kind of scale in every panel of a page
    drawn = points[np.isfinite(points["mean"]) & ((points["mean"] > 0) | (not log_y))]
    layers = sorted(page["layer"].unique())
    for rank, (tone, layer) in enumerate(zip(shades(_COLOUR, len(layers)), layers, strict=True)):
        one = drawn[drawn["layer"] == layer]
        shift = _STEP * (rank - (len(layers) - 1) / 2) * min(1.0, 5 / len(layers)) * bool(layer)
        error = one["sem"].fillna(one["probe_sem"]).fillna(0.0)
        ax.errorbar(
            one["place"] + shift, one["mean"], error, fmt="o", color=tone, elinewidth=0.8, label=str(layer)
        )
    without_dot = points["is_zero"] | ((points["mean"] == 0) & log_y)
    for row in points[without_dot].drop_duplicates("place").itertuples():
        ax.text(
            row.place,
            0.03 if log_y else 0.1,
            "= 0",
            transform=ax.get_xaxis_transform(),
            fontsize=TINY,
            ha="center",
        )
    if len(layers) > 1:
        ax.legend(title="Layer:", ncols=len(layers), loc="best", alignment="left", columnspacing=0.4)
    if drawn.empty and not without_dot.any():
        say(ax, why_no_line(points))


def _label(points: pd.DataFrame) -> str:
    quantity, index = str(points["quantity"].iloc[0]), int(points["index"].iloc[0])
    words = r"$\|\cdot\|_F$" if quantity == FROBENIUS else plain(quantity_words(quantity))
    return f"{words} {index}" if index else words
