"""Growth sheets on linear axes (Figures 5a and 5b)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import X
from hessfig.figures.layouts.growth.log_axes import slope_words, window_slopes, write_powers
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.measured import Measured, drawn_numbers, read_measured
from hessfig.figures.parts.panels import corner, draw_curve, draw_guide, mark_one, positive, why_empty
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour, shades
from hessfig.figures.parts.words import norm_label, symbol
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
    figure, axes = panel_grid(
        len(matrices),
        len(Part),
        note=f"{measured.how()} {slope_words(measured)}",
        margins=Margins(across=0.34, top=0.32, down=0.24),
        share_y=False,
    )
    for row, matrix in zip(axes, matrices, strict=True):
        for ax, part in zip(row, Part, strict=True):
            _draw_panel(ax, measured.of(row=matrix, col=matrix, part=part), matrix_colour(matrix))
    for ax, part in zip(axes[0], Part, strict=True):
        ax.set_title(f"{symbol(part)}: {part.label}", pad=9)
    rows = [norm_label(matrix, quantity=measured.quantity) for matrix in matrices]
    only_outer_labels(axes, x=measured.axis.symbol, y=rows)
    return Page(suffix, figure, drawn_numbers(measured))


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
    corner(ax, "\n".join(window_slopes(measured)), "upper left")
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
