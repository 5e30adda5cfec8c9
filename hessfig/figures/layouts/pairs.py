"""A grid of all pairs of weights (eq. 5): how H_o and H_f of every block grow along the axis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hessfig.figures.layouts.growth.in_words import slope_words
from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import Margins, say
from hessfig.figures.parts.measured import Measured, drawn_numbers, in_order, parts_of, read_measured
from hessfig.figures.parts.panels import (
    draw_curve,
    draw_fit,
    fitted,
    mark_one,
    positive,
    set_log_range,
    why_empty,
)
from hessfig.figures.parts.paper import paper
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import part_colour
from hessfig.figures.parts.words import norm_label, pair_words, symbol, unit_label, weight_words
from hessfig.predictions.growth_rates import Prediction
from hessfig.terms import Part

_PANEL = 1.35
_NARROWEST = 1.22  # inches: a panel that holds two slopes with their predictions


def pairs(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw every block (row, col) along the axis, H_o and H_f in one panel: a page per network.

    How to read it: panel (A, B) shows the norm of the block of second derivatives with respect to A and B.
    Its words give the fitted slope ± error and, in brackets, the predicted exponent; dashed lines are the
    predicted powers through the window. The block (B, A) is the transpose of (A, B) and is not drawn again.
    Requires: the sweep's table.csv with off-diagonal blocks; manifest.json for predictions.
    """
    measured = read_measured(spec, folder)
    networks = measured.networks()
    for variant, num_layers in networks:
        one = measured.of(variant=variant, num_layers=num_layers)
        several = num_layers > 1 or len(one.layers()) > 1
        for layer in one.layers():
            suffix = page_suffix(variant, num_layers, networks) + (f"_layer{layer}" if several else "")
            yield draw_pairs(one.of(layer=layer), suffix=suffix)


def draw_pairs(measured: Measured, *, suffix: str = "") -> Page:
    """Draw the grid of one layer of one network."""
    matrices = in_order(pd.concat([measured.curves["row"], measured.curves["col"]]))
    count = len(matrices)
    parts: list[Part] = [part for part in parts_of(measured.curves) if part is not Part.H] or [Part.H]
    right = max(0.08, paper().inches - 0.54 - count * 1.7) if count < 3 else 0.08
    note = f"{measured.how()} In brackets: predicted exponent. {slope_words(measured)}"
    names = [[f"{row}:{col}" for col in matrices] for row in matrices]
    found = set(measured.curves[["row", "col"]].itertuples(index=False, name=None))
    empty = [f"{row}:{col}" for row in matrices for col in matrices if (row, col) not in found]
    sheet = panel_sheet(
        names,
        note=note,
        height=_PANEL,
        margins=Margins(right=right),
        narrowest=_NARROWEST,
        share_y="all",
        left_out=empty,
    )
    drawn = measured.curves[measured.curves["part"].isin(parts)]
    set_log_range(list(sheet.panels.values()), drawn, measured.axis)
    for i, j, ax in sheet:
        _draw_cell(ax, measured, matrices[i], matrices[j], parts)
    sheet.label(
        x=measured.axis.symbol,
        columns=[(weight_words(name),) for name in matrices],
        rows=[
            norm_label(name, quantity=measured.quantity).replace(" block", ":  block", 1) for name in matrices
        ],
        names=[weight_words(name) for name in matrices],
        unit=unit_label(measured.quantity),
    )
    return Page(suffix, sheet.figure, drawn_numbers(measured))


def _draw_cell(ax: Axes, measured: Measured, row: str, col: str, parts: list[Part]) -> None:
    here, mirrored = measured.of(row=row, col=col), measured.of(row=col, col=row)
    if here.curves.empty:
        ax.set_facecolor("#f7f7f7")
        other = f"transpose of\n{pair_words(col, row)}"
        say(ax, "(not measured)" if mirrored.curves.empty else other)
        return
    mark_one(ax, measured.axis)
    handles, words = [], []
    for part in parts:
        one = here.of(part=part)
        if positive(one.curves).any():
            draw_curve(ax, one.curves, colour=part_colour(part))
            draw_fit(ax, one, drop=1.0)
        handles.append(Line2D([], [], color=part_colour(part), marker="o", markersize=2))
        words.append(f"{symbol(part)}  {_slope(one)}")
    ax.legend(handles, words, loc="upper left", handlelength=0.9)


def _slope(measured: Measured) -> str:
    if not positive(measured.curves).any():
        return why_empty(measured)
    first = measured.slopes.iloc[0]
    known = first["prediction"] == Prediction.exponent
    expected = f"  ({first['predicted']:g})" if known else ""
    zero = "  (predicted = 0)" if first["prediction"] == Prediction.structural_zero else expected
    return fitted(first["slope"], first["slope_se"]) + zero
