"""Bars and lines over any varied setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, X, along, check_places, has_places
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import read_run
from hessfig.figures.parts.encoding import Look, ordered, seen, set_x_scale, set_y_scale, unseen, values_of
from hessfig.figures.parts.measured import BLOCK_KEY, BlockKey, as_written, at_one_place, blocks_in_order, with_pairs
from hessfig.figures.parts.page import TINY, FigureSpec, Page, file_words, fitting, page_suffix, shades, width_of
from hessfig.figures.parts.panel_sheet import MARGINS, Margins, Share, label_side, panel_sheet, panel_width, say
from hessfig.figures.parts.panels import draw_band, mark_one, why_no_line
from hessfig.figures.parts.words import (
    block_title,
    note_words,
    part_title,
    plain,
    quantity_words,
    symbol,
    unit_label,
    variant_words,
)
from hessfig.record import FROBENIUS

_BLOCK = 0.16  # inches of the page for a block
_STEP = 0.14  # between layers, in units of one block
_BARS_PAGE = ["variant", "num_layers", "quantity", "index"]
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
    yield from all_bars(along(chosen, run.axis), [spec.quantity], run.axis, at=spec.number("at"), config=run.config)


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
    networks = list(points[_BARS_PAGE[:2]].drop_duplicates().itertuples(index=False, name=None))
    several = [name for name in _BARS_PAGE[2:] if len(points[name].unique()) > 1]
    for key, here in points.groupby(_BARS_PAGE, sort=False):
        of_page = dict(zip(_BARS_PAGE, key, strict=True))
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
        yield _draw_bars(points, names, axis, note, suffix + (f"_sheet{number}" if len(sheets) > 1 else ""))


def _draw_bars(points: pd.DataFrame, blocks: list[BlockKey], axis: Axis, note: str, suffix: str) -> Page:
    place = {key: rank for rank, key in enumerate(blocks)}
    keys = list(points[BLOCK_KEY].itertuples(index=False, name=None))
    points = points.assign(place=[place.get(key, -1) for key in keys])
    points, parts = points[points["place"] >= 0], list(points["part"].unique())
    names = [fitting([block_title(*key, quantity="")], _LONGEST) for key in blocks]
    margins = Margins(bottom=0.12 + max(map(width_of, names)), down=0.3)
    sheet = panel_sheet([[part or "all"] for part in parts], note=note, margins=margins, share_y=False)
    for row, _, ax in sheet:
        _draw_bar_panel(ax, points[points["part"] == parts[row]], points)
        ax.set_title(part_title(parts[row]))
        label_side(ax, _label(points))
    lowest = sheet.panels[sheet.lines[-1][0]]
    lowest.set_xticks(range(len(blocks)), names, rotation=90)
    lowest.set_xlim(-0.6, len(blocks) - 0.4)
    return Page(suffix, sheet.figure, as_written(points.drop(columns=["across", "place"]), axis))


def _draw_bar_panel(ax: Axes, points: pd.DataFrame, page: pd.DataFrame) -> None:
    log_y = set_y_scale(ax, page["mean"])  # the same kind of scale in every panel of a page
    drawn = points[np.isfinite(points["mean"]) & ((points["mean"] > 0) | (not log_y))]
    layers = sorted(page["layer"].unique())
    for rank, (tone, layer) in enumerate(zip(shades(_COLOUR, len(layers)), layers, strict=True)):
        one = drawn[drawn["layer"] == layer]
        shift = _STEP * (rank - (len(layers) - 1) / 2) * min(1.0, 5 / len(layers)) * bool(layer)
        error = one["sem"].fillna(one["probe_sem"]).fillna(0.0)
        ax.errorbar(one["place"] + shift, one["mean"], error, fmt="o", color=tone, elinewidth=0.8, label=str(layer))
    without_dot = points["is_zero"] | ((points["mean"] == 0) & log_y)
    for row in points[without_dot].drop_duplicates("place").itertuples():
        ax.text(
            row.place, 0.03 if log_y else 0.1, "= 0", transform=ax.get_xaxis_transform(), fontsize=TINY, ha="center"
        )
    if len(layers) > 1:
        ax.legend(title="Layer:", ncols=len(layers), loc="best", alignment="left", columnspacing=0.4)
    if drawn.empty and not without_dot.any():
        say(ax, why_no_line(points))


def _label(points: pd.DataFrame) -> str:
    quantity, index = str(points["quantity"].iloc[0]), int(points["index"].iloc[0])
    words = r"$\|\cdot\|_F$" if quantity == FROBENIUS else plain(quantity_words(quantity))
    return f"{words} {index}" if index else words


_ROWS = 6  # of panels on a page
_PAGE = ["variant", "num_layers", "layer", "part", "index"]


def lines(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw means over seeds along `figure.x` (the sweep's axis by default), a page for whatever else varies.

    How to read it: a point is a mean over seeds, its band the 95 % interval of the mean. Colour stands for
    `figure.colour`, dashes for `figure.dashes` (sigma, step, layer, num_layers, part, index or a varied setting; what
    varies first by default). Scales are logarithmic where the numbers span them. A table without an axis is drawn as
    bars.
    Requires: the sweep's table.csv (option `quantity`: one, or a list, each then a column of panels).
    """
    run, quantities = read_run(folder), spec.words("quantity") or [FROBENIUS]
    axis, asked = (Axis(spec.x), "figure.x") if spec.x else (run.axis, "sweep.axis")
    chosen = pd.concat([of_quantity(run.table, quantity, spec.index) for quantity in quantities])
    table = along(chosen, axis, asked=asked)
    if not (spec.x or spec.colour or spec.dashes or has_places(table, axis)):
        yield from all_bars(table, quantities, axis, config=run.config)
        return
    check_places(table, axis)
    curves = pd.concat([growth_curves(table, axis=axis, quantity=quantity) for quantity in quantities])
    colour, dashes = seen(spec, curves)
    column = "quantity" if len(quantities) > 1 else "" if "part" in (colour, dashes) else "part"
    yield from _pages(with_pairs(curves), table, Look(axis, colour, dashes, column), run.config)


def _pages(curves: pd.DataFrame, table: pd.DataFrame, look: Look, config: Mapping[str, Any]) -> Iterator[Page]:
    rest = unseen(curves, [look.colour, look.dashes, look.column])
    networks = list(rest[_PAGE[:2]].drop_duplicates().itertuples(index=False, name=None))
    several = [name for name in _PAGE[2:] if len(rest[name].unique()) > 1]
    for key, group in rest.groupby(_PAGE, sort=False):
        place, here = dict(zip(_PAGE, key, strict=True)), curves.loc[group.index]
        words = "".join(f"_{name if name in ('layer', 'index') else ''}{place[name]}" for name in several)
        suffix = page_suffix(place["variant"], place["num_layers"], networks) + words
        names = [place["variant"], *(f"{name} {place[name]}" for name in several)]
        blocks = blocks_in_order(here)
        sheets = [blocks[start : start + _ROWS] for start in range(0, len(blocks), _ROWS)]
        for number, rows in enumerate(sheets, start=1):
            sheet = f"_sheet{number}" if len(sheets) > 1 else ""
            note = note_words(table, look.axis, names, several_points=True, config=config)
            yield _draw_page(here, rows, look, note, suffix + sheet)


def _draw_page(curves: pd.DataFrame, rows: list[BlockKey], look: Look, note: str, suffix: str) -> Page:
    columns, apart = ordered(curves[look.column]) if look.column else [""], look.column == "quantity"
    margins, share = Margins(across=0.36 if apart else 0.12, down=0.22), _share(apart)
    sheet = panel_sheet(_names(rows, columns), note=note, margins=margins, share_y=share)
    blocks = [_chosen(curves, dict(zip(BLOCK_KEY, key, strict=True))) for key in rows]
    for row, column, ax in sheet:
        one = _chosen(blocks[row], {look.column: columns[column]}) if look.column else blocks[row]
        _draw_panel(ax, one, one if apart else blocks[row], curves, look)
    quantity = "" if apart else str(curves["quantity"].iloc[0])
    titles = [block_title(*key, quantity=quantity) for key in rows]
    sheet.label(
        x=plain(look.axis.symbol),
        columns=[(plain(quantity_words(one)),) if apart else (part_title(one), symbol(one)) for one in columns],
        rows=titles,
        names=[block_title(*key, quantity="") for key in rows],
        unit="" if apart else unit_label(quantity),
    )
    look.name(sheet.first, curves)
    return Page(suffix, sheet.figure, as_written(pd.concat(blocks).drop(columns="across"), look.axis))


def _share(apart: bool) -> Share:
    return False if apart else "row"


def _names(rows: list[BlockKey], columns: list[Any]) -> list[list[str]]:
    """Return the names of panels: W_Q:H_o, or W_Q-W_V:H_o for a pair (@1,2 across layers)."""
    blocks = [(row if row == col else f"{row}-{col}") + (f"@{across}" if across else "") for row, col, across in rows]
    return [[":".join(filter(None, [block, str(column)])) for column in columns] for block in blocks]


def _draw_panel(ax: Axes, points: pd.DataFrame, scale: pd.DataFrame, page: pd.DataFrame, look: Look) -> None:
    """Draw the lines of one panel; `scale` are all points on its y axis, `page` all on the page."""
    log_x, log_y = set_x_scale(ax, page[X]), set_y_scale(ax, scale["mean"])
    if log_x:
        mark_one(ax, look.axis)
    drawable = np.isfinite(points["mean"]) & ((points["mean"] > 0) | (not log_y))
    if not drawable.any():
        say(ax, why_no_line(points))
        return
    tones, strokes, widths = look.tones(page, points["row"].iloc[0]), look.strokes(page), look.widths(page)
    drawn = points[drawable]
    keys = [values_of(drawn, look.colour).rename("colour"), values_of(drawn, look.dashes).rename("dashes")]
    for (colour, dashes), curve in drawn.groupby(keys, sort=False):
        style = {"color": tones[colour], "linestyle": strokes[dashes], "linewidth": widths[colour]}
        ax.plot(curve[X], curve["mean"], marker="o", markeredgewidth=0, **style)
        draw_band(ax, curve, colour=tones[colour])


def _chosen(frame: pd.DataFrame, choice: dict[str, Any]) -> pd.DataFrame:
    return frame[np.logical_and.reduce([frame[name] == value for name, value in choice.items()])]
