"""Trainings compared by what they reach: step rules, batch sizes, thresholds of stability, surviving heterogeneity."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import with_settings
from hessfig.analysis.intervals import Interval, geometric_interval
from hessfig.analysis.training_runs import (
    BATCH,
    EDGE_TOLERANCE,
    RATE,
    THRESHOLD,
    CriticalBatch,
    Race,
    against_plain,
    critical_batches,
    late_shares,
    of_whole,
    race,
    shares,
)
from hessfig.errors import UserError
from hessfig.figures.layouts.courses import how, scale, variant_titles
from hessfig.figures.parts import labels
from hessfig.figures.parts.chart_encoding import ChartEncoding
from hessfig.figures.parts.colours import GUIDE, TONES, part_colour, tone
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.lettering import TINY
from hessfig.figures.parts.panel_sheet import APART, BY_COLUMN, Page, Sheet, label_side, say
from hessfig.figures.parts.panels import draw_interval, draw_means, draw_seed, seed_means
from hessfig.figures.parts.rows import counted, parts_of, where
from hessfig.figures.parts.saving import variant_names
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
    found = race(table)
    rules = list(dict.fromkeys(found.losses["rule"]))
    medians = "medians over updates, and over looks at the curvature"
    words = f"Right: {found.budget['seconds']:.3g} s each, seconds of this machine ({medians})."
    names = [list(_ALONG), [f"{along}:loss" for along in _ALONG]]
    style = APART.but(left=1.25, across=1.35, down=0.4, height=1.6, narrowest=None)
    sheet = Sheet.grid(spec.paper, names, how(table, words), style)
    results = {along: _results_of(found.tuned[found.tuned["budget"] == along], rules) for along in _ALONG}
    for row, column, ax in sheet:
        along = list(_ALONG)[column]
        if row == 0:
            _curves(ax, found, rules, along)
            ax.set_xlabel(_ALONG[along])
        else:
            _draw_results(ax, results[along])
            ax.set_xlabel(f"loss after the same {_ALONG[along]}")
        if (row, column) == (0, 0):
            ax.set_ylabel("loss")
    yield sheet.page("", pd.concat(results.values(), ignore_index=True), _RESULTS)


_BUDGETS = {"step": "gradients", "products": "gradients + 2 × products", "seconds": "seconds"}
_RESULT = 0.17  # inches of a panel for a rule
_RACE = [["step", "seconds"], ["step:loss", "seconds:loss"], ["products", "ratio"]]
_MARKS = "os^Dv<>PXpd"  # of rules, so that none is told by its colour alone
_MORE_TONES = ("#7f7f7f", "#bcbd22", "#e15759", "#7fc7c4")  # of rules beyond those that `tone` tells apart


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
    found = race(table)
    rules, reference = list(dict.fromkeys(found.losses["rule"])), str(spec.options.get("reference", ""))
    words = (
        f"Seconds: {found.budget['seconds']:.3g} s each, medians of this machine. Middle: rate or damping, and the loss"
        f" over that of {_named(reference)}. Geometric means over {table['seed'].nunique()} seeds with 95% intervals; a"
        f" curve ends, and a rule has no dot, where a run of a seed diverged."
    )
    style = APART.but(left=1.5, across=0.4, top=0.62, down=0.42, narrowest=None)
    style = style.but(height=[1.7, _RESULT * len(rules) + 0.1, 1.7])
    sheet = Sheet.grid(spec.paper, _RACE, words + labels.left_out_words(table), style)
    drawn = []
    for row, column, ax in sheet:
        along, _, is_result = _RACE[row][column].partition(":")
        if is_result:
            results = _results_of(found.tuned[found.tuned["budget"] == along], rules, reference)
            _draw_side_by_side(ax, results, named=column == 0)
            ax.set_xlabel(f"loss after the same {_BUDGETS[along]}")
            drawn.append(results)
        elif along == "ratio":
            _draw_ratios(ax, found, rules)
        else:
            _curves(ax, found, rules, along, chosen="step")
            ax.set_xlabel(_BUDGETS[along])
            if column == 0:
                label_side(ax, "loss")
    sheet.name_above(sheet.first)
    yield sheet.page("", pd.concat(drawn, ignore_index=True), _RESULTS)


_RATIOS = (-0.5, 2.0)
_BESIDE = 1.5  # of a panel: room for words right of its dots


def _draw_ratios(ax: Axes, found: Race, rules: list[str]) -> None:
    chosen = where(found.tuned, budget="step")[["rule", "seed", "rate"]]
    ratios = found.ratios.merge(chosen, on=["rule", "seed", "rate"])
    for rank, rule in enumerate(rules):
        medians = where(ratios, rule=rule).groupby("step")["ratio"].median().clip(*_RATIOS)
        style: dict[str, Any] = {"linestyle": _line(rank), "marker": _MARKS[rank % len(_MARKS)], "markersize": 3}
        ax.plot(medians.index, medians, color=_tone(rank), markeredgewidth=0, **style)
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    ax.set_ylim(_RATIOS[0] - 0.05, _RATIOS[1] + 0.05)
    ax.set_xlabel("gradients")
    ax.set_title("true / predicted decrease")


def _named(rule: str) -> str:
    """Return a rule by the name that its authors gave it, with what is changed of it."""
    name, comma, rest = rule.partition(",")
    return _RULES.get(name, name) + comma + rest


def _line(rank: int) -> str:
    return ("-", "--", ":")[min(rank // 4, 2)]


def _tone(rank: int) -> str:
    """Return the colour of a rule: of its own for the first eleven."""
    return tone(rank) if rank < len(TONES) else _MORE_TONES[(rank - len(TONES)) % len(_MORE_TONES)]


def _curves(ax: Axes, found: Race, rules: list[str], along: str, *, chosen: str = "") -> None:
    tuned = where(found.tuned, budget=chosen or along)
    set_y_scale(ax, found.losses["loss"])
    for rank, rule in enumerate(rules):
        runs = where(found.losses, rule=rule).merge(where(tuned, rule=rule)[["seed", "rate"]], on=["seed", "rate"])
        if len(runs):
            points = seed_means(runs, [along], "loss", logs=ax.get_yscale() == "log")
            points = points[points["count"] == tuned["seed"].nunique()]  # a mean of survivors is no mean
            style: dict[str, Any] = {"linestyle": _line(rank), "marker": _MARKS[rank % len(_MARKS)], "alpha": 0.12}
            draw_interval(ax, points, along, colour=_tone(rank), label=_named(rule), markersize=2.6, **style)
    shown = found.losses.loc[found.losses["step"] > 0, along]
    if chosen and along != "step":
        set_decades(ax, "x")
        ax.set_xlim(shown.min() / 1.2, shown.max() * 1.2)
    else:
        ax.set_xlim(0, 1.02 * (shown.max() if along == "step" else 2 * found.budget["seconds"]))
    if along in found.budget:
        ax.axvline(found.budget[along], color="#999999", linewidth=0.5, zorder=0)


def _results_of(tuned: pd.DataFrame, rules: list[str], reference: str = "") -> pd.DataFrame:
    """Return mean loss with its interval of every rule, and its rates in words."""
    found = []
    for rule in rules:
        one = where(tuned, rule=rule)
        lost = int(np.isinf(one["loss"]).sum())  # seeds whose run at the rate of the others diverged
        interval = geometric_interval([math.nan] if lost else one["loss"])
        words = " or ".join(f"{rate:g}" for rate in sorted(one["rate"].unique()))
        words += ("*" if one["at_edge"].any() else "") + (f"; {lost} of {len(one)} diverged" if lost else "")
        found.append({"budget": tuned["budget"].iloc[0], "rule": rule, **interval.found, "rates": words})
    return pd.DataFrame(found).merge(against_plain(tuned, reference), on=["budget", "rule"], how="left")


def _ratio(row: Any) -> str:
    """Return the loss over the plain optimiser's in words; nothing where there is no interval."""
    return f"\n× {row.ratio:.2g} [{row.ratio_low:.2g}, {row.ratio_high:.2g}]" if np.isfinite(row.ratio_low) else ""


def _draw_dots(ax: Axes, results: pd.DataFrame) -> None:
    for rank, row in enumerate(results.itertuples()):
        ends = [[row.mean - row.low], [row.high - row.mean]]
        style: dict[str, Any] = {"fmt": _MARKS[rank % len(_MARKS)], "markersize": 3, "color": _tone(rank)}
        ax.errorbar([row.mean], [rank], xerr=ends if np.isfinite(ends).all() else None, **style)


def _draw_side_by_side(ax: Axes, results: pd.DataFrame, *, named: bool) -> None:
    """Draw dots with the rates and ratios right of them; rules are named at the left of the first panel alone."""
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


def critical_batch(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the number of steps to a common loss against the batch size, and the noise scale next to their trade-off.

    How to read it: left, the steps that trainings with batches of each size need to a held-out loss which all of them
    reach, at the best of their learning rates; dashed S = S_min (1 + B_crit / B), whose critical batch size B_crit is
    where twice the fewest steps suffice. Right, the noise scale tr C / |G|^2 along the training with the largest
    batches, and B_crit (dashed, grey its 95 % interval): the two would agree if the noise scale gave the critical batch
    size where the loss is reached (dots on the curves).
    Requires: the sweep's table.csv of held_out_loss and noise_scale over training.batch_size and
    training.learning_rate, at several steps.
    """
    table = source.table
    rows = with_settings(counted(table), BATCH, RATE)
    found = critical_batches(*(of_whole(rows, name) for name in ("held_out_loss", "noise_scale")))
    if not found:
        raise UserError(
            f"figure.layout={spec.layout} compares batch sizes, and the table has too few",
            got=", ".join(sorted(set(rows[BATCH]))) or "none",
            allowed="held_out_loss and noise_scale at three batch sizes or more",
            remedy="hessfig run sweep=critical_batch",
        )
    seeds = list(found.values())
    losses = [one.target for one in seeds]
    words = f"Held-out losses reached: {min(losses):.3g} to {max(losses):.3g}. Dots: where they are reached."
    style = APART.but(across=0.5, height=1.7)
    sheet = Sheet.grid(spec.paper, [["steps", "noise_scale"]], how(table, words), style)
    drawn = [(_steps_to_loss, _noise_scales)[column](ax, seeds) for _, column, ax in sheet]
    yield sheet.page("", pd.concat(drawn, ignore_index=True), ChartEncoding(panels=("panel",)))


def _steps_to_loss(ax: Axes, seeds: list[CriticalBatch]) -> pd.DataFrame:
    reached = [pd.DataFrame({"seed": i, BATCH: one.sizes, "value": one.steps}) for i, one in enumerate(seeds)]
    counts = pd.concat(reached).replace(np.inf, np.nan).dropna()
    set_decades(ax, "y")
    for one in reached:
        draw_seed(ax, one[BATCH], one["value"], colour=tone(0))
    points = seed_means(counts, [BATCH], logs=True)
    draw_interval(ax, points.assign(low=np.nan, high=np.nan), BATCH, colour=tone(0), label="steps to the loss")
    fewest, critical = (_geometric([one.fewest for one in seeds]), _geometric([one.critical for one in seeds]))
    fit = fewest.mean * (1 + critical.mean / points[BATCH])
    sizes = np.geomspace(points[BATCH].min(), points[BATCH].max())
    model = fewest.mean * (1 + critical.mean / sizes)
    ax.plot(sizes, model, color=GUIDE, linestyle="--", label=f"{fewest.mean:.3g} (1 + {critical.mean:.3g} / B)")
    ax.set_xscale("log")
    ax.set_xticks(points[BATCH], [f"{size:g}" for size in points[BATCH]])
    ax.minorticks_off()
    ax.set_xlabel("batch size B")
    ax.set_ylabel("steps")
    ax.legend(loc="best")
    return points.assign(panel="steps", fit=fit)


def _noise_scales(ax: Axes, seeds: list[CriticalBatch]) -> pd.DataFrame:
    every = [one.noise.reset_index().set_axis(["step", "value"], axis=1).assign(seed=i) for i, one in enumerate(seeds)]
    rows = pd.concat(every)
    scale(ax, [rows])
    points = draw_means(ax, rows, "step", colour=tone(1), label="noise scale")
    ax.plot([one.steps[-1] for one in seeds], [one.noise_scale for one in seeds], "o", color=tone(1), markersize=4)
    critical = _geometric([one.critical for one in seeds])
    ax.axhline(critical.mean, color=GUIDE, linestyle="--", label="critical batch size")
    if np.isfinite(critical.low):
        ax.axhspan(critical.low, critical.high, color="#999999", alpha=0.2, linewidth=0)
    ax.set_xlabel("step")
    ax.set_ylabel("batch size (examples)")
    ax.legend(loc="best")
    return points.assign(panel="noise_scale")


def _geometric(values: list[float]) -> Interval:
    return geometric_interval([value for value in values if np.isfinite(value)] or [math.nan])


_OVER = ("W_V", "W_Q")
_PLACE = ("variant", "layer", "part", "step")


def heterogeneity_trained(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw ||V|| / ||Q|| of H, H_o and H_f along the steps, one column per network, one row per layer.

    How to read it: at 1 (dashed) the blocks of values and queries are as large; geometric means over seeds, up to
    five of them as thin lines, more as the band of their 95 % interval.
    Requires: the sweep's table.csv with the diagonal blocks of W_V and W_Q along `state.step` (option `quantity`: by
    default frobenius).
    """
    table = source.table
    rows = where(counted(table), quantity=spec.quantity)
    ratios = _ratios(rows[(rows["row"] == rows["col"]) & (rows["index"] <= 1)])
    if ratios.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws {_OVER[0]} over {_OVER[1]}, and the table has not both",
            got=", ".join(table["row"].unique()),
            allowed=f"diagonal blocks of {' and '.join(_OVER)}",
            remedy=f"hessfig run sweep={source.folder.name} 'blocks=[{','.join(_OVER)}]'",
        )
    yield _draw_survival(table, ratios, spec)


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    place = ["variant", "num_layers", "layer", "part", "seed", "step"]
    one, other = (rows[rows["row"] == name].groupby(place)["value"].mean() for name in _OVER)
    return (one / other).rename("value").dropna().reset_index()


def _draw_survival(table: pd.DataFrame, ratios: pd.DataFrame, spec: FigureSpec) -> Page:
    variants = [name for name in dict.fromkeys(table["variant"]) if name in set(ratios["variant"])]
    layers = sorted(ratios["layer"].unique())
    note = how(table, "Geometric means of the ratio of the two blocks' norms; dashed: as large.")
    names = [[f"{variant}:{layer}" for variant in variant_names(variants)] for layer in layers]
    sheet = Sheet.grid(spec.paper, names, note, BY_COLUMN.but(height=1.5))
    found = []
    for row, column, ax in sheet:
        scale(ax, [ratios])
        found.append(_draw_survival_panel(ax, where(ratios, variant=variants[column], layer=layers[row])))
    sheet.first.legend(loc="best")
    words = f"{_OVER[0][2:]} / {_OVER[1][2:]}: {labels.plain(labels.quantity_words(spec.quantity))}"
    short = [f"layer {layer}" if len(layers) > 1 else "" for layer in layers]
    sheet.label("step", variant_titles(variants), [words] * len(layers), short, words)
    return sheet.page("", pd.concat(found, ignore_index=True))


def _draw_survival_panel(ax: Axes, ratios: pd.DataFrame) -> pd.DataFrame:
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    if ratios.empty:
        say(ax, "(no ratio)")
    found = [
        draw_means(ax, where(ratios, part=part), *_PLACE, colour=part_colour(part), label=labels.symbol(part))
        for part in parts_of(ratios)
    ]
    return pd.concat([pd.DataFrame(), *found], ignore_index=True)


_PRECONDITIONED = {"preconditioned_eigenvalue": "eigenvalue of P⁻¹H"}  # its own words are longer than a panel is high
_QUANTITIES = ("largest_eigenvalue", "preconditioned_eigenvalue", "batch_sharpness", "critical_sharpness")


def edge(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw loss and sharpness over its threshold along the steps, one column per variant.

    How to read it: at 1 (dashed) a step of this size just settles in a quadratic: 2 / learning rate for gradient
    descent, 38 / learning rate for AdamW's preconditioned Hessian (beta1 = 0.9). Words in a panel: the mean over the
    last third of the steps, with its 95 % interval over seeds; `at the edge` where all of it is within 10 % of 1. All
    eigenvalues are of iterates, not of points half way between two.
    Requires: the sweep's table.csv with stability_threshold (option `quantity`: which sharpness to draw, or a list).
    """
    table = source.table
    measured = set(table["quantity"])
    wanted = spec.words("quantity") or [name for name in _QUANTITIES if name in measured]
    missing = [name for name in (*wanted, THRESHOLD) if name not in measured]
    if missing or not wanted:
        raise UserError(
            "figure.options.quantity: the table has no such sharpness, or no threshold next to it",
            got=", ".join(missing) or "no sharpness",
            allowed=", ".join(sorted(measured)),
            remedy=f"hessfig run sweep={source.folder.name} quantities=[largest_eigenvalue,{THRESHOLD}]",
        )
    yield _draw_page(table, wanted, spec)


def _draw_page(table: pd.DataFrame, wanted: list[str], spec: FigureSpec) -> Page:
    variants = list(dict.fromkeys(table["variant"]))
    note = how(table, "Dashed: the threshold. Numbers: mean of the last third of the steps ± its 95% interval.")
    rows = [*wanted, "loss"] if (table["quantity"] == "loss").any() else wanted
    names = [[f"{name}:{variant}" for variant in variant_names(variants)] for name in rows]
    sheet = Sheet.grid(spec.paper, names, note, BY_COLUMN.but(height=1.3, down=0.16))
    values = [_values(table, name) for name in rows]
    ends = [late_shares(table, name) if name != "loss" else {} for name in rows]
    found = []
    for row, column, ax in sheet:
        scale(ax, [values[row]])
        ax.set_xscale("linear")  # looked at every so many steps
        here = where(values[row], variant=variants[column])
        if here.empty:
            say(ax, "(no number)")
        points = draw_means(ax, here, "step", colour=tone(row))
        found.append(points.assign(quantity=rows[row], variant=variants[column]))
    for row, column, ax in sheet:  # after the curves: lines at 1 widen the range of the axis
        if rows[row] != "loss":
            _mark(ax, ends[row].get(variants[column]))
    named = [_PRECONDITIONED.get(name, labels.plain(labels.quantity_words(name))) for name in rows]
    words = [f"{name} / threshold" if name != "loss" else name for name in named]
    sheet.label("step", variant_titles(variants), words)
    return sheet.page("", pd.concat(found, ignore_index=True))


def _values(table: pd.DataFrame, name: str) -> pd.DataFrame:
    if name == "loss":
        return of_whole(counted(table), name)
    every = shares(table, name)
    return every.assign(value=every["share"])


def _mark(ax: Axes, end: Interval | None) -> None:
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    if end is not None:
        half = (end.high - end.low) / 2
        form = ".3f" if end.mean < 100 else ".3g"
        words = f"{end.mean:{form}}" + (f" ± {half:{form}}" if half == half else "")
        words += "\nat the edge" if end.low > 1 - EDGE_TOLERANCE and end.high < 1 + EDGE_TOLERANCE else ""
        box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
        ax.text(0.97, 0.98, words, transform=ax.transAxes, ha="right", va="top", fontsize=TINY, bbox=box)
