"""Figures of races between update rules: losses at equal numbers of gradients and at equal times."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from pandas import DataFrame, concat

from hessfig.analysis.intervals import geometric_interval
from hessfig.analysis.training_runs import Race, against_plain, race
from hessfig.figures.layouts.courses import how
from hessfig.figures.parts import (
    APART,
    DASHED,
    TINY,
    TONES,
    FigureSpec,
    Page,
    Sheet,
    Source,
    draw_interval,
    label_side,
    labels,
    seed_means,
    set_decades,
    tone,
    where,
    width_in,
    width_of,
)
from hessfig.terms import Optimiser

_ALONG = {"step": "gradients", "seconds": "seconds"}
_RULES = {one.replace("_", " "): one.facts.label for one in Optimiser}


def steps(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw every rule at its best learning rate: loss against gradients and against seconds, and both results below.

    How to read it: left all rules have the same number of gradients; right the same
    time, that of the fastest rule, with its Hessian products counted. Rates are chosen
    for every seed by the other seeds, from one grid; a star marks a rule whose rate is
    at an end of the grid for some seed. Rates are in each rule's own unit. Dots below:
    geometric means with 95 % intervals over seeds; a rule of which a seed diverged has
    none. × is the loss over that of the plain optimiser, seed by seed, with its
    interval. Requires: the sweep's table.csv of losses and costs over
    training.optimiser, training.curvature and training.learning_rate.
    """
    table = source.table
    result = race(table)
    rules = list(dict.fromkeys(result.losses["rule"]))
    medians = "medians over updates, and over looks at the curvature"
    words = f"Right: {result.budget['seconds']:.3g} s each, seconds of this machine ({medians})."
    names = [list(_ALONG), [f"{along}:loss" for along in _ALONG]]
    style = APART.replace(left=1.25, across=1.35, down=0.4, height=1.6, narrowest=None)
    sheet = Sheet.grid(spec.paper, names, how(table, words), style)
    results = {
        along: _results_of(result.tuned[result.tuned["budget"] == along], rules)
        for along in _ALONG
    }
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
    yield sheet.page("", *results.values())


_MARKS = "os^Dv<>PXpd"  # markers of rules, so that colour is not the only distinction
# Colours of further rules, for which `tone` has none.
_MORE_TONES = ("#7f7f7f", "#8f9000", "#e15759", "#4f9d9a")
# Inches: of the lines from the ends of curves to their names, and of the names.
_LEADER, _NAMES = (0.3, 1.35)
# Words, and the face of dots.
_BUDGETS = {"step": ("same gradients", None), "seconds": ("same time", "white")}


def race_of_rules(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw rules at their best rate or damping: the loss against gradients, and over the reference's at two budgets.

    How to read it: curves are geometric means over seeds with 95 % intervals; a curve
    ends where a run of a seed diverged, and a rule of which one did has no dot. A full
    dot is the loss after all gradients over that of the reference, seed by seed, with
    its interval (without a reference: the loss itself, where the curve ends); an open
    one is the same after the time that the fastest rule takes for them. The rate or
    damping is chosen for every seed by the other seeds. The CSV file also has the
    losses, the rates (a star: at an end of the grid), Hessian products and seconds
    along the curves, and the true over the predicted decrease, which is 1 where the
    quadratic model holds. Requires: the sweep's table.csv of losses, costs and
    predicted decreases (option `reference`: a rule).
    """
    table = source.table
    result = race(table)
    reference = str(spec.options.get("reference", ""))
    rules = list(dict.fromkeys(result.losses["rule"]))
    results = {
        along: _results_of(where(result.tuned, budget=along), rules, reference)
        for along in _BUDGETS
    }
    points = {rule: _points(result, rule, "step", "step") for rule in rules}
    ends = dict.fromkeys(rules, math.inf)
    for rule, frame in points.items():
        if len(frame):
            ends[rule] = frame["mean"].iloc[-1]
    # The rows of dots, from below, stand as the curves end.
    order = sorted(rules, key=ends.__getitem__)
    words = (
        f"Geometric means over {table['seed'].nunique()} seeds with 95% intervals; every rule at the rate or damping"
        f" that is best for the other seeds. Same gradients: {result.budget['step']:g}; same time:"
        f" {result.budget['seconds']:.2g} s on this machine. A curve ends, and a dot is missing, where a run diverged."
    )
    style = APART.replace(left=0.5, top=0.33, across=_LEADER + _NAMES, height=2.3)
    style = style.replace(left=_NAMES) if style.columns(spec.paper) == 1 else style
    sheet = Sheet.grid(
        spec.paper, [["step", "ratio"]], words + labels.left_out_words(table), style
    )
    for _, column, ax in sheet:
        if column == 0:
            _curves(ax, result, rules, "step")
            ax.set_xlabel("gradients")
            label_side(ax, "loss")
        else:
            ordered = [
                results[along].set_index("rule").loc[order] for along in _BUDGETS
            ]
            _draw_ratios(ax, ordered, rules, reference)
    _name_rules(sheet, ends, order, rules)
    yield sheet.page("", _written(result, points, results))


def _draw_ratios(
    ax: Axes, results: list[DataFrame], rules: list[str], reference: str
) -> None:
    """Draw a row of dots per rule: its loss over that of the reference (or its loss) with an interval per budget."""
    name = "mean"
    low = "low"
    high = "high"
    if reference:
        name = "ratio"
        low = "ratio_low"
        high = "ratio_high"
    set_decades(ax, "x")
    for rows, (_, face) in zip(results, _BUDGETS.values(), strict=True):
        shift = 0.16 if face is None else -0.16
        rows = rows.assign(**{name: rows[name].mask(rows.index == reference, 1.0)})
        for rank, (rule, row) in enumerate(rows.iterrows()):
            colour = _tone(rules.index(rule))
            ends = np.array([[row[name] - row[low]], [row[high] - row[name]]])
            ax.errorbar(
                [row[name]],
                [rank + shift],
                xerr=ends if np.isfinite(ends).all() else None,
                fmt="o",
                color=colour,
                mfc=face or colour,
                markersize=3.5,
                elinewidth=0.8,
            )
    if reference:
        ax.axvline(1, **DASHED, zorder=0)
    ax.set_ylim(-0.6, len(results[0]) - 0.4)
    ax.set_xlabel(f"loss / loss of {_named(reference)}" if reference else "loss")
    dark = "#333333"
    keys = [
        Line2D(
            [],
            [],
            marker="o",
            color=dark,
            linestyle="",
            markersize=3.5,
            markerfacecolor=fill or dark,
            label=f"after the {budget}",
        )
        for budget, fill in _BUDGETS.values()
    ]
    ax.legend(
        handles=keys, loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=0.8
    )


def _name_rules(
    sheet: Sheet, ends: dict[str, float], order: list[str], rules: list[str]
) -> None:
    """Write the names of the rules next to the rows of dots, with a line to each from the end of its curve."""
    curves = sheet.panels.get((0, 0))
    dots = sheet.panels.get((0, 1))
    if dots is not None:
        dots.set_yticks(range(len(order)), list(map(_named, order)))
        dots.tick_params(axis="y", length=0)
        for rank, label in enumerate(dots.get_yticklabels()):
            label.set_color(_tone(rules.index(order[rank])))
    if curves is None:
        return
    if dots is None:
        curves.legend(loc="lower left")
    if dots is None or sheet.is_folded:
        return
    across = width_in(curves)
    for rank, rule in enumerate(order):
        pixels = dots.transData.transform((1.0, rank))
        height = curves.transAxes.inverted().transform(pixels)[1]
        reach = 1 + (_LEADER + _NAMES - 0.06 - width_of(_named(rule))) / across
        colour = _tone(rules.index(rule))
        if math.isfinite(ends[rule]):
            start = curves.transAxes.inverted().transform(
                curves.transData.transform((0.0, ends[rule]))
            )[1]
            bend = 1 + _LEADER / across
            curves.plot(
                [1.0, bend, reach],
                [start, height, height],
                transform=curves.transAxes,
                clip_on=False,
                color=colour,
                linewidth=0.4,
            )


def _written(
    result: Race, points: dict[str, DataFrame], results: dict[str, DataFrame]
) -> DataFrame:
    """Return the curves with their costs and ratios of decreases, and below them the results at both budgets."""
    chosen = where(result.tuned, budget="step")[["rule", "seed", "rate"]]
    ratios = (
        result.ratios.merge(chosen, on=["rule", "seed", "rate"])
        .groupby(["rule", "step"])["ratio"]
        .median()
        .rename("decrease_ratio")
    )
    costs = result.losses.groupby(["rule", "step"])[["products", "seconds"]].first()
    place = ["rule", "step"]
    curves = concat([frame.assign(rule=rule) for rule, frame in points.items()])
    curves = curves.join(costs, on=place).join(ratios, on=place)
    names = {"step": "gradients", "products": "gradients_and_products"}
    dots = [frame.assign(panel=f"same {along}") for along, frame in results.items()]
    return concat([curves.rename(columns=names).assign(panel="curve"), *dots])


def _named(rule: str) -> str:
    """Return the published name of a rule, with its changed settings."""
    name, comma, rest = rule.partition(",")
    return _RULES.get(name, name) + comma + rest


def _tone(rank: int) -> str:
    """Return the colour of a rule; the first eleven rules have distinct colours."""
    if rank < len(TONES):
        return tone(rank)
    return _MORE_TONES[(rank - len(TONES)) % len(_MORE_TONES)]


def _points(result: Race, rule: str, along: str, budget: str) -> DataFrame:
    """Return the means over seeds of a rule's losses at its best rates; a mean needs all seeds."""
    tuned = where(result.tuned, budget=budget)
    runs = where(result.losses, rule=rule).merge(
        where(tuned, rule=rule)[["seed", "rate"]], on=["seed", "rate"]
    )
    points = seed_means(runs, [along], "loss", logs=True)
    return points[points["count"] == tuned["seed"].nunique()]


def _curves(ax: Axes, result: Race, rules: list[str], along: str) -> None:
    set_decades(ax, "y")
    for rank, rule in enumerate(rules):
        points = _points(result, rule, along, along)
        draw_interval(
            ax,
            points,
            along,
            colour=_tone(rank),
            label=_named(rule),
            linestyle=("-", "--", ":")[min(rank // 4, 2)],
            marker=_MARKS[rank % len(_MARKS)],
            markersize=2.6,
            alpha=0.12,
        )
    furthest = 2 * result.budget["seconds"]
    if along == "step":
        furthest = result.losses[along].max()
    ax.set_xlim(0, 1.02 * furthest)
    ax.axvline(result.budget[along], color="#999999", linewidth=0.5, zorder=0)


def _results_of(tuned: DataFrame, rules: list[str], reference: str = "") -> DataFrame:
    """Return the mean loss of every rule with its interval, and its rates in words."""
    rows = []
    for rule in rules:
        runs = where(tuned, rule=rule)
        # Seeds whose run at the rate of the others diverged.
        lost = int(np.isinf(runs["loss"]).sum())
        interval = geometric_interval([math.nan] if lost else runs["loss"])
        words = " or ".join(f"{rate:g}" for rate in sorted(runs["rate"].unique()))
        if runs["at_edge"].any():
            words += "*"
        if lost:
            words += f"; {lost} of {len(runs)} diverged"
        place = {"budget": tuned["budget"].iloc[0], "rule": rule}
        rows.append({**place, **interval.found, "rates": words})
    return DataFrame(rows).merge(
        against_plain(tuned, reference), on=["budget", "rule"], how="left"
    )


def _ratio(row: Any) -> str:
    """Return the loss relative to the plain optimiser in words; "" without an interval."""
    if np.isfinite(row.ratio_low):
        return f"\n× {row.ratio:.2g} [{row.ratio_low:.2g}, {row.ratio_high:.2g}]"
    return ""


def _draw_results(ax: Axes, results: DataFrame) -> None:
    for rank, row in enumerate(results.itertuples()):
        ends = [[row.mean - row.low], [row.high - row.mean]]
        ax.errorbar(
            [row.mean],
            [rank],
            xerr=ends if np.isfinite(ends).all() else None,
            fmt=_MARKS[rank % len(_MARKS)],
            markersize=3,
            color=_tone(rank),
        )
    names = [
        f"{_named(row.rule)} ({row.rates}){_ratio(row)}" for row in results.itertuples()
    ]
    ax.set_yticks(range(len(names)), names, fontsize=TINY, linespacing=1.0)
    ax.set_ylim(len(names) - 0.5, -0.5)
