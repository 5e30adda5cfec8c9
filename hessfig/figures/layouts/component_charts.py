"""Growth rates by component: exponents predicted and fitted, one line per network, and the curves behind them."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import last_word, settings_of
from hessfig.analysis.slopes.printed import Window
from hessfig.figures.parts import labels
from hessfig.figures.parts.colours import matrix_colour
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.lettering import fitting, width_of
from hessfig.figures.parts.measured import MeasuredCurves, read_measured, windows_in_words
from hessfig.figures.parts.panel_sheet import ONE_SCALE, Page, Sheet, in_rows, say
from hessfig.figures.parts.panels import draw_curve, mark_one, positive, set_log_range, why_no_line
from hessfig.figures.parts.rows import BLOCK_KEY, BlockKey, as_written, blocks_in_order, where, with_pairs
from hessfig.figures.parts.slope_words import rows_of, window_of
from hessfig.predictions.growth_rates import Prediction
from hessfig.terms import Part

_LINE = 0.135  # inches of the page for a network
_LONGEST = 1.7  # inches for its name
_BASE = "base"
_PANELS, _ACROSS = 16, 4  # of curves on a page, and on a line
_PAIR = ("W_V", "W_Q")


def components(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw exponents in sigma by component: open circles are predicted, dots with bars fitted; then the curves.

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
    style = ONE_SCALE.but(left=0.1 + max(map(width_of, names)), bottom=0.52, across=0.08, narrowest=0.5)
    style = style.but(height=_LINE * len(variants) + 0.1)
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
    return sheet.page(suffix, here.drop(columns="across"))


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
    """Give the panels one range, which holds every exponent of the page."""
    known = slopes[["slope", "predicted"]].to_numpy(float)
    if np.isfinite(known).any():
        low, high = np.floor(np.nanmin(known)), np.ceil(np.nanmax(known))
        ax.set_xlim(low - 0.6, high + 0.6)
        ax.set_xticks(np.arange(low, high + 1, 2))


def _by_exponent(slopes: pd.DataFrame) -> list[BlockKey]:
    """Return the blocks by what is predicted of the first network, so that its circles rise from left to right."""
    base = slopes[slopes["variant"] == slopes["variant"].iloc[0]]
    known = {key: one["predicted"].iloc[0] for key, one in base.groupby(BLOCK_KEY)}
    return sorted(blocks_in_order(slopes), key=lambda block: np.nan_to_num(known.get(block, np.inf), nan=np.inf))


def _curves(spec: FigureSpec, measured: MeasuredCurves, part: Part) -> Iterator[Page]:
    """Draw the norms of the value and the query block of every network, a small panel each."""
    for number, some in enumerate(in_rows(list(dict.fromkeys(measured.curves["variant"])), _PANELS)):
        lines = [list(line) for line in in_rows(some, _ACROSS)]
        names = [[name_of(variant) for variant in line] for line in lines]
        note = f"{measured.how(guides=False)} {labels.part_words(part)}; violet: W_V, green: W_Q."
        sheet = Sheet.grid(spec.paper, names, note, ONE_SCALE.but(down=0.26, narrowest=0.6))
        for row, column, ax in sheet:
            _draw_network(ax, measured.of(variant=lines[row][column], part=part), lines[row][column])
        shown = where(measured.curves, part=part)
        set_log_range(sheet.axes, shown[shown["row"].isin(_PAIR)], measured.axis)
        yield sheet.page(f"_curves{number + 1}", as_written(shown, measured.axis))


def _draw_network(ax: Axes, measured: MeasuredCurves, variant: str) -> None:
    ax.set_title(fitting([name_of(variant)], 1.0), fontsize=6)
    drawn = [measured.of(row=name, col=name) for name in _PAIR]
    if not any(positive(one.curves).any() for one in drawn):
        say(ax, why_no_line(measured.curves))
        return
    mark_one(ax, measured.axis)
    for name, one in zip(_PAIR, drawn, strict=True):
        if positive(one.curves).any():
            draw_curve(ax, one.curves, one.table, colour=matrix_colour(name))


# What a setting's value is called, by the last word of the setting; the value stands for {} where any may stand.
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
    """Return what a network changes, in words: 'sigmoid attention, bias −log L'; 'base' where nothing changes."""
    return ", ".join(_worded(last_word(key), value) for key, value in settings_of(variant).items()) or _BASE


def _worded(name: str, value: str) -> str:
    named = _NAMES.get(name, {})
    return named.get(value, named.get("", "")).format(value) or f"{labels.plain(name)} {labels.plain(value)}"


def _note(measured: MeasuredCurves, part: Part, window: Window) -> str:
    circles = f"{labels.part_words(part)}: exponents in σ. Circles: predicted; dots: fitted on "
    seeds = labels.seeds_words(measured.table)
    return f"{circles}{windows_in_words([window], measured.axis)}, {seeds}, ± bootstrap over seeds. {measured.setting}"
