"""Figures that compare components: predicted and fitted exponents, block ratios along trainings, the gap of SGD."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hessfig.analysis.axis import last_word, settings_of
from hessfig.analysis.claims.rule import Evidence
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.slopes.printed import Window
from hessfig.errors import UserError
from hessfig.figures.parts import labels, panels
from hessfig.figures.parts.chart_encoding import ChartEncoding
from hessfig.figures.parts.colours import GUIDE, matrix_colour, tone
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.lettering import fitting, width_of
from hessfig.figures.parts.measured import MeasuredCurves, read_measured, windows_in_words
from hessfig.figures.parts.panel_sheet import APART, ONE_SCALE, SHARED, Page, Sheet, in_rows, label_side, say
from hessfig.figures.parts.rows import BLOCK_KEY, BlockKey, as_written, blocks_in_order, where, with_pairs
from hessfig.figures.parts.slope_words import rows_of, window_of
from hessfig.figures.parts.ticks import set_decades
from hessfig.predictions.growth_rates import Prediction
from hessfig.studies.components import rules as component_rules
from hessfig.terms import Part

_LINE = 0.135  # height in inches of the line of a network
_LONGEST = 1.7  # largest width in inches of the name of a network
_BASE = "base"
_PANELS, _ACROSS = 16, 4  # of curves on a page, and on a line
_PAIR = ("W_V", "W_Q")


def components(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the exponents in sigma by component: open circles are predictions, dots with bars are fits; then the curves.

    How to read it: a line is a network that differs from the base (the first) in the component it names, a panel a
    block. Where the dot lies in the circle, counting powers of the input explains the growth of the block. A line
    without circle has no predicted power there; `= 0` is a block that vanishes identically.
    Requires: the sweep's table.csv with one network per variant, and its manifest (option `part`: H by default). The
    first window of sigma is drawn, with a page for every further one.
    """
    measured, part = read_measured(spec, source), Part(spec.choice("part", tuple(Part), Part.H))
    for number, window in enumerate(measured.windows):
        yield _exponents(spec, measured, part, window, f"_window{number + 1}" if number else "")
    yield from _curves(spec, measured, part)


def _exponents(spec: FigureSpec, measured: MeasuredCurves, part: Part, window: Window, suffix: str) -> Page:
    slopes = with_pairs(measured.slopes[measured.slopes["part"] == part])
    here = slopes[[window_of(row) == window for row in rows_of(slopes)]]
    variants, blocks = list(dict.fromkeys(here["variant"])), _by_exponent(here)
    names = [fitting([name_of(variant)], _LONGEST) for variant in variants]
    style = ONE_SCALE.replace(left=0.1 + max(map(width_of, names)), bottom=0.52, across=0.08, narrowest=0.5)
    style = style.replace(height=_LINE * len(variants) + 0.1)
    words = [f"{labels.block_name(row, col)}:{part}" for row, col, _ in blocks]
    sheet = Sheet.grid(spec.paper, [words], _note(measured, part, window), style)
    for _, column, ax in sheet:
        row, col, _ = blocks[column]
        _draw_exponents(ax, where(here, row=row, col=col), variants, matrix_colour(row if row == col else ""))
        ax.set_title(labels.block_title(row, col, quantity=""))
        ax.set_xlabel("exponent")
    _set_range(sheet.first, here)
    sheet.first.set_yticks(range(len(variants)), names)
    sheet.first.set_ylim(len(variants) - 0.4, -0.6)
    encoding = ChartEncoding(y="slope", low="ci_low", high="ci_high")
    return sheet.page(suffix, here.drop(columns="across"), encoding)


def _draw_exponents(ax: Axes, slopes: pd.DataFrame, variants: Sequence[str], colour: str) -> None:
    places = {variant: place for place, variant in enumerate(variants)}
    for place in range(0, len(variants), 2):
        ax.axhspan(place - 0.5, place + 0.5, color="#f4f4f4", zorder=0)
    for row in slopes.itertuples():
        here = places[str(row.variant)]
        if row.is_zero:
            ax.text(0.5, here, "= 0", transform=ax.get_yaxis_transform(), ha="center", va="center", fontsize=6)
            continue
        if row.prediction == Prediction.exponent:
            ax.plot(row.predicted, here, "o", markersize=6, markerfacecolor="none", markeredgecolor="#555555", zorder=3)
        if np.isfinite(row.slope):
            error = row.slope_se if np.isfinite(row.slope_se) else 0.0
            ax.errorbar(row.slope, here, xerr=error, fmt="o", markersize=3, color=colour, elinewidth=0.8, zorder=4)
    ax.grid(visible=True, axis="x", linewidth=0.4, color="#dddddd")


def _set_range(ax: Axes, slopes: pd.DataFrame) -> None:
    """Set a common range for all panels that includes every exponent of the page."""
    known = slopes[["slope", "predicted"]].to_numpy(float)
    if np.isfinite(known).any():
        low, high = np.floor(np.nanmin(known)), np.ceil(np.nanmax(known))
        ax.set_xlim(low - 0.6, high + 0.6)
        ax.set_xticks(np.arange(low, high + 1, 2))


def _by_exponent(slopes: pd.DataFrame) -> list[BlockKey]:
    """Return the blocks in the order of the first network's predictions: its circles rise from left to right."""
    base = slopes[slopes["variant"] == slopes["variant"].iloc[0]]
    known = {key: one["predicted"].iloc[0] for key, one in base.groupby(BLOCK_KEY)}
    return sorted(blocks_in_order(slopes), key=lambda block: np.nan_to_num(known.get(block, np.inf), nan=np.inf))


def _curves(spec: FigureSpec, measured: MeasuredCurves, part: Part) -> Iterator[Page]:
    """Draw the norms of the value and the query block of every network in a small panel per network."""
    for number, variants in enumerate(in_rows(list(dict.fromkeys(measured.curves["variant"])), _PANELS)):
        lines = [list(line) for line in in_rows(variants, _ACROSS)]
        names = [[name_of(variant) for variant in line] for line in lines]
        note = f"{measured.how(guides=False)} {labels.part_words(part)}; violet: W_V, green: W_Q."
        sheet = Sheet.grid(spec.paper, names, note, ONE_SCALE.replace(down=0.26, narrowest=0.6))
        for row, column, ax in sheet:
            _draw_network(ax, measured.of(variant=lines[row][column], part=part), lines[row][column])
        shown = where(measured.curves, part=part)
        panels.set_log_range(sheet.axes, shown[shown["row"].isin(_PAIR)], measured.axis)
        yield sheet.page(f"_curves{number + 1}", as_written(shown, measured.axis))


def _draw_network(ax: Axes, measured: MeasuredCurves, variant: str) -> None:
    ax.set_title(fitting([name_of(variant)], 1.0), fontsize=6)
    drawn = [measured.of(row=name, col=name) for name in _PAIR]
    if not any(panels.positive(block.curves).any() for block in drawn):
        say(ax, panels.why_no_line(measured.curves))
        return
    panels.mark_one(ax, measured.axis)
    for name, block in zip(_PAIR, drawn, strict=True):
        if panels.positive(block.curves).any():
            panels.draw_curve(ax, block.curves, block.table, colour=matrix_colour(name))


# Words for values of settings, by the last word of the setting and by value; "" matches any value, which replaces {}.
_NAMES: dict[str, dict[str, str]] = {
    "attention": {
        **{one: f"{one} attention" for one in ("linear", "sigmoid", "kernel", "differential")},
        **{"sparsemax": "sparsemax", "entmax15": "entmax, α = 1.5", "off_by_one": "softmax off by one"},
    },
    "attention_bias": {"log_length": "bias −log L"},
    "differential_norm": {"False": "no norm"},
    "scores": {"qk_norm": "QK-norm", "cosine": "cosine scores", "softcap": "soft-capped scores"},
    "positions": {"rope": "rotary positions", "alibi": "ALiBi", "none": "no positions"},
    "norm": {"pre": "pre-norm", "post": "post-norm", "sandwich": "sandwich norms"},
    "norm_kind": {"rms": "RMSNorm"},
    "norm_eps": {"": "ε = {}"},
    "mlp": {"gelu": "GELU", "silu": "SiLU", "swiglu": "SwiGLU", "geglu": "GEGLU"},
    "n_heads": {"": "{} heads"},
    "n_kv_heads": {"1": "1 of keys", "": "{} of keys"},
    "gate": {"output": "output gate"},
    "tied": {"True": "tied embeddings"},
}


def name_of(variant: str) -> str:
    """Return the changes of a network in words: 'sigmoid attention, bias −log L'; 'base' for no changes."""
    return ", ".join(_worded(last_word(key), value) for key, value in settings_of(variant).items()) or _BASE


def _worded(name: str, value: str) -> str:
    named = _NAMES.get(name, {})
    return named.get(value, named.get("", "")).format(value) or f"{labels.plain(name)} {labels.plain(value)}"


def _note(measured: MeasuredCurves, part: Part, window: Window) -> str:
    circles = f"{labels.part_words(part)}: exponents in σ. Circles: predicted; dots: fitted on "
    seeds = labels.seeds_words(measured.table)
    return f"{circles}{windows_in_words([window], measured.axis)}, {seeds}, ± bootstrap over seeds. {measured.setting}"


_WORDS = {value: words for named in _NAMES.values() for value, words in named.items()}
_RANKS = {"softmax": 3, "sigmoid": 0, "sigmoid log_length": 2, "qk_norm": 1, "pre": 4, "post": 6}
_MARKS = {0.25: "v", 1.0: "o", 4.0: "^"}  # by the scale of W_Q and W_K


def _component(network: str) -> str:
    """Return the components of a trained network in words: 'sigmoid, bias −log L'."""
    return ", ".join(_WORDS.get(word, word) for word in network.split()).replace(" attention", "")


def _tone(network: str) -> str:
    return tone(_RANKS.get(network, 5))


def ratio_courses(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the ratio of the query to the value block against the held-out loss along trainings, a line per component.

    How to read it: trainings go to the right, each at its component's tuned learning rate; a dot is a measured step,
    the mean over seeds (of the ratio geometric), up to five seeds are thin lines. In the grey band lie the losses, one
    a seed, at which the claim ratio-training compares the components: all of them reach it. At a ratio of 1 (dashed)
    both blocks are equally large.
    Requires: the sweep's table.csv of held_out_loss and frobenius of W_Q and W_V over training.learning_rate.
    """
    evidence = Evidence(source.table)
    runs, every = component_rules.courses(evidence), component_rules.components(evidence)
    if runs.empty:
        raise _lacks(spec, "a component whose best learning rate lies inside the grid", source)
    names = {network: _component(network) for network in every if network in set(runs["network"])}
    note = f"Dots: mean over {runs['seed'].nunique()} seeds; thin: the seeds. Grey: the losses of the comparison."
    if lost := [_component(network) for network in every if network not in names]:
        note += f" Left out, as the best rate is an end of the grid: {', '.join(lost)}."
    style = SHARED.replace(right=0.1 + max(map(width_of, names.values())), height=2.0, top=0.1)
    sheet = Sheet.grid(spec.paper, [["ratio"]], note, style)
    ax, levels = sheet.first, component_rules.equal_losses(runs)
    set_decades(ax, "y")
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    ax.axvspan(levels.min(), levels.max(), color="#dddddd", zorder=0)
    ends = [(_draw_course(ax, where(runs, network=key), _tone(key)), names[key], _tone(key)) for key in names]
    ax.invert_xaxis()
    panels.name_ends(ax, ends)
    sheet.label("held-out loss", [""], [r"$\|H_{QQ}\|_F\,/\,\|H_{VV}\|_F$"])
    yield sheet.page("", runs, ChartEncoding(y="loss", series=("network",)))


def _draw_course(ax: Axes, runs: pd.DataFrame, colour: str) -> float:
    """Draw the trainings of a component; return the last value of the mean over seeds."""
    for _, run in runs.sort_values("step").groupby("seed"):
        panels.draw_seed(ax, run["loss"], 10 ** run["ratio"], colour=colour)
    means = runs.groupby("step")[["loss", "ratio"]].mean()
    ax.plot(means["loss"], 10 ** means["ratio"], "o-", color=colour, markersize=3, markeredgewidth=0)
    return float(10 ** means["ratio"].iloc[-1])


def sgd_gap(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the gap between SGD and Adam against the ratio of query and value blocks before training.

    How to read it: a dot is a network, with 95 % intervals over seeds both ways; a line joins one component (colour)
    with its weights W_Q and W_K drawn a quarter, once and four times as large (triangle down, circle, triangle up). If
    the difference of the blocks is what hampers SGD, the lines rise as the circles do from component to component.
    Left: the loss after equally many steps, each optimiser at its tuned rate; right: the largest stable rates. Slopes
    of the loss are those of the claim heterogeneity-gap.
    Requires: the sweep's table.csv of losses over training.optimiser and training.learning_rate, and next to it that
    of the sweep ratio_initial.
    """
    untrained = Source(source.folder.parent / "ratio_initial")
    evidence = Evidence(source.table, beside={"ratio_initial": Evidence(untrained.table)})
    gaps = {"losses": component_rules.loss_gaps(evidence), "rates": component_rules.rate_gaps(evidence)}
    points = {panel: component_rules.next_to_ratios(gap, evidence) for panel, gap in gaps.items()}
    networks = {name for both in points.values() for name in both.index.get_level_values("network")}
    if not networks:
        raise _lacks(spec, "losses of SGD and Adam whose best rates lie inside the grid", source)
    words = [f"Slopes of {title}: {_slopes_words(both, evidence)}" for title, both in points.items()]
    style = APART.replace(height=1.7, top=0.55, across=0.6)
    sheet = Sheet.grid(spec.paper, [list(points)], f"Bars: 95% intervals over seeds. {' '.join(words)}", style)
    drawn = []
    for _, column, ax in sheet:
        panel = list(points)[column]
        if _finite(points[panel]).empty:
            say(ax, "(nothing inside the grid)")
        drawn.append(_draw_gaps(ax, _finite(points[panel])).assign(panel=panel))
        label_side(ax, ["log₁₀ loss of SGD / Adam", "log₁₀ stable rate of Adam / SGD"][column])
    style_of: dict[str, Any] = {"linestyle": "none", "color": GUIDE}
    handles = [Line2D([], [], marker=mark, label=f"weights × {scale:g}", **style_of) for scale, mark in _MARKS.items()]
    handles += [Line2D([], [], color=_tone(name), label=_component(name)) for name in _RANKS if name in networks]
    sheet.figure.legend(handles=handles, loc="upper center", ncols=3, columnspacing=1.0, handlelength=1.2)
    sheet.label_below("decades between the untrained blocks")
    encoding = ChartEncoding(x="x", y="y", panels=("panel",))
    yield sheet.page("", pd.concat(drawn, ignore_index=True), encoding)


def _draw_gaps(ax: Axes, both: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (network, scale), group in both.groupby(level=["network", "scale"]):
        x, y = student_interval(group["x"]), student_interval(group["y"])
        place = {"network": network, "scale": scale, "count": y.count}
        rows.append({**place, "x": x.mean, "x_low": x.low, "x_high": x.high, "y": y.mean, "low": y.low, "high": y.high})
        style: dict[str, Any] = {"fmt": _MARKS.get(scale, "s"), "markersize": 4, "elinewidth": 0.6}
        ax.errorbar(x.mean, y.mean, y.reach, x.reach, color=_tone(str(network)), **style)
    points = pd.DataFrame(rows, columns=["network", "scale", "count", "x", "x_low", "x_high", "y", "low", "high"])
    for network, line in points.sort_values("scale").groupby("network"):
        ax.plot(line["x"], line["y"], color=_tone(str(network)), linewidth=0.8)
    ax.axhline(0, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    return points


def _finite(both: pd.DataFrame) -> pd.DataFrame:
    """Return the points without those of runs that diverged at the rate chosen by the other seeds."""
    return both[np.isfinite(both["y"])]


def _slopes_words(both: pd.DataFrame, evidence: Evidence) -> str:
    """Return in words the slopes of a panel with their intervals, and the networks that it leaves out."""
    if both.empty:
        return "none."
    intervals = {name: student_interval(values) for name, values in component_rules.slopes(both).items()}
    words = "; ".join(f"{name} {interval.words}" for name, interval in intervals.items())
    absent = ", ".join(
        f"{_component(name)} × {scale:g}" for name, scale in component_rules.left_out(_finite(both), evidence)
    )
    return f"{words}.".replace("-", "−") + f" Left out: {absent}." * bool(absent)


def _lacks(spec: FigureSpec, what: str, source: Source) -> UserError:
    return UserError(
        f"figure.layout={spec.layout} needs {what}",
        got=", ".join(source.table["quantity"].unique()),
        allowed="trainings at several learning rates, the best of which is not the first or last",
        remedy="hessfig run sweep=ratio_training or sweep=ratio_rates, with further rates in sweep.vary",
    )
