"""An overview over depths: the fitted slope of every layer of every network beside its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hessfig.analysis.windows import as_window, label
from hessfig.figures.layouts.growth.log_axes import by_part, growth_pages
from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import say, width_in
from hessfig.figures.parts.measured import Measured, read_measured
from hessfig.figures.parts.panels import corner, why_empty
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import GUIDE, matrix_colour, shades
from hessfig.figures.parts.words import part_title, symbol, weight_words
from hessfig.predictions.growth_rates import Prediction
from hessfig.terms import Matrix, Part

_NAME = 0.27  # inches that a layer takes in the legend
_STEP = 0.14  # between the layers of one network, in units of one depth


def growth_by_depth(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw a growth sheet for every depth (Figures 6 and 7), then the overview of their slopes.

    How to read it: on a sheet, a straight line of slope p means ||block||_F ~ sigma^p; each panel prints the
    fitted slopes with their errors over seeds beside the predicted powers (grey dashed guides), later layers are
    darker. In the overview a dot is the slope fitted to one layer of one network, with its error; the grey bar
    at its place is the predicted exponent.
    Requires: the sweep's table.csv with diagonal blocks of several depths; manifest.json for predictions.
    """
    measured = read_measured(spec, folder)
    yield from growth_pages(measured)
    variants = [(variant, 0) for variant in measured.curves["variant"].unique()]
    for variant, depth in variants:
        suffix = f"{page_suffix(variant, depth, variants)}_overview"
        yield draw_overview(measured.of(variant=variant), suffix=suffix)


def draw_overview(measured: Measured, *, suffix: str = "_overview") -> Page:
    """Draw the telling slopes against the number of layers: rows W_V, W_Q, columns H_o, H_f, H."""
    first = measured.telling_slopes()
    measured = replace(measured, slopes=first)
    matrices = measured.matrices() or [Matrix.W_V.value, Matrix.W_Q.value]
    note = f"{_words(measured)} Layers stand side by side, darker for later ones.{measured.setting}"
    sheet = panel_sheet(by_part(matrices), note=note)
    for row, matrix in enumerate(matrices):
        if sheet.row(row):
            _set_ranges(sheet.row(row), first[first["row"] == matrix])
            _name_layers(sheet.row(row)[0], int(first["layer"].max()), matrix_colour(matrix))
    for row, column, ax in sheet:
        block = measured.of(row=matrices[row], col=matrices[row], part=list(Part)[column])
        _draw_panel(ax, block, matrix_colour(matrices[row]))
    sheet.label(
        x="number of layers",
        columns=[(part_title(part), symbol(part)) for part in Part],
        rows=[f"slope of {weight_words(matrix)}" for matrix in matrices],
        names=[weight_words(matrix) for matrix in matrices],
        unit="slope",
    )
    return Page(suffix, sheet.figure, first)


def _words(measured: Measured) -> str:
    windows = [as_window(row.window_low, row.window_high) for row in measured.slopes.itertuples()]
    axis = measured.axis.symbol
    others = "".join(
        f" ({label(window, axis)} for limits of small σ)"
        for window in dict.fromkeys(windows)
        if window != measured.windows[0]
    )
    where = label(measured.windows[0], axis) + others
    return f"Dots: slope on {where}, ± bootstrap over seeds; grey bars: predicted."


def _draw_panel(ax: Axes, measured: Measured, colour: str) -> None:
    slopes = measured.slopes
    if slopes["slope"].isna().all():
        say(ax, why_empty(measured))
        return
    tones = shades(colour, max(1, int(slopes["layer"].max())))
    place = slopes["num_layers"] + _STEP * (slopes["layer"] - (slopes["num_layers"] + 1) / 2)
    _draw_predictions(ax, slopes.assign(place=place))
    for x, row in zip(place, slopes.itertuples(), strict=True):
        tone = tones[max(row.layer, 1) - 1]
        ax.errorbar(x, row.slope, row.slope_se, fmt="o", color=tone, elinewidth=0.8, markersize=2.6)
    if slopes["is_zero"].any():
        corner(ax, "last layer: = 0 (theorem)", "lower left")


def _draw_predictions(ax: Axes, slopes: pd.DataFrame) -> None:
    """Draw a grey bar at every predicted exponent of a network, from its first to its last layer of that exponent."""
    predicted = slopes[slopes["prediction"] == Prediction.exponent]
    for (_, exponent), layers in predicted.groupby(["num_layers", "predicted"]):
        ends = [layers["place"].min() - 0.14, layers["place"].max() + 0.14]
        ax.plot(ends, [exponent] * 2, color=GUIDE, linewidth=0.8, zorder=1)


def _set_ranges(axes: Sequence[Axes], slopes: pd.DataFrame) -> None:
    """Leave room above the highest slope for the legend, and beside the first and last depth."""
    values = slopes[["slope", "predicted"]].to_numpy(float)
    if np.isfinite(values).any():
        low, high = np.nanmin(values), np.nanmax(values)
        spread = max(high - low, 1.0)
        axes[0].set_ylim(low - 0.2 * spread, high + 0.4 * spread)
    axes[0].set_xlim(slopes["num_layers"].min() - 0.6, slopes["num_layers"].max() + 0.6)
    axes[0].set_xticks(sorted(slopes["num_layers"].unique()))


def _name_layers(ax: Axes, count: int, colour: str) -> None:
    if not count:
        return  # nothing but weights without a layer
    tones = shades(colour, count)
    handles = [Line2D([], [], marker="o", linestyle="", color=tone, markersize=2.6) for tone in tones]
    names = [str(layer) for layer in range(1, count + 1)]
    columns = min(count, int(width_in(ax) / _NAME))
    ax.legend(
        handles, names, title="Layer:", ncols=columns, loc="upper left", columnspacing=0.4, alignment="left"
    )
