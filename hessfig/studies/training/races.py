"""Figures of races between update rules: losses at equal numbers of gradients and at equal times."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.intervals import geometric_interval
from hessfig.analysis.training_runs import Race, against_plain, race
from hessfig.figures.layouts.courses import how
from hessfig.figures.parts import labels
from hessfig.figures.parts.chart_encoding import ChartEncoding
from hessfig.figures.parts.colours import GUIDE, TONES, tone
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.lettering import TINY
from hessfig.figures.parts.panel_sheet import APART, Page, Sheet, label_side
from hessfig.figures.parts.panels import draw_interval, seed_means
from hessfig.figures.parts.rows import where
from hessfig.figures.parts.ticks import set_decades, set_y_scale
from hessfig.terms import Optimiser

_RESULTS = ChartEncoding(x="rule", series=("budget",))
_ALONG = {"step": "gradients", "seconds": "seconds"}
_RULES = {one.replace("_", " "): one.facts.label for one in Optimiser}


def steps(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw every rule at its best learning rate: loss against gradients and against seconds, and both results below.

    How to read it: left all rules have the same number of gradients; right the same time, that of the fastest rule,
    with its Hessian products counted. Rates are chosen for every seed by the other seeds, from one grid; a star marks a
    rule whose rate is at an end of the grid for some seed. Rates are in each rule's own unit. Dots below: geometric
    means with 95 % intervals over seeds; a rule of which a seed diverged has none. × is the loss over that of the plain
    optimiser, seed by seed, with its interval.
    Requires: the sweep's table.csv of losses and costs over training.optimiser, training.curvature and
    training.learning_rate.
    """
    table = source.table
    result = race(table)
    rules = list(dict.fromkeys(result.losses["rule"]))
    medians = "medians over updates, and over looks at the curvature"
    words = f"Right: {result.budget['seconds']:.3g} s each, seconds of this machine ({medians})."
    names = [list(_ALONG), [f"{along}:loss" for along in _ALONG]]
    style = APART.replace(left=1.25, across=1.35, down=0.4, height=1.6, narrowest=None)
    sheet = Sheet.grid(spec.paper, names, how(table, words), style)
    results = {along: _results_of(result.tuned[result.tuned["budget"] == along], rules) for along in _ALONG}
    for row, column, ax in sheet:
        along = list(_ALONG)[column]
        if row == 0:
            _curves(ax, result, rules, along)
            ax.set_xlabel(_ALONG[along])
        else:
            _draw_results(ax, results[along])
            ax.set_xlabel(f"loss after the same {_ALONG[along]}")
        if (row, column) == (0, 0):
            ax.set_ylabel("loss")
    yield sheet.page("", pd.concat(results.values(), ignore_index=True), _RESULTS)


_BUDGETS = {"step": "gradients", "products": "gradients + 2 × products", "seconds": "seconds"}
_RESULT = 0.17  # height in inches of a rule's line in a panel
_RACE = [["step", "seconds"], ["step:loss", "seconds:loss"], ["products", "ratio"]]
_MARKS = "os^Dv<>PXpd"  # markers of rules, so that colour is not the only distinction
_MORE_TONES = ("#7f7f7f", "#bcbd22", "#e15759", "#7fc7c4")  # colours of further rules, for which `tone` has none


def race_of_rules(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw rules at their best rate or damping: loss against three costs, and how well the quadratic model predicts.

    How to read it: curves are geometric means over seeds with 95 % intervals, at the rate or damping that is best after
    all gradients; a curve ends where a run of a seed diverged, and a rule of which one did has no dot. Dots are losses
    after the budgets at the grey lines, at the best rate for that budget. It is chosen for every seed by the other
    seeds; a star marks a rule whose choice is at an end of its grid for some seed. × is the loss over that of the
    reference, seed by seed, with its interval. A Hessian product costs two gradients. True over predicted decrease is 1
    where the quadratic model of the loss holds along the step: median over seeds; below 0 the step raised the loss, and
    values beyond the panel are drawn at its border.
    Requires: the sweep's table.csv of losses, costs and predicted decreases (option `reference`: a rule).
    """
    table = source.table
    result = race(table)
    rules, reference = list(dict.fromkeys(result.losses["rule"])), str(spec.options.get("reference", ""))
    words = (
        f"Seconds: {result.budget['seconds']:.3g} s each, medians of this machine. Middle: rate or damping, and the"
        f" loss over that of {_named(reference)}. Geometric means over {table['seed'].nunique()} seeds with 95%"
        f" intervals; a curve ends, and a rule has no dot, where a run of a seed diverged."
    )
    style = APART.replace(left=1.5, across=0.4, top=0.62, down=0.42, narrowest=None)
    style = style.replace(height=[1.7, _RESULT * len(rules) + 0.1, 1.7])
    sheet = Sheet.grid(spec.paper, _RACE, words + labels.left_out_words(table), style)
    drawn = []
    for row, column, ax in sheet:
        along, _, is_result = _RACE[row][column].partition(":")
        if is_result:
            results = _results_of(result.tuned[result.tuned["budget"] == along], rules, reference)
            _draw_side_by_side(ax, results, named=column == 0)
            ax.set_xlabel(f"loss after the same {_BUDGETS[along]}")
            drawn.append(results)
        elif along == "ratio":
            _draw_ratios(ax, result, rules)
        else:
            _curves(ax, result, rules, along, chosen="step")
            ax.set_xlabel(_BUDGETS[along])
            if column == 0:
                label_side(ax, "loss")
    sheet.name_above(sheet.first)
    yield sheet.page("", pd.concat(drawn, ignore_index=True), _RESULTS)


_RATIOS = (-0.5, 2.0)
_BESIDE = 1.5  # room for words to the right of the dots, as a multiple of the panel's width


def _draw_ratios(ax: Axes, result: Race, rules: list[str]) -> None:
    chosen = where(result.tuned, budget="step")[["rule", "seed", "rate"]]
    ratios = result.ratios.merge(chosen, on=["rule", "seed", "rate"])
    for rank, rule in enumerate(rules):
        medians = where(ratios, rule=rule).groupby("step")["ratio"].median().clip(*_RATIOS)
        style: dict[str, Any] = {"linestyle": _line(rank), "marker": _MARKS[rank % len(_MARKS)], "markersize": 3}
        ax.plot(medians.index, medians, color=_tone(rank), markeredgewidth=0, **style)
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    ax.set_ylim(_RATIOS[0] - 0.05, _RATIOS[1] + 0.05)
    ax.set_xlabel("gradients")
    ax.set_title("true / predicted decrease")


def _named(rule: str) -> str:
    """Return the published name of a rule, with its changed settings."""
    name, comma, rest = rule.partition(",")
    return _RULES.get(name, name) + comma + rest


def _line(rank: int) -> str:
    return ("-", "--", ":")[min(rank // 4, 2)]


def _tone(rank: int) -> str:
    """Return the colour of a rule; the first eleven rules have distinct colours."""
    return tone(rank) if rank < len(TONES) else _MORE_TONES[(rank - len(TONES)) % len(_MORE_TONES)]


def _curves(ax: Axes, result: Race, rules: list[str], along: str, *, chosen: str = "") -> None:
    tuned = where(result.tuned, budget=chosen or along)
    set_y_scale(ax, result.losses["loss"])
    for rank, rule in enumerate(rules):
        runs = where(result.losses, rule=rule).merge(where(tuned, rule=rule)[["seed", "rate"]], on=["seed", "rate"])
        if len(runs):
            points = seed_means(runs, [along], "loss", logs=ax.get_yscale() == "log")
            points = points[points["count"] == tuned["seed"].nunique()]  # a mean needs all seeds
            style: dict[str, Any] = {"linestyle": _line(rank), "marker": _MARKS[rank % len(_MARKS)], "alpha": 0.12}
            draw_interval(ax, points, along, colour=_tone(rank), label=_named(rule), markersize=2.6, **style)
    shown = result.losses.loc[result.losses["step"] > 0, along]
    if chosen and along != "step":
        set_decades(ax, "x")
        ax.set_xlim(shown.min() / 1.2, shown.max() * 1.2)
    else:
        ax.set_xlim(0, 1.02 * (shown.max() if along == "step" else 2 * result.budget["seconds"]))
    if along in result.budget:
        ax.axvline(result.budget[along], color="#999999", linewidth=0.5, zorder=0)


def _results_of(tuned: pd.DataFrame, rules: list[str], reference: str = "") -> pd.DataFrame:
    """Return the mean loss of every rule with its interval, and its rates in words."""
    rows = []
    for rule in rules:
        runs = where(tuned, rule=rule)
        lost = int(np.isinf(runs["loss"]).sum())  # seeds whose run at the rate of the others diverged
        interval = geometric_interval([math.nan] if lost else runs["loss"])
        words = " or ".join(f"{rate:g}" for rate in sorted(runs["rate"].unique()))
        words += ("*" if runs["at_edge"].any() else "") + (f"; {lost} of {len(runs)} diverged" if lost else "")
        rows.append({"budget": tuned["budget"].iloc[0], "rule": rule, **interval.found, "rates": words})
    return pd.DataFrame(rows).merge(against_plain(tuned, reference), on=["budget", "rule"], how="left")


def _ratio(row: Any) -> str:
    """Return the loss relative to the plain optimiser in words; "" without an interval."""
    return f"\n× {row.ratio:.2g} [{row.ratio_low:.2g}, {row.ratio_high:.2g}]" if np.isfinite(row.ratio_low) else ""


def _draw_dots(ax: Axes, results: pd.DataFrame) -> None:
    for rank, row in enumerate(results.itertuples()):
        ends = [[row.mean - row.low], [row.high - row.mean]]
        style: dict[str, Any] = {"fmt": _MARKS[rank % len(_MARKS)], "markersize": 3, "color": _tone(rank)}
        ax.errorbar([row.mean], [rank], xerr=ends if np.isfinite(ends).all() else None, **style)


def _draw_side_by_side(ax: Axes, results: pd.DataFrame, *, named: bool) -> None:
    """Draw dots with rates and ratios to their right; only the first panel names the rules at its left."""
    _draw_dots(ax, results)
    set_decades(ax, "x")
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * (high / low) ** _BESIDE)
    for rank, row in enumerate(results.itertuples()):
        words = f"{row.rates}{_ratio(row).replace(chr(10), ' ')}"
        ax.text(0.99, rank, words, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=TINY)
    ax.set_yticks(range(len(results)), list(map(_named, results["rule"])) if named else [""] * len(results))
    ax.set_ylim(len(results) - 0.5, -0.5)


def _draw_results(ax: Axes, results: pd.DataFrame) -> None:
    _draw_dots(ax, results)
    names = [f"{_named(row.rule)} ({row.rates}){_ratio(row)}" for row in results.itertuples()]
    ax.set_yticks(range(len(names)), names, fontsize=TINY, linespacing=1.0)
    ax.set_ylim(len(names) - 0.5, -0.5)
