"""How a spectrum stretches along a setting: outliers, bulk quantiles, and the one over the width of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from hessfig.analysis.axis import Axis, X, along, check_places, fixed_words
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.figures.layouts.spectra.changes import draw_line, seed_means
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid
from hessfig.figures.parts.looks import set_x_scale
from hessfig.figures.parts.numbers import as_written
from hessfig.figures.parts.panels import set_decades
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import shades
from hessfig.figures.parts.words import (
    estimator_words,
    left_out_words,
    part_words,
    seeds_words,
    variant_words,
)
from hessfig.record import LEFT_OUT

LARGEST, SMALLEST, QUANTILES = "largest_eigenvalue", "smallest_eigenvalue", "density_quantile"
EXACT_QUANTILES, CONDITION = "eigenvalue_quantile", "condition_number"
_PLACE = ["variant", "num_layers", X, "seed"]
_BULK = (5, 95)
_OUTLIER, _QUANTILE, _SIZE = "#b2182b", "#2166ac", "#333333"


def sinks(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw outermost eigenvalues and bulk quantiles along the axis, and how far apart they are; a column a kind.

    How to read it: red lines are the largest and smallest eigenvalue, blue ones the 5, 25, 50, 75 and 95 % quantiles.
    A spectrum that stretches has red lines that leave zero while the blue ones close in on it. The lower row says it in
    one number, the outermost eigenvalue in size over the width of the bulk (95 less 5 % quantile; geometric mean);
    the last row is the condition number, where all eigenvalues are known: a Lanczos density has no smallest one, and
    its quantiles are no finer than its nodes. Bands: 95 % interval over seeds (Student's t).
    Requires: the sweep's table.csv with `largest_eigenvalue`, `smallest_eigenvalue` and `density` of one block, or
    with `spectrum` (option `block`: all by default).
    """
    run = read_run(folder)
    block = str(spec.options.get("block", "all"))
    table = along(run.table, run.axis)
    table = table[(table["row"] == block) & (table["col"] == block)]
    _check(table, block)
    check_places(table, run.axis)
    parts = list(dict.fromkeys(table["part"]))
    for part in parts:
        suffix = f"_{part}" if len(parts) > 1 else ""
        yield _draw_page(table[table["part"] == part], run.axis, suffix)


def outstanding(table: pd.DataFrame) -> pd.DataFrame:
    """Return the outermost eigenvalue in size over the bulk's width, by network, place and seed."""
    ends = table[table["quantity"].isin([LARGEST, SMALLEST]) & (table["index"] <= 1)]
    outer = ends.assign(value=ends["value"].abs()).groupby(_PLACE)["value"].max()
    low, high = (_quantile(table, percent).groupby(_PLACE)["value"].mean() for percent in _BULK)
    width = (high - low).where(high > low)
    return (outer / width).dropna().rename("value").reset_index()


def _draw_page(table: pd.DataFrame, axis: Axis, suffix: str) -> Page:
    counted = table[~table["status"].isin(LEFT_OUT)]
    networks = list(counted[["variant", "num_layers"]].drop_duplicates().itertuples(index=False, name=None))
    labels = ["eigenvalue", "outermost / bulk width"]
    labels += ["condition number"] * bool((counted["quantity"] == CONDITION).any())
    note = (
        f"{part_words(table['part'].iloc[0])}: mean over {seeds_words(table)}, band: 95% interval (Student's t); lower"
        f" rows: geometric mean.{fixed_words(table, axis)} {estimator_words(table)}.{left_out_words(table)}"
    )
    margins = Margins(left=0.62, down=0.16)
    figure, axes = panel_grid(len(labels), len(networks), note=note, panel_height=1.5, margins=margins)
    numbers, floor = [], _floor(counted)
    for panels, (variant, depth) in zip(axes.T, networks, strict=True):
        here = counted[(counted["variant"] == variant) & (counted["num_layers"] == depth)]
        numbers.append(_draw_ends(panels[0], here, floor))
        numbers.append(_draw_sizes(panels[1], outstanding(here), "outermost_over_bulk"))
        if len(labels) > 2:
            numbers.append(_draw_sizes(panels[2], here[here["quantity"] == CONDITION], CONDITION))
        panels[0].set_title(variant_words(variant) or "network")
    set_x_scale(axes[-1, 0], counted[X])
    only_outer_labels(axes, x=axis.symbol, y=labels)
    axes[0, -1].legend(loc="best", ncols=2)
    return Page(suffix, figure, as_written(pd.concat(numbers, ignore_index=True), axis))


def _draw_ends(ax: Axes, here: pd.DataFrame, floor: float) -> pd.DataFrame:
    ax.set_yscale("symlog", linthresh=floor, linscale=0.4)
    ax.yaxis.set_minor_locator(NullLocator())
    found = []
    percents = sorted(_quantiles(here)["index"].unique())
    for percent, colour in zip(percents, shades(_QUANTILE, len(percents)), strict=True):
        points = seed_means(_quantile(here, percent), ["variant", "num_layers", X])
        draw_line(ax, points, X, colour=colour, label=f"{percent}%")
        found.append(points.assign(shown=f"quantile_{percent}"))
    for quantity, words in ((LARGEST, "largest, smallest"), (SMALLEST, "")):
        rows = here[(here["quantity"] == quantity) & (here["index"] <= 1)]
        points = seed_means(rows, ["variant", "num_layers", X])
        draw_line(ax, points, X, colour=_OUTLIER, label=words or "_")
        found.append(points.assign(shown=quantity))
    ax.axhline(0, color="#999999", linewidth=0.4, zorder=0)
    return pd.concat(found)


def _draw_sizes(ax: Axes, rows: pd.DataFrame, shown: str) -> pd.DataFrame:
    set_decades(ax, "y")
    points = seed_means(rows, ["variant", "num_layers", X], logs=True)
    draw_line(ax, points, X, colour=_SIZE)
    return points.assign(shown=shown)


def _floor(counted: pd.DataFrame) -> float:
    """Return where the axis becomes linear: at the smallest width of a bulk, or a millionth of the outliers."""
    low, high = (
        _quantile(counted, percent).groupby(["variant", X])["value"].mean().abs() for percent in _BULK
    )
    widths = np.concatenate([low.to_numpy(), high.to_numpy()])
    largest = float(counted[counted["quantity"] == LARGEST]["value"].abs().max()) or 1.0
    smallest = float(widths[widths > 0].min()) if (widths > 0).any() else largest
    return max(10 ** np.floor(np.log10(smallest)), 1e-6 * largest)


def _quantiles(table: pd.DataFrame) -> pd.DataFrame:
    """Return the quantiles, exact ones where there are some."""
    exact = table[table["quantity"] == EXACT_QUANTILES]
    return exact if len(exact) else table[table["quantity"] == QUANTILES]


def _quantile(table: pd.DataFrame, percent: int) -> pd.DataFrame:
    found = _quantiles(table)
    return found[found["index"] == percent]


def _check(table: pd.DataFrame, block: str) -> None:
    measured = set(table["quantity"])
    missing = [name for name in (LARGEST, SMALLEST) if name not in measured]
    missing += [] if measured & {QUANTILES, EXACT_QUANTILES} else [QUANTILES]
    if missing:
        raise UserError(
            f"the table has no {', '.join(missing)} of the block {block}",
            got=", ".join(sorted(measured)) or "nothing of this block",
            allowed="a sweep with largest_eigenvalue, smallest_eigenvalue and density, or with spectrum",
            remedy="figure.options.block=all, or 'quantities=[largest_eigenvalue,smallest_eigenvalue,density]'",
        )
