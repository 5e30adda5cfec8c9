"""Growth sheets: block norms along the axis (sigma), a row per weight, a column per part of the Hessian."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hessfig.analysis.axis import X
from hessfig.analysis.slopes.bootstrap import ARITHMETIC, MIN_POINTS
from hessfig.analysis.windows import WHOLE, Window, as_window, label, within
from hessfig.figures.parts.grid import only_outer_labels, panel_grid, say
from hessfig.figures.parts.measured import Measured, drawn_numbers, read_measured, window_words
from hessfig.figures.parts.panels import (
    coefficient,
    corner,
    draw_curve,
    draw_guide,
    fitted,
    is_rising,
    mark_one,
    positive,
    power,
    set_log_range,
    why_empty,
)
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import GUIDE, SMALL, matrix_colour, shades
from hessfig.figures.parts.words import norm_label, symbol
from hessfig.predictions.growth_rates import Prediction
from hessfig.terms import Matrix, Part

_BELOW = 0.06  # guides run below their curve by this share of the panel: slopes can be told apart by eye


def growth(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the norms of diagonal blocks against sigma in log-log axes (Figures 3, 6, 7): a page per network.

    How to read it: a straight line of slope p means ||block||_F ~ sigma^p. Each panel prints the fitted
    slope with its bootstrap error over seeds and, in the corner, the predicted power, drawn as a grey dashed
    guide a little below the curve. Without a prediction the guides are the fits themselves, one a window.
    Later layers are darker. A block that vanishes says so.
    Requires: the sweep's table.csv with diagonal blocks; manifest.json for predictions.
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
    figure, axes = panel_grid(len(matrices), len(Part), note=f"{measured.how()} {slope_words(measured)}")
    for row, matrix in zip(axes, matrices, strict=True):
        block = measured.of(row=matrix, col=matrix)
        set_log_range(list(row), block.curves, measured.axis)
        for ax, part in zip(row, Part, strict=True):
            draw_panel(ax, block.of(part=part), matrix_colour(matrix))
    for ax, part in zip(axes[0], Part, strict=True):
        ax.set_title(f"{symbol(part)}: {part.label}")
    rows = [norm_label(matrix, quantity=measured.quantity) for matrix in matrices]
    only_outer_labels(axes, x=measured.axis.symbol, y=rows)
    return Page(suffix, figure, drawn_numbers(measured))


def slope_words(measured: Measured) -> str:
    """Return the words about slopes in the note."""
    means = "" if measured.average == ARITHMETIC else " of geometric means"
    windows = window_words(measured.windows, measured.axis)
    return f"Slopes: least squares{means} in log-log, {windows}; ± bootstrap over seeds."


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
        draw_curve(
            ax, curve.curves, colour=shade, label=_layer_words(curve, layer, alone=alone), linewidth=width
        )
    draw_guides(ax, measured)
    rising = is_rising(measured.curves)
    if len(layers) == 1:
        corner(ax, "\n".join(window_slopes(measured)), "upper left" if rising else "lower left")
    else:
        legend = ax.legend(title="Layer: slope", loc=2 if rising else 3, alignment="left", handlelength=0.9)
        for line in legend.get_lines():
            line.set_linewidth(1.2)


def draw_guides(ax: Axes, measured: Measured) -> None:
    """Draw predicted power laws below their curves, or, where theory is silent, the fits themselves."""
    predicted = measured.slopes[measured.slopes["prediction"] == Prediction.exponent]
    if (measured.slopes["prediction"] == Prediction.unknown).all():
        _draw_fits(ax, measured)
        return
    groups = predicted.groupby("predicted", sort=True)["layer"].unique()
    x = np.sort(measured.curves[X].unique())
    for style, (exponent, layers) in enumerate(groups.items()):
        curves = [measured.of(layer=layer).curves for layer in layers]
        constants = [coefficient(curve, exponent, measured.windows[0]) for curve in curves]
        draw_guide(ax, x, exponent, _drop(ax) * np.nanmin(constants), style=style)
    write_powers(ax, measured)


def write_powers(ax: Axes, measured: Measured) -> None:
    """Write the predicted powers into the lower right corner, and which layers they are for."""
    predicted = measured.slopes[measured.slopes["prediction"] == Prediction.exponent]
    groups = predicted.groupby("predicted", sort=True)["layer"].unique()
    words = [power(exponent) + _for_layers(layers, measured) for exponent, layers in groups.items()]
    if words:
        size = SMALL if len("".join(words)) > 4 else SMALL + 1.5
        corner(ax, ",  ".join(words), "lower right", colour=GUIDE, size=size)


def _draw_fits(ax: Axes, measured: Measured) -> None:
    """Draw the fitted power law of every window along that window, below the curve unless it spans the grid."""
    for style, window in enumerate(measured.windows):
        for layer in measured.layers():
            one = measured.of(layer=layer)
            slope = _slope_on(one, window)
            x = one.curves[X].to_numpy()
            c = coefficient(one.curves, slope, window) * (1.0 if window == WHOLE else _drop(ax))
            draw_guide(ax, x[within(x, window)], slope, c, style=style)


def _drop(ax: Axes) -> float:
    low, high = ax.get_ylim()
    return float((low / high) ** _BELOW)


def window_slopes(measured: Measured) -> list[str]:
    """Return 'slope ± error' of a single curve on each window."""
    rows = list(measured.slopes.itertuples())
    if len(rows) == 1 and rows[0].num_points >= MIN_POINTS:
        return [f"slope {fitted(rows[0].slope, rows[0].slope_se)}"]
    return [f"{_window(r, measured)}: {fitted(r.slope, r.slope_se)}" for r in rows]


def _window(row: Any, measured: Measured) -> str:
    return label(as_window(row.window_low, row.window_high), measured.axis.symbol)


def _layer_words(measured: Measured, layer: int, *, alone: bool) -> str:
    if alone:
        return ""
    if not positive(measured.curves).any():
        return f"{layer}: {why_empty(measured)}"
    slope = measured.telling_slopes().iloc[0]
    window = as_window(slope["window_low"], slope["window_high"])
    where = "" if window == measured.windows[0] else f" ({label(window, measured.axis.symbol)})"
    return f"{layer}: {fitted(slope['slope'], slope['slope_se'])}{where}"


def _for_layers(layers: np.ndarray, measured: Measured) -> str:
    """Return which layers an exponent is for, when it is not for all."""
    if set(layers) == set(measured.layers()):
        return ""
    return f" (layer {layers[0]})" if len(layers) == 1 else f" (layers {min(layers)}–{max(layers)})"


def _slope_on(measured: Measured, window: Window) -> float:
    index = measured.windows.index(window)
    return float(measured.slopes["slope"].iloc[index])
