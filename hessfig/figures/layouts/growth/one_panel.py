"""Panels where all layers fall on one line (Figure 8): a panel per depth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hessfig.figures.layouts.growth.log_axes import draw_panel, slope_words
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid
from hessfig.figures.parts.measured import Measured, drawn_numbers, parts_of, read_measured
from hessfig.figures.parts.panels import set_log_range
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour
from hessfig.figures.parts.words import norm_label, symbol
from hessfig.terms import Matrix, Part


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
    figure, axes = panel_grid(
        len(matrices),
        len(depths),
        note=f"{measured.how()} {slope_words(measured)}",
        panel_height=1.45,
        margins=Margins(across=0.09),
    )
    for row, matrix in zip(axes, matrices, strict=True):
        set_log_range(list(row), measured.of(row=matrix).curves, measured.axis)
        for ax, depth in zip(row, depths, strict=True):
            draw_panel(
                ax, measured.of(row=matrix, col=matrix, num_layers=depth), matrix_colour(matrix), nested=True
            )
    for ax, depth in zip(axes[0], depths, strict=True):
        ax.set_title(f"{symbol(part)}, {depth} layer{'' if depth == 1 else 's'}")
    rows = [norm_label(matrix, quantity=measured.quantity) for matrix in matrices]
    only_outer_labels(axes, x=measured.axis.symbol, y=rows)
    return Page(suffix, figure, drawn_numbers(measured))
