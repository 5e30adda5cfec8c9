"""Published values under ours, and their ratio: what `hessfig compare` draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from hessfig.analysis.axis import X
from hessfig.analysis.comparison.outcome import Comparison
from hessfig.figures.parts.grid import Margins, panel_grid, say
from hessfig.figures.parts.panels import draw_curve, mark_one, set_log_range
from hessfig.figures.parts.save import Page, save_page
from hessfig.figures.parts.style import GUIDE, PUBLISHED, matrix_colour, shades, styled
from hessfig.figures.parts.words import norm_label, symbol
from hessfig.terms import Matrix, Part

_NOTE = (
    "Coloured: ours, mean over seeds ± standard error; open black: published. Below: ours / published (ratio of "
    "geometric means), bars ± standard error. Shift: mean over σ, its error from the spread over repeats."
)
_FACTORS = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 2.5)  # where the ratio axis may have its ticks
_WIDEST = np.log(3.0)  # the ratio panels show at most a factor of 3 either way


def draw_overlay(comparison: Comparison, figure_dir: Path) -> list[Path]:
    """Draw a page per depth into figure_dir/figcompare_<sweep>*.

    How to read it: agreement is a ratio of one within its bars at every sigma, and a shift of zero within its
    error. Points of one curve share their weights along sigma, so they wander together.
    Requires: a comparison (hessfig compare sweep=... reference=...).
    """
    depths = sorted(comparison.curves["num_layers"].unique())
    with styled():
        pages = [
            draw_depth(comparison, depth, suffix=f"_depth{depth}" if len(depths) > 1 else "")
            for depth in depths
        ]
        return [path for page in pages for path in save_page(page, figure_dir, f"compare_{comparison.sweep}")]


def draw_depth(comparison: Comparison, depth: int, *, suffix: str = "") -> Page:
    """Draw one depth: for each weight a row of overlays and a row of ratios, a column for each part both sides have."""
    numbers = comparison.points[comparison.points["num_layers"] == depth]
    points = numbers.assign(**{X: numbers["sigma"]})
    curves = comparison.curves[comparison.curves["num_layers"] == depth]
    matrices = sorted(set(points["block"]), key=[Matrix.W_V, *Matrix].index)
    parts = [part for part in Part if part in set(points["part"])]
    figure, axes = _grid(len(matrices), len(parts))
    for index, matrix in enumerate(matrices):
        above, below = axes[2 * index], axes[2 * index + 1]
        here = points[points["block"] == matrix]
        set_log_range(above.tolist(), here)
        _set_ratio_range(below.tolist(), here)
        for column, part in enumerate(parts):
            panel, summary = (
                here[here["part"] == part],
                curves[(curves["block"] == matrix) & (curves["part"] == part)],
            )
            _draw_panel(above[column], below[column], panel, summary, matrix_colour(matrix))
        above[0].set_ylabel(norm_label(matrix))
        below[0].set_ylabel("ratio")
    for ax, part in zip(axes[0], parts, strict=True):
        ax.set_title(f"{symbol(part)}: {part.label}")
    for ax in axes[-1]:
        ax.set_xlabel("σ")
    return Page(suffix, figure, numbers)


def _grid(rows: int, cols: int) -> tuple[Figure, np.ndarray]:
    ratios = [1.25, 0.55] * rows
    return panel_grid(
        2 * rows, cols, note=_NOTE, panel_height=0.9, margins=Margins(down=0.11), height_ratios=ratios
    )


def _draw_panel(above: Axes, below: Axes, points: pd.DataFrame, curves: pd.DataFrame, colour: str) -> None:
    drawn = points[points["log_ratio"].notna()]
    below.axhline(1.0, color=GUIDE, linewidth=0.6)
    if drawn.empty:
        say(above, _why_empty(curves))
        return
    mark_one(above)
    mark_one(below)
    layers = sorted(curves["layer"].unique())
    for tone, layer in zip(shades(colour, len(layers)), layers, strict=True):
        summary = curves[curves["layer"] == layer]
        label = f"{layer}: " * (len(layers) > 1) + _shift(summary, alone=len(layers) == 1)
        _draw_layer(above, below, drawn[drawn["layer"] == layer], tone, label)
    above.legend(loc="upper left", alignment="left", title="shift" if len(layers) == 1 else "Layer: shift")


def _draw_layer(above: Axes, below: Axes, points: pd.DataFrame, tone: Any, label: str) -> None:
    draw_curve(above, points, colour=tone, label=label)
    open_circles: dict[str, Any] = {"fillstyle": "none", "markersize": 3, "markeredgewidth": 0.4}
    above.plot(points["sigma"], points["mean_published"], "o", color=PUBLISHED, **open_circles)
    ratio = np.exp(points["log_ratio"])
    below.errorbar(
        points["sigma"], ratio, ratio * points["log_ratio_se"], fmt="o", color=tone, elinewidth=0.6
    )


def _shift(summary: pd.DataFrame, *, alone: bool) -> str:
    curve = summary.iloc[0]
    if not curve["num_points"]:
        return _why_empty(summary)
    percent = f"{100 * np.expm1(curve['shift']):+.1f} ± {100 * curve['shift_se']:.1f} %".replace("-", "−")
    return f"{percent}, {100 * curve['share_within_3']:.0f} % in 3 se" if alone else percent


def _why_empty(curves: pd.DataFrame) -> str:
    if curves.empty:
        return "(not published)"
    if curves["zero"].all() and curves["zero_published"].all():
        return "= 0, ours and published"
    one_sided = (curves["zero"] | curves["zero_published"]).any()
    return "zero on one side only" if one_sided else "(left out: zero or not finite)"


def _set_ratio_range(axes: Sequence[Axes], points: pd.DataFrame) -> None:
    """Show the ratios on a logarithmic axis around one, wide enough for every bar up to a factor of 3."""
    reach = (points["log_ratio"].abs() + points["log_ratio_se"]).max()
    half = float(np.clip(1.15 * (reach if np.isfinite(reach) else 0.1), 0.05, _WIDEST))
    factor = max((f for f in _FACTORS if np.log(f) <= 0.9 * half), default=_FACTORS[0])
    for ax in axes:
        ax.set_yscale("log")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_yticks([1 / factor, 1.0, factor])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
    axes[0].set_ylim(np.exp(-half), np.exp(half))
