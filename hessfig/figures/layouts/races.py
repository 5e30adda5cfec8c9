"""Step rules raced, thresholds of stability, heterogeneity that survives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.intervals import geometric_interval
from hessfig.analysis.manifest import read_run
from hessfig.analysis.training_runs import EDGE_TOLERANCE, THRESHOLD, Race, against_plain, race, settled, shares
from hessfig.errors import UserError
from hessfig.figures.layouts.courses import check_steps, counted, draw_means, how, name_columns, of_whole, scale
from hessfig.figures.layouts.scaling import draw_line, seed_means, tone
from hessfig.figures.parts.encoding import set_y_scale
from hessfig.figures.parts.page import GUIDE, TINY, FigureSpec, Page, part_colour
from hessfig.figures.parts.panel_sheet import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.words import plain, quantity_words, symbol
from hessfig.terms import Part

_ALONG = {"step": "gradients", "seconds": "seconds"}


def steps(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw every rule at its best learning rate: loss against gradients and against seconds, and both results below.

    How to read it: left all rules have the same number of gradients; right the same time, that of the fastest rule,
    with its Hessian products counted. Rates are chosen for every seed by the other seeds, from one grid; a star marks a
    rule whose rate is at an end of the grid for some seed. Rates are in each rule's own unit. Dots below: geometric
    means with 95 % intervals over seeds; a rule of which a seed diverged has none. × is the loss over that of the plain
    optimiser, seed by seed, with its interval.
    Requires: the sweep's table.csv of losses and costs over training.optimiser, training.curvature and
    training.learning_rate.
    """
    del spec
    run = read_run(folder)
    check_steps(run.table)
    found = race(run.table)
    seconds = found.budget["seconds"]
    words = f"Right: {seconds:.3g} s each, seconds of this machine (median of single updates and looks)."
    margins = Margins(left=1.25, across=1.35, down=0.4)
    figure, axes = panel_grid(
        2, 2, note=how(run.table, words), margins=margins, share_x=False, share_y=False, panel_height=1.6
    )
    rules = list(dict.fromkeys(found.losses["rule"]))
    numbers = []
    for column, along in enumerate(_ALONG):
        _curves(axes[0, column], found, rules, along)
        numbers.append(_results(axes[1, column], found.tuned[found.tuned["budget"] == along], rules))
        axes[0, column].set_xlabel(_ALONG[along])
        axes[1, column].set_xlabel(f"loss after the same {_ALONG[along]}")
    axes[0, 0].set_ylabel("loss")
    yield Page("", figure, pd.concat(numbers, ignore_index=True))


def _curves(ax: Axes, found: Race, rules: list[str], along: str) -> None:
    tuned = found.tuned[found.tuned["budget"] == along]
    set_y_scale(ax, found.losses["loss"])
    for rank, rule in enumerate(rules):
        runs = found.losses[found.losses["rule"] == rule]
        runs = runs.merge(tuned.loc[tuned["rule"] == rule, ["seed", "rate"]], on=["seed", "rate"])
        if len(runs):
            points = seed_means(runs, [along], "loss")
            points = points[points["count"] == tuned["seed"].nunique()]  # a mean of survivors is no mean
            draw_line(ax, points, along, colour=tone(rank), label=rule, linestyle="-" if rank < 4 else "--")
    shown = found.losses.loc[found.losses["step"] > 0, along]
    ax.set_xlim(0, 1.02 * (shown.max() if along == "step" else 2 * found.budget["seconds"]))
    ax.axvline(found.budget[along], color="#999999", linewidth=0.5, zorder=0)


def _results(ax: Axes, tuned: pd.DataFrame, rules: list[str]) -> pd.DataFrame:
    found = []
    for rank, rule in enumerate(rules):
        one = tuned[tuned["rule"] == rule]
        lost = int(np.isinf(one["loss"]).sum())  # seeds whose run at the rate of the others diverged
        interval = geometric_interval([math.nan] if lost else one["loss"])
        ends = [[interval.mean - interval.low], [interval.high - interval.mean]]
        ax.errorbar([interval.mean], [rank], xerr=ends if np.isfinite(ends).all() else None, fmt="o", color=tone(rank))
        rates = sorted(one["rate"].unique())
        words = " or ".join(f"{rate:g}" for rate in rates) + "*" * bool(one["at_edge"].any())
        words += f"; {lost} of {len(one)} diverged" * bool(lost)
        found.append(
            {
                **{"budget": tuned["budget"].iloc[0], "rule": rule, "mean": interval.mean},
                **{"low": interval.low, "high": interval.high, "count": interval.count, "rates": words},
            }
        )
    frame = pd.DataFrame(found).merge(against_plain(tuned), on=["budget", "rule"], how="left")
    names = [f"{row.rule} ({row.rates}){_ratio(row)}" for row in frame.itertuples()]
    ax.set_yticks(range(len(rules)), names, fontsize=TINY)
    ax.set_ylim(len(rules) - 0.5, -0.5)
    return frame


def _ratio(row: Any) -> str:
    """Return the loss over the plain optimiser's in words; nothing where there is no interval."""
    return f"\n× {row.ratio:.2g} [{row.ratio_low:.2g}, {row.ratio_high:.2g}]" if np.isfinite(row.ratio_low) else ""


_OVER = ("W_V", "W_Q")


def heterogeneity_trained(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw ||V|| / ||Q|| of H, H_o and H_f along the steps, a column a network, a row a layer.

    How to read it: at 1 (dashed) the blocks of values and queries are as large; geometric means over seeds, bands are
    95 % intervals of them.
    Requires: the sweep's table.csv with the diagonal blocks of W_V and W_Q along `state.step` (option `quantity`: by
    default frobenius).
    """
    run = read_run(folder)
    check_steps(run.table)
    rows = counted(run.table)
    rows = rows[(rows["quantity"] == spec.quantity) & (rows["row"] == rows["col"]) & (rows["index"] <= 1)]
    ratios = _ratios(rows)
    if ratios.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws {_OVER[0]} over {_OVER[1]}, and the table has not both",
            got=", ".join(run.table["row"].unique()),
            allowed=f"diagonal blocks of {' and '.join(_OVER)}",
            remedy=f"hessfig run sweep={folder.name} 'blocks=[{','.join(_OVER)}]'",
        )
    yield _draw_survival(run.table, ratios, spec.quantity)


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    place = ["variant", "num_layers", "layer", "part", "seed", "step"]
    one, other = (rows[rows["row"] == name].groupby(place)["value"].mean() for name in _OVER)
    return (one / other).rename("value").dropna().reset_index()


def _draw_survival(table: pd.DataFrame, ratios: pd.DataFrame, quantity: str) -> Page:
    variants = [name for name in dict.fromkeys(table["variant"]) if name in set(ratios["variant"])]
    layers = sorted(ratios["layer"].unique())
    note = how(table, "Geometric means of the ratio of the two blocks' norms; dashed: as large.")
    figure, axes = panel_grid(len(layers), len(variants), note=note, panel_height=1.5)
    scale(axes[0, 0], [ratios])
    points = seed_means(ratios, ["variant", "layer", "part", "step"], logs=True)
    for panels, layer in zip(axes, layers, strict=True):
        scale(panels[0], [ratios])
        for ax, variant in zip(panels, variants, strict=True):
            _draw_survival_panel(ax, points[(points["variant"] == variant) & (points["layer"] == layer)])
    axes[0, 0].legend(loc="best")
    words = f"{_OVER[0][2:]} / {_OVER[1][2:]}: {plain(quantity_words(quantity))}"
    only_outer_labels(axes, x="step", y=[words] * len(layers))
    name_columns(axes[0], variants)
    return Page("", figure, points)


def _draw_survival_panel(ax: Axes, points: pd.DataFrame) -> None:
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    if points.empty:
        say(ax, "(no ratio)")
    for part in Part:
        one = points[points["part"] == part.value]
        if len(one):
            draw_line(ax, one, "step", colour=part_colour(part.value), label=symbol(part.value))


_QUANTITIES = ("largest_eigenvalue", "preconditioned_eigenvalue", "batch_sharpness", "critical_sharpness")


def edge(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw loss and sharpness over its threshold along the steps, a column a variant.

    How to read it: at 1 (dashed) a step of this size just settles in a quadratic: 2 / learning rate for gradient
    descent, 38 / learning rate for AdamW's preconditioned Hessian (beta1 = 0.9). Words in a panel: the mean over the
    last third of the steps, with its 95 % interval over seeds; `at the edge` where all of it is within 10 % of 1. All
    eigenvalues are of iterates, not of points half way between two.
    Requires: the sweep's table.csv with stability_threshold (option `quantity`: which sharpness to draw, or a list).
    """
    run = read_run(folder)
    check_steps(run.table)
    measured = set(run.table["quantity"])
    wanted = spec.words("quantity") or [name for name in _QUANTITIES if name in measured]
    missing = [name for name in (*wanted, THRESHOLD) if name not in measured]
    if missing or not wanted:
        raise UserError(
            "figure.options.quantity: the table has no such sharpness, or no threshold beside it",
            got=", ".join(missing) or "no sharpness",
            allowed=", ".join(sorted(measured)),
            remedy=f"hessfig run sweep={folder.name} quantities=[largest_eigenvalue,{THRESHOLD}]",
        )
    yield _draw_page(run.table, wanted)


def _draw_page(table: pd.DataFrame, wanted: list[str]) -> Page:
    variants = list(dict.fromkeys(table["variant"]))
    margins = Margins(down=0.16)
    note = how(table, "Dashed: threshold. Words: mean over the last third of the steps / threshold.")
    rows = [*wanted, "loss"] if (table["quantity"] == "loss").any() else wanted
    figure, axes = panel_grid(len(rows), len(variants), note=note, margins=margins)
    found = []
    for name, panels in zip(rows, axes, strict=True):
        values = _values(table, name)
        for ax in panels:
            scale(ax, [values])
            ax.set_xscale("linear")  # looked at every so many steps
        for ax, variant in zip(panels, variants, strict=True):
            points = _draw_panel(ax, values[values["variant"] == variant], rows.index(name))
            found.append(points.assign(quantity=name, variant=variant))
        if name != "loss":
            _mark(panels, variants, table, name)
    labels = [plain(quantity_words(name)) + (" / threshold" if name != "loss" else "") for name in rows]
    only_outer_labels(axes, x="step", y=labels)
    name_columns(axes[0], variants)
    return Page("", figure, pd.concat(found, ignore_index=True))


def _values(table: pd.DataFrame, name: str) -> pd.DataFrame:
    if name == "loss":
        return of_whole(counted(table), name)
    every = shares(table, name)
    return every.assign(value=every["share"])


def _draw_panel(ax: Axes, rows: pd.DataFrame, rank: int) -> pd.DataFrame:
    if rows.empty:
        say(ax, "(no number)")
    return draw_means(ax, rows, colour=tone(rank))


def _mark(panels: list[Axes], variants: list[str], table: pd.DataFrame, name: str) -> None:
    ends = settled(table, name)
    for ax, variant in zip(panels, variants, strict=True):
        ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
        if variant in ends:
            one = ends[variant]
            half = (one.high - one.low) / 2
            words = f"{one.mean:.3g}" + (f" ± {half:.2g}" if half == half else "")
            inside = one.low > 1 - EDGE_TOLERANCE and one.high < 1 + EDGE_TOLERANCE
            words += "\nat the edge" if inside else ""
            box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
            ax.text(0.97, 0.9, words, transform=ax.transAxes, ha="right", fontsize=TINY, bbox=box)
