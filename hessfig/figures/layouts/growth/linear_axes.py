"""Growth sheets on linear axes (Figures 5a and 5b)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import X
from hessfig.figures.layouts.growth.guides import write_powers
from hessfig.figures.layouts.growth.in_words import how, window_words
from hessfig.figures.layouts.growth.log_axes import by_part, label_parts
from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import Margins, say
from hessfig.figures.parts.measured import Measured, drawn_numbers, read_measured
from hessfig.figures.parts.panels import corner, draw_curve, draw_guide, mark_one, positive, why_empty
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour, shades
from hessfig.predictions.growth_rates import Prediction
from hessfig.terms import Matrix, Part


def linear_axes(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the norms of diagonal blocks along the axis on linear axes: a page per network.

    How to read it: the same numbers as in a growth sheet, but each panel has its own scale. The grey dashed
    curve is c * sigma^p with the predicted p and the c of least squares on these axes. Where the curve leaves
    it (sigma > 1), attention saturates and the power law ends.
    Requires: the sweep's table.csv with diagonal blocks; manifest.json for predictions.
    """
    measured = read_measured(spec, folder)
    networks = measured.networks()
    for variant, num_layers in networks:
        one = measured.of(variant=variant, num_layers=num_layers)
        yield draw_linear(one, suffix=page_suffix(variant, num_layers, networks))


def draw_linear(measured: Measured, *, suffix: str = "") -> Page:
    """Draw one network: rows W_V, W_Q (and whatever else was measured), columns H_o, H_f, H."""
    matrices = measured.matrices() or [Matrix.W_V.value, Matrix.W_Q.value]
    sheet = panel_sheet(
        by_part(matrices), note=how(measured), margins=Margins(across=0.36, top=0.36, down=0.3), share_y=False
    )
    for row, column, ax in sheet:
        block = measured.of(row=matrices[row], col=matrices[row], part=list(Part)[column])
        _draw_panel(ax, block, matrix_colour(matrices[row]))
    label_parts(sheet, matrices, measured)
    for ax in sheet.panels.values():
        ax.set_title(ax.get_title(), pad=11)  # above the power of ten of the y axis
    return Page(suffix, sheet.figure, drawn_numbers(measured))


def _draw_panel(ax: Axes, measured: Measured, colour: str) -> None:
    if not positive(measured.curves).any():
        ax.set_yticks([])
        say(ax, why_empty(measured))
        return
    mark_one(ax, measured.axis)
    layers = measured.layers()
    for shade, layer in zip(shades(colour, len(layers)), layers, strict=True):
        draw_curve(ax, measured.of(layer=layer).curves, colour=shade)
        _draw_guide(ax, measured.of(layer=layer))
    ax.set_xlim(0, 1.04 * measured.curves[X].max())
    ax.set_ylim(0, 1.12 * (measured.curves["mean"] + measured.curves["sem"].fillna(0)).max())
    ax.ticklabel_format(axis="y", scilimits=(-2, 3))
    corner(ax, "\n".join(window_words(measured)), "upper left")
    write_powers(ax, measured)


def _draw_guide(ax: Axes, measured: Measured) -> None:
    """Draw c * x^p, c by least squares on the linear axes."""
    first = measured.slopes.iloc[0]
    exponent = first["predicted"] if first["prediction"] == Prediction.exponent else first["slope"]
    if np.isnan(exponent):
        return
    x = measured.curves[X].to_numpy()
    draw_guide(ax, np.linspace(x.min(), x.max(), 200), exponent, _constant(measured.curves, exponent))


def _constant(curve: pd.DataFrame, exponent: float) -> float:
    drawn = curve[positive(curve)]
    power = drawn[X] ** exponent
    return float((drawn["mean"] * power).sum() / (power**2).sum())
