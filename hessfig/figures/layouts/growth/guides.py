"""Guides of growth sheets: predicted powers below their curves, or the fits themselves, and what they are called."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from hessfig.analysis.axis import X
from hessfig.analysis.windows import WHOLE, Window, within
from hessfig.figures.parts.measured import Measured
from hessfig.figures.parts.panels import beside_one, coefficient, draw_guide, power
from hessfig.predictions.growth_rates import Prediction

_BELOW = 0.06  # guides run below their curve by this share of the panel: slopes can be told apart by eye


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
        beside_one(ax, words, measured.axis)


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


def _for_layers(layers: np.ndarray, measured: Measured) -> str:
    """Return which layers an exponent is for, when it is not for all."""
    if set(layers) == set(measured.layers()):
        return ""
    return f" (layer {layers[0]})" if len(layers) == 1 else f" (layers {min(layers)}–{max(layers)})"


def _slope_on(measured: Measured, window: Window) -> float:
    index = measured.windows.index(window)
    return float(measured.slopes["slope"].iloc[index])
