"""Growth sheets: block norms along the axis (sigma), a row per weight, a column per part of the Hessian."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from hessfig.figures.layouts.growth.guides import draw_guides
from hessfig.figures.layouts.growth.in_words import how, layer_words, window_words
from hessfig.figures.parts.folding import Sheet, panel_sheet
from hessfig.figures.parts.grid import say
from hessfig.figures.parts.measured import Measured, drawn_numbers, read_measured
from hessfig.figures.parts.panels import (
    corner,
    draw_curve,
    is_rising,
    mark_one,
    positive,
    set_log_range,
    why_empty,
)
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour, shades
from hessfig.figures.parts.words import norm_label, part_title, symbol, unit_label, weight_words
from hessfig.terms import Matrix, Part


def growth(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the norms of diagonal blocks against sigma in log-log axes (Figures 3, 6, 7): a page per network.

    How to read it: a straight line of slope p means ||block||_F ~ sigma^p. Each panel prints the fitted
    slope with its bootstrap error over seeds and, in the corner, the predicted power, drawn as a grey dashed
    guide a little below the curve. Without a prediction the guides are the fits themselves, one a window.
    Later layers are darker. A block that vanishes says so.
    Requires: the sweep's table.csv with diagonal blocks; manifest.json for predictions (option `words`: level prints
    the mean level in each window in place of the slope, as levels.csv has it).
    """
    yield from growth_pages(read_measured(spec, folder))


def growth_pages(measured: Measured) -> Iterator[Page]:
    """Draw a page for each network of a sweep."""
    networks = measured.networks()
    for variant, num_layers in networks:
        one = measured.of(variant=variant, num_layers=num_layers)
        yield draw_growth(one, suffix=page_suffix(variant, num_layers, networks))


def draw_growth(measured: Measured, *, suffix: str = "") -> Page:
    """Draw one network: rows W_V, W_Q (and whatever else was measured), columns H_o, H_f, H."""
    matrices = measured.matrices() or [Matrix.W_V.value, Matrix.W_Q.value]
    sheet = panel_sheet(by_part(matrices), note=how(measured))
    for row, matrix in enumerate(matrices):
        block = measured.of(row=matrix, col=matrix)
        if sheet.row(row):
            set_log_range(sheet.row(row), block.curves, measured.axis)
    for row, column, ax in sheet:
        block = measured.of(row=matrices[row], col=matrices[row], part=list(Part)[column])
        draw_panel(ax, block, matrix_colour(matrices[row]))
    label_parts(sheet, matrices, measured)
    return Page(suffix, sheet.figure, drawn_numbers(measured))


def by_part(names: Sequence[str]) -> list[list[str]]:
    """Return the names of panels with a row for each weight and a column for each part: W_V:H_o, ..."""
    return [[f"{name}:{part.value}" for part in Part] for name in names]


def label_parts(sheet: Sheet, matrices: Sequence[str], measured: Measured) -> None:
    """Label rows by their weights and columns by their parts."""
    sheet.label(
        x=measured.axis.symbol,
        columns=[(part_title(part), symbol(part)) for part in Part],
        rows=[norm_label(matrix, quantity=measured.quantity) for matrix in matrices],
        names=[weight_words(matrix) for matrix in matrices],
        unit=unit_label(measured.quantity),
    )


def draw_panel(ax: Axes, measured: Measured, colour: str, *, nested: bool = False) -> None:
    """Draw one block's curves, a shade per layer, with guides and fitted slopes; never an empty panel.

    `nested` draws early layers wide and later ones narrow, for curves that lie on top of each other.
    """
    mark_one(ax, measured.axis)
    if not positive(measured.curves).any():
        say(ax, why_empty(measured))
        return
    layers = measured.layers()
    for index, (shade, layer) in enumerate(zip(shades(colour, len(layers)), layers, strict=True)):
        curve, alone = measured.of(layer=layer), len(layers) == 1
        width = 0.8 + 0.7 * (len(layers) - 1 - index) if nested else 1.0
        label = "" if alone else layer_words(curve, layer)
        draw_curve(ax, curve.curves, colour=shade, label=label, linewidth=width)
    draw_guides(ax, measured)
    rising = is_rising(measured.curves)
    if len(layers) == 1:
        corner(ax, "\n".join(window_words(measured)), "upper left" if rising else "lower left")
    else:
        legend = ax.legend(
            title=f"Layer: {measured.said}", loc=2 if rising else 3, alignment="left", handlelength=0.9
        )
        for line in legend.get_lines():
            line.set_linewidth(1.2)
