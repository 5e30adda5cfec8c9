"""Panels where all layers fall on one line (Figure 8): a panel per depth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hessfig.figures.layouts.growth.in_words import how
from hessfig.figures.layouts.growth.log_axes import draw_panel
from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import Margins
from hessfig.figures.parts.measured import Measured, drawn_numbers, parts_of, read_measured
from hessfig.figures.parts.panels import set_log_range
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour
from hessfig.figures.parts.words import norm_label, symbol, unit_label, weight_words
from hessfig.terms import Matrix, Part

_NARROWEST = 0.88  # inches: a panel that holds a legend of layers and slopes


def one_panel(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the full Hessian's blocks against sigma, a panel per depth, all layers in it.

    How to read it: a straight line of slope p means ||block||_F ~ sigma^p. Early layers are drawn wide and
    light, later ones narrow and dark on top, so that curves that coincide can still be counted.
    Requires: the sweep's table.csv with diagonal blocks of H (option `part` chooses another); manifest.json
    for predictions.
    """
    measured = read_measured(spec, folder)
    found = parts_of(measured.curves)
    part = Part(spec.choice("part", found, Part.H if Part.H in found else found[0]))
    variants = [(variant, 0) for variant in measured.curves["variant"].unique()]
    for variant, depth in variants:
        one = measured.of(variant=variant, part=part)
        yield draw_depths(one, part, suffix=page_suffix(variant, depth, variants))


def draw_depths(measured: Measured, part: Part, *, suffix: str = "") -> Page:
    """Draw a row of panels per weight, one panel per number of layers."""
    matrices = measured.matrices() or [Matrix.W_V.value]
    depths = sorted(measured.curves["num_layers"].unique())
    names = [[f"{matrix}:{depth}" for depth in depths] for matrix in matrices]
    sheet = panel_sheet(
        names, note=how(measured), height=1.8, margins=Margins(across=0.09), narrowest=_NARROWEST
    )
    for row, matrix in enumerate(matrices):
        if sheet.row(row):
            set_log_range(sheet.row(row), measured.of(row=matrix).curves, measured.axis)
    for row, column, ax in sheet:
        block = measured.of(row=matrices[row], col=matrices[row], num_layers=depths[column])
        draw_panel(ax, block, matrix_colour(matrices[row]), nested=True)
    sheet.label(
        x=measured.axis.symbol,
        columns=[(f"{symbol(part)}, {depth} layer{'' if depth == 1 else 's'}",) for depth in depths],
        rows=[norm_label(matrix, quantity=measured.quantity) for matrix in matrices],
        names=[weight_words(matrix) if len(matrices) > 1 else "" for matrix in matrices],
        unit=norm_label(matrices[0], quantity=measured.quantity)
        if len(matrices) == 1
        else unit_label(measured.quantity),
    )
    return Page(suffix, sheet.figure, drawn_numbers(measured))
