"""Figures that compare components: exponents, ratios of norms, and centred softmax before and after training."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame, Series

from hessfig.analysis.axis import X, last_word, settings_of
from hessfig.analysis.intervals import geometric_interval, student_interval
from hessfig.analysis.manifest import RecordedRun
from hessfig.analysis.slopes.printed import Window
from hessfig.errors import UserError
from hessfig.figures.parts import (
    APART,
    BLOCK_KEY,
    DASHED,
    GUIDE,
    ONE_SCALE,
    BlockKey,
    FigureSpec,
    MeasuredCurves,
    Page,
    Sheet,
    Source,
    as_written,
    blocks_in_order,
    fitting,
    label_side,
    labels,
    matrix_colour,
    panels,
    read_measured,
    rows_of,
    say,
    set_decades,
    shaded,
    shades,
    tone,
    where,
    width_in,
    width_of,
    window_of,
    windows_in_words,
    with_pairs,
)
from hessfig.predictions.growth_rates import Prediction, growth_rate
from hessfig.studies.components import per_seed
from hessfig.terms import Block, Matrix, Part

_LINE = 0.135  # height in inches of the line of a network
_LONGEST = 1.7  # largest width in inches of the name of a network
_BASE = "base"
_PAIR = ("W_V", "W_Q")


def components(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the exponents in sigma by component: open circles are predictions, dots with bars are fits.

    How to read it: a line is a network that differs from the base (the first) in the
    component it names, a panel a block. Where the dot lies in the circle, counting
    powers of the input explains the growth of the block. A line without circle has no
    predicted power there; `= 0` is a block that vanishes identically. Ratios, if asked
    for, are the norm of the query block over that of the value block, a dot for each
    sigma; bars are 95 % intervals. Requires: the sweep's table.csv with one network per
    variant, and its manifest (option `part`: H by default). The first window of sigma
    is drawn, with a page for every further one.
    """
    measured = read_measured(spec, source)
    part = Part(spec.choice("part", tuple(Part), Part.H))
    if spec.switch("ratios", False):
        yield _ratios(measured, part)
        return
    for number, window in enumerate(measured.windows):
        suffix = f"_window{number + 1}" if number else ""
        slopes = with_pairs(measured.slopes[measured.slopes["part"] == part])
        here = slopes[[window_of(row) == window for row in rows_of(slopes)]]
        variants = list(dict.fromkeys(here["variant"]))
        blocks = _by_exponent(here)
        names = [fitting([name_of(variant)], _LONGEST) for variant in variants]
        style = ONE_SCALE.replace(
            left=0.1 + max(map(width_of, names)),
            bottom=0.52,
            across=0.08,
            narrowest=0.5,
        )
        style = style.replace(height=_LINE * len(variants) + 0.1)
        words = [f"{labels.block_name(row, col)}:{part}" for row, col, _ in blocks]
        sheet = Sheet.grid(spec.paper, [words], _note(measured, part, window), style)
        for _, column, ax in sheet:
            row, col, _ = blocks[column]
            colour = matrix_colour(row if row == col else "")
            _draw_exponents(ax, where(here, row=row, col=col), variants, colour)
            ax.set_title(labels.block_title(row, col, quantity=""))
            ax.set_xlabel("exponent")
        _set_range(sheet.first, here)
        sheet.first.set_yticks(range(len(variants)), names)
        sheet.first.set_ylim(len(variants) - 0.4, -0.6)
        yield sheet.page(suffix, here.drop(columns="across"))


def _ratios(measured: MeasuredCurves, part: Part) -> Page:
    """Draw the ratio of the two norms for every network, a dot for each sigma."""
    numbers = where(measured.table, part=part)
    variants = list(dict.fromkeys(numbers["variant"]))
    sigmas = sorted(numbers[X].unique())
    names = [fitting([name_of(variant)], _LONGEST) for variant in variants]
    style = ONE_SCALE.replace(
        left=0.1 + max(map(width_of, names)),
        top=0.3,
        height=_LINE * len(variants) + 0.1,
    )
    about = f"{labels.part_words(part)}. Dots: geometric mean over {labels.seeds_words(measured.table)}"
    note = f"{about}; bars: 95% interval (Student's t).{measured.setting}"
    sheet = Sheet.grid(measured.paper, [["ratio"]], note, style)
    ax = sheet.first
    points = _ratio_points(numbers)
    for rank, (colour, sigma) in enumerate(shaded(tone(0), sigmas)):
        here = points[points[X] == sigma]
        ends = here[["low", "high"]].sub(here["mean"], axis=0)
        reach = np.abs(ends).T.fillna(0).to_numpy()
        ax.errorbar(
            here["mean"],
            here["variant"].map(variants.index),
            xerr=reach,
            fmt="so^D"[rank % 4],
            color=colour,
            markersize=3.5,
            elinewidth=0.8,
            label=f"σ = {sigma:g}",
        )
    _stripe(ax, len(variants))
    ax.axvline(1, **DASHED, zorder=1)
    set_decades(ax, "x")
    ax.set_yticks(range(len(variants)), names)
    ax.set_ylim(len(variants) - 0.4, -0.6)
    words = [
        "norm of the query block / norm of the value block",
        "query block / value block",
    ]
    ax.set_xlabel(fitting(words, width_in(ax)))
    sheet.name_above(ax, long=1.0)
    return sheet.page("", as_written(points, measured.axis))


def _ratio_points(numbers: DataFrame) -> DataFrame:
    """Return the geometric mean over seeds of the ratio, with its interval, for every network and sigma."""
    place = ["variant", X, "seed"]
    value, query = (
        where(numbers, row=name, col=name).groupby(place, sort=False)["value"].mean()
        for name in _PAIR
    )
    ratios = (query / value).groupby(level=["variant", X], sort=False)
    part = numbers["part"].iloc[0]
    points = []
    for (variant, sigma), here in ratios:
        interval = geometric_interval(here).found
        points.append({"variant": variant, X: sigma, "part": part, **interval})
    return DataFrame(points)


def _stripe(ax: Axes, count: int) -> None:
    """Shade every second line."""
    for place in range(0, count, 2):
        ax.axhspan(place - 0.5, place + 0.5, color="#f4f4f4", zorder=0)


def _draw_exponents(
    ax: Axes, slopes: DataFrame, variants: Sequence[str], colour: str
) -> None:
    places = {variant: place for place, variant in enumerate(variants)}
    _stripe(ax, len(variants))
    for row in slopes.itertuples():
        here = places[str(row.variant)]
        if row.is_zero:
            ax.text(
                0.5,
                here,
                "= 0",
                transform=ax.get_yaxis_transform(),
                ha="center",
                va="center",
                fontsize=6,
            )
            continue
        if row.prediction == Prediction.exponent:
            ax.plot(
                row.predicted,
                here,
                "o",
                markersize=6,
                markerfacecolor="none",
                markeredgecolor="#555555",
                zorder=3,
            )
        if np.isfinite(row.slope):
            half = row.ci_high - row.slope
            reach = half if np.isfinite(half) else 0.0
            ax.errorbar(
                row.slope,
                here,
                xerr=reach,
                fmt="o",
                markersize=3,
                color=colour,
                elinewidth=0.8,
                zorder=4,
            )
    ax.grid(visible=True, axis="x", linewidth=0.4, color="#dddddd")


def _set_range(ax: Axes, slopes: DataFrame) -> None:
    """Set a common range for all panels that includes every exponent of the page."""
    known = slopes[["slope", "predicted"]].to_numpy(float)
    if np.isfinite(known).any():
        low = np.floor(np.nanmin(known))
        high = np.ceil(np.nanmax(known))
        ax.set_xlim(low - 0.6, high + 0.6)
        ax.set_xticks(np.arange(low, high + 1, 2))


def _by_exponent(slopes: DataFrame) -> list[BlockKey]:
    """Return the blocks in the order of the first network's predictions: its circles rise from left to right."""
    base = slopes[slopes["variant"] == slopes["variant"].iloc[0]]
    known = {key: one["predicted"].iloc[0] for key, one in base.groupby(BLOCK_KEY)}
    return sorted(
        blocks_in_order(slopes),
        key=lambda block: np.nan_to_num(known.get(block, np.inf), nan=np.inf),
    )


# Words for values of settings, by the last word of the setting and by value; "" matches
# any value, which replaces {}.
_NAMES: dict[str, dict[str, str]] = {
    "attention": {
        "linear": "linear attention",
        "sigmoid": "sigmoid attention",
        "kernel": "kernel attention",
        "differential": "differential attention",
        "sparsemax": "sparsemax",
        "entmax15": "entmax, α = 1.5",
        "off_by_one": "softmax off by one",
    },
    "attention_bias": {"log_length": "bias −log L"},
    "differential_norm": {"False": "no norm"},
    "centring": {"": "λ = {}"},
    "scores": {
        "qk_norm": "QK-norm",
        "cosine": "cosine scores",
        "softcap": "soft-capped scores",
    },
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
    words = []
    for key, value in settings_of(variant).items():
        name = last_word(key)
        named = _NAMES.get(name, {})
        form = named.get(value, named.get("", ""))
        own = f"{labels.plain(name)} {labels.plain(value)}"
        words.append(form.format(value) or own)
    return ", ".join(words) or _BASE


def _note(measured: MeasuredCurves, part: Part, window: Window) -> str:
    circles = f"{labels.part_words(part)}: exponents in σ. Circles: predicted; dots: fitted on "
    seeds = labels.seeds_words(measured.table)
    window_told = windows_in_words([window], measured.axis)
    return f"{circles}{window_told}, {seeds}, ± 95% interval over seeds. {measured.setting}"


_SIGMAS = (0.02, 0.1, 0.3, 1.0)
_SMALL: Window = (None, 0.02)
_OPTIMISERS = {
    "sgd": "SGD",
    "sgd, momentum": "momentum",
    "adamw": "AdamW",
    "muon": "Muon",
}
_NETWORKS = {
    per_seed.SOFTMAX: "0",
    per_seed.CENTRED[0]: "0.9",
    per_seed.CENTRED[1]: "1",
    per_seed.RESCALED: "W/10",
    per_seed.FROZEN: "frozen",
}
_MARKS = "os^D"


def centred(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw what centring does to the blocks of values and queries, and what trainings do with it.

    How to read it: left, the gap of the exponents of H(Q, Q) and H(V, V) by lambda,
    circles predicted and dots fitted; middle, the ratio of their norms, a line per
    sigma; right, held-out losses after equally many updates, each optimiser at its
    tuned rate, by lambda and for two controls: W_Q and W_K a tenth as large with the
    same scores (query blocks 100 times as large), and frozen. Dashed: a table of pairs
    of characters, which needs no attention. Bars are 95 % intervals over seeds.
    Requires: the tables of held_out_loss over training.optimiser and
    training.learning_rate, and next to it that of the sweep centring.
    """
    blocks = Source(source.folder.parent / "centring").run
    losses = per_seed.tuned_losses(source.table)
    if losses.empty:
        raise UserError(
            f"figure.layout={spec.layout} needs trainings whose best learning rate is inside the grid",
            got=", ".join(source.table["quantity"].unique()),
            allowed="trainings at several learning rates; the best must not be the first or last",
            remedy="hessfig run sweep=centring_training",
        )
    panels_of = {
        "gap": "gap of exponents",
        "ratio": r"$\|H_{QQ}\| / \|H_{VV}\|$",
        "loss": "loss in nats",
    }
    sheet = Sheet.grid(
        spec.paper,
        [list(panels_of)],
        _CENTRED_NOTE,
        APART.replace(height=1.7, top=0.2, right=0.2, across=0.68, down=0.42),
    )
    gap, ratio, loss = (ax for _, _, ax in sheet)
    drawn = [
        _draw_gaps(gap, blocks).assign(panel="gap"),
        _draw_ratios(ratio, blocks).assign(panel="ratio"),
        _draw_losses(loss, losses, source.table).assign(panel="loss"),
    ]
    for ax, words in zip(sheet.axes, panels_of.values(), strict=True):
        label_side(ax, words)
    yield sheet.page("", *drawn)


_CENTRED_NOTE = (
    "Circles: predicted; dots and bars: means and 95% intervals over seeds. Right: held-out losses. "
    "W/10: query and key weights a tenth as large, with the same scores. Dashed: a table of pairs of characters."
)


def _draw_gaps(ax: Axes, run: RecordedRun) -> DataFrame:
    fitted = per_seed.gaps(run.table, per_seed.CENTRING, window=_SMALL)
    if fitted.empty:
        say(ax, "(too few sigmas up to 0.02)")
        return DataFrame(columns=["line", "place"])
    rows = []
    for place, (centring, own) in enumerate(fitted.groupby(level=per_seed.CENTRING)):
        interval = student_interval(own)
        ax.plot(
            place,
            _predicted_gap(run, str(centring)),
            "o",
            markersize=7,
            color="#555555",
            markerfacecolor="none",
        )
        ax.errorbar(
            place, interval.mean, interval.reach, fmt="o", markersize=3, color=tone(0)
        )
        rows.append({"line": "gap", "place": float(centring or 0), **interval.found})
    ax.axhline(0, **DASHED)
    _name_places(ax, [f"{row['place']:g}" for row in rows])
    return DataFrame(rows)


def _predicted_gap(run: RecordedRun, centring: str) -> float:
    variant = f"{per_seed.CENTRING}={centring}" if centring else ""
    architecture = run.architectures[variant, 1]
    query = growth_rate(Block(1, Matrix.W_Q, Matrix.W_Q), Part.H, architecture).exponent
    value = growth_rate(Block(1, Matrix.W_V, Matrix.W_V), Part.H, architecture).exponent
    return math.nan if query is None or value is None else query - value


def _draw_ratios(ax: Axes, run: RecordedRun) -> DataFrame:
    rows = per_seed.log_norms(run.table, per_seed.CENTRING)
    place = [per_seed.CENTRING, "sigma", "seed"]
    value, query = (
        where(rows, row=name).groupby(place)["value"].mean() for name in _PAIR
    )
    ratios = query - value
    points = []
    ends = []
    names = list(dict.fromkeys(ratios.index.get_level_values(0)))
    for mark, sigma, colour in zip(
        _MARKS, _SIGMAS, shades(tone(0), len(_SIGMAS)), strict=True
    ):
        if sigma not in set(ratios.index.get_level_values("sigma")):
            continue
        means = []
        for name in names:
            interval = student_interval(ratios.xs((name, sigma), level=(0, 1)))
            means.append(10**interval.mean)
            shown = {"line": f"sigma {sigma:g}", "place": float(name or 0)}
            points.append({**shown, **interval.found})
        ax.plot(range(len(names)), means, f"{mark}-", color=colour, markersize=3.5)
        ends.append((means[-1], f"σ = {sigma:g}", colour))
    set_decades(ax, "y")
    panels.name_ends(ax, ends)
    _name_places(ax, [f"{float(name or 0):g}" for name in names])
    return DataFrame(points)


def _draw_losses(ax: Axes, log_losses: Series, table: DataFrame) -> DataFrame:
    losses = 10**log_losses
    points = []
    for rank, (optimiser, words) in enumerate(_OPTIMISERS.items()):
        own = losses[losses.index.get_level_values("optimiser") == optimiser]
        shown = {}
        for place, name in enumerate(_NETWORKS):
            here = own[own.index.get_level_values("network") == name]
            if len(here):
                shown[place] = student_interval(here)
        means = [one.mean for one in shown.values()]
        ends = [np.ravel(one.reach or (0.0, 0.0)) for one in shown.values()]
        ax.errorbar(
            list(shown),
            means,
            np.array(ends).T if ends else None,
            color=tone(rank),
            fmt=_MARKS[rank],
            markersize=3.5,
            elinewidth=0.8,
            label=words,
        )
        joined = [place for place in shown if place <= len(per_seed.CENTRED)]
        ax.plot(joined, means[: len(joined)], color=tone(rank), linewidth=0.8)
        for place, one in shown.items():
            points.append({"line": words, "place": place, **one.found})
    bigrams = per_seed.rows_of(table, "bigram_loss")["value"].tolist()
    if bigrams:
        bigram = bigrams[0]
        ax.axhline(bigram, **DASHED)
        ax.text(
            2.75,
            0.998 * bigram,
            "pairs of characters",
            color=GUIDE,
            fontsize=6,
            ha="center",
            va="top",
        )
        points.append({"line": "bigram", "place": 0, "mean": bigram})
    ax.legend(
        fontsize=5,
        loc="upper left",
        bbox_to_anchor=(0, 1.02),
        ncols=2,
        handlelength=1,
        columnspacing=0.8,
    )
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.25 * (high - low))
    _name_places(ax, list(_NETWORKS.values()), r"$\lambda$, and two controls")
    return DataFrame(points)


def _name_places(ax: Axes, names: Sequence[str], words: str = r"$\lambda$") -> None:
    ax.set_xticks(range(len(names)), names, fontsize=6)
    ax.set_xlim(-0.4, len(names) - 0.6)
    ax.set_xlabel(words)
