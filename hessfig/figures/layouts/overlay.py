"""Figure of `hessfig compare`: the values of a reference and of a sweep, and their ratio."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from hessfig.analysis.axis import X
from hessfig.analysis.comparison.against import Comparison
from hessfig.figures.parts.colours import GUIDE, PUBLISHED, matrix_colour, shades
from hessfig.figures.parts.labels import norm_label, plain, symbol
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import SHARED, Page, Sheet, in_sheets, say
from hessfig.figures.parts.panels import draw_curve, mark_one, set_log_range
from hessfig.figures.parts.rows import where
from hessfig.figures.parts.saving import save_sheets
from hessfig.terms import Matrix, Part, name_order

_NOTE = (
    "Coloured: ours, mean over seeds with its 95% interval; open black: {reference}. Below: ours over {reference} "
    "(ratio of geometric means), bars: 95% intervals. Shift: mean over σ, ± standard error. The errors of ratios and "
    "shifts hold the spread over repeats and {batches}."
)
_ONE_BATCH, _TWO_BATCHES = "nothing else, for both sides share one batch", "between batches"
_MOST_ROWS = 6  # weights on a page
_FACTORS = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 2.5)  # possible ticks of the ratio axis
_NORMAL = 1.96  # standard errors that a 95 % interval reaches: ratios of means over many repeats
_WIDEST = np.log(3.0)  # the ratio panels show at most a factor of 3 either way


def draw_overlay(comparison: Comparison, figure_dir: Path) -> list[Path]:
    """Draw a page per depth into figure_dir/figcompare_<sweep>*.

    How to read it: agreement is a ratio of one within its bars at every sigma, and a shift of zero within its
    error. Points of one curve share their weights along sigma, so they wander together.
    Requires: a comparison (hessfig compare sweep=... reference=...).
    """
    paper = Paper()
    with styled(paper):
        return save_sheets(_pages(comparison, paper), figure_dir, f"compare_{comparison.sweep}", paper)


def draw_page(
    comparison: Comparison, depth: int, blocks: Sequence[str], *, paper: Paper | None = None, suffix: str = ""
) -> Page:
    """Draw some weights of one depth, with a row of overlays and a row of ratios per weight, and a column per part."""
    here = comparison.points["num_layers"] == depth
    numbers = comparison.points[here & comparison.points["block"].isin(blocks)]
    points = numbers.assign(**{X: numbers["sigma"]})
    curves = comparison.curves[comparison.curves["num_layers"] == depth]
    parts = [part for part in Part if part in set(points["part"])]
    names = [[f"{block}:{part}{kind}" for part in parts] for block in blocks for kind in ("", ":ratio")]
    batches = _TWO_BATCHES if comparison.batch_scale else _ONE_BATCH
    note = _NOTE.format(reference=plain(comparison.reference), batches=batches)
    style = SHARED.replace(down=0.11, height=[1.25, 0.55] * len(blocks))
    sheet = Sheet.grid(paper or Paper(), names, note, style)
    for index, matrix in enumerate(blocks):
        above, below = sheet.row(2 * index), sheet.row(2 * index + 1)
        here = where(points, block=matrix)
        set_log_range(above, here)
        _set_ratio_range(below, here)
        for upper, lower, part in zip(above, below, parts, strict=True):
            summary = where(curves, block=matrix, part=part)
            _draw_panel(upper, lower, where(here, part=part), summary, matrix_colour(matrix))
    labels = [label for block in blocks for label in (norm_label(block), "ratio")]
    for line, label in zip(sheet.lines, labels, strict=True):
        sheet.panels[line[0]].set_ylabel(label)
    for ax, part in zip(sheet.row(0), parts, strict=True):
        ax.set_title(f"{symbol(part)}: {part.label}")
    for ax in sheet.row(len(names) - 1):
        ax.set_xlabel("σ")
    return sheet.page(suffix, numbers)


def _pages(comparison: Comparison, paper: Paper) -> Iterator[Page]:
    depths = sorted(comparison.curves["num_layers"].unique())
    for depth in depths:
        own = comparison.points[comparison.points["num_layers"] == depth]
        rank = name_order(["W_V", *own["block"]])
        blocks = sorted(set(own["block"]), key=lambda name: (name != Matrix.W_V, rank(name)))
        suffix = f"_depth{depth}" if len(depths) > 1 else ""
        for few, end in in_sheets(blocks, _MOST_ROWS, "page"):
            yield draw_page(comparison, depth, few, paper=paper, suffix=suffix + end)


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
        label = (f"{layer}: " if len(layers) > 1 else "") + _shift(summary, alone=len(layers) == 1)
        _draw_layer(above, below, drawn[drawn["layer"] == layer], tone, label)
    above.legend(loc="upper left", alignment="left", title="shift" if len(layers) == 1 else "Layer: shift")


def _draw_layer(above: Axes, below: Axes, points: pd.DataFrame, tone: Any, label: str) -> None:
    draw_curve(above, points, colour=tone, label=label)
    open_circles: dict[str, Any] = {"fillstyle": "none", "markersize": 3, "markeredgewidth": 0.4}
    above.plot(points["sigma"], points["mean_reference"], "o", color=PUBLISHED, **open_circles)
    ratio = np.exp(points["log_ratio"])
    half = _NORMAL * points["log_ratio_se"]
    ends = np.array([ratio - ratio * np.exp(-half), ratio * np.exp(half) - ratio])
    below.errorbar(points["sigma"], ratio, ends, fmt="o", color=tone, elinewidth=0.6)


def _shift(summary: pd.DataFrame, *, alone: bool) -> str:
    curve = summary.iloc[0]
    if not curve["num_points"]:
        return _why_empty(summary)
    percent = f"{100 * np.expm1(curve['shift']):+.1f} ± {100 * curve['shift_se']:.1f} %".replace("-", "−")
    return f"{percent}, {100 * curve['share_within_3']:.0f} % in 3 se" if alone else percent


def _why_empty(curves: pd.DataFrame) -> str:
    if curves.empty:
        return "(no partner)"
    if curves["zero"].all() and curves["zero_reference"].all():
        return "= 0 on both sides"
    one_sided = (curves["zero"] | curves["zero_reference"]).any()
    return "zero on one side only" if one_sided else "(left out: zero or not finite)"


def _set_ratio_range(axes: Sequence[Axes], points: pd.DataFrame) -> None:
    """Show the ratios on a logarithmic axis around one, wide enough for every bar up to a factor of 3."""
    reach = (points["log_ratio"].abs() + _NORMAL * points["log_ratio_se"]).max()
    half = float(np.clip(1.15 * (reach if np.isfinite(reach) else 0.1), 0.05, _WIDEST))
    factor = max((f for f in _FACTORS if np.log(f) <= 0.9 * half), default=_FACTORS[0])
    for ax in axes:
        ax.set_yscale("log")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_yticks([1 / factor, 1.0, factor])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
    axes[0].set_ylim(np.exp(-half), np.exp(half))
