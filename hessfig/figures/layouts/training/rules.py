"""A race of rules: losses at tuned learning rates against gradients and against seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.interval import student_interval
from hessfig.analysis.manifest import read_run
from hessfig.analysis.training.race import Race, race
from hessfig.figures.layouts.spectra.changes import draw_line, seed_means, tone
from hessfig.figures.layouts.training.means import check_steps, how
from hessfig.figures.parts.grid import Margins, panel_grid
from hessfig.figures.parts.looks import set_y_scale
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import TINY

_ALONG = {"step": "gradients", "seconds": "seconds"}


def steps(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw every rule at its best learning rate: loss against gradients and against seconds, and both results below.

    How to read it: left all rules have the same number of gradients; right the same time, that of the fastest rule,
    with its Hessian products counted. Rates are chosen for every seed by the other seeds, from one grid; a star marks a
    rule whose rate is at an end of the grid for some seed. Dots below: means with 95 % intervals over seeds; a rule
    of which a seed diverged has none.
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
        interval = student_interval([math.nan] if lost else one["loss"])
        half = interval.high - interval.mean
        ax.errorbar(
            [interval.mean],
            [rank],
            xerr=[[half], [half]] if half == half else None,
            fmt="o",
            color=tone(rank),
        )
        rates = sorted(one["rate"].unique())
        words = " or ".join(f"{rate:g}" for rate in rates) + "*" * bool(one["at_edge"].any())
        words += f"; {lost} of {len(one)} diverged" * bool(lost)
        found.append(
            {
                **{"budget": tuned["budget"].iloc[0], "rule": rule, "mean": interval.mean},
                **{"low": interval.low, "high": interval.high, "count": interval.count, "rates": words},
            }
        )
    names = [f"{row['rule']} ({row['rates']})" for row in found]
    ax.set_yticks(range(len(rules)), names, fontsize=TINY)
    ax.set_ylim(len(rules) - 0.5, -0.5)
    return pd.DataFrame(found)
