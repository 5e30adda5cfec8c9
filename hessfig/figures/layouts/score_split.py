"""The split of the Hessian at the attention scores: the share of its functional part against a varied setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from hessfig.analysis.axis import Axis, X, as_numbers, varied_setting
from hessfig.analysis.curves import score_shares
from hessfig.errors import UserError
from hessfig.figures.layouts.comparisons import name_values
from hessfig.figures.parts import labels
from hessfig.figures.parts.colours import shades
from hessfig.figures.parts.figure_spec import FigureSpec
from hessfig.figures.parts.measured import as_written, read_numbers
from hessfig.figures.parts.page import Page
from hessfig.figures.parts.panel_sheet import SHARED, Sheet, label_side
from hessfig.terms import AT_SCORES

_MOST_NAMED = 8  # values on an axis


def score_split(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the share of the functional part of the split at the scores against the varied setting, a line per place.

    How to read it: a panel per block and layer; lines are the mean over seeds of
    ||H_fT||^2 / (||H_oT||^2 + ||H_fT||^2) at one sigma (or another place on the axis), darker for later ones, bands
    its 95 % interval (Student's t). Above 1/2, the dotted line, the functional part is the larger. A setting that is
    no number has a line per value, along sigma.
    Requires: the sweep's table.csv with H_oT and H_fT of several variants.
    """
    run, table = read_numbers(spec, folder)
    shares = score_shares(table, run.axis)
    if shares.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws parts at the scores, and the table has none",
            got=", ".join(table["part"].unique()),
            allowed="numbers of both H_oT and H_fT",
            remedy="hessfig run ... blocks=[query_key] parts=[H_oT,H_fT,H]",
        )
    panels = list(shares[["num_layers", "layer", "row", "col"]].drop_duplicates().itertuples(index=False, name=None))
    names = [_name(*panel) for panel in panels]
    words = f"Lines: mean over {labels.seeds_words(table)}; bands: 95% interval of the mean (Student's t)."
    made = f"{labels.setting_words(run.config, table, run.axis)} {labels.estimator_words(table)}."
    about = f"{words} {made}{labels.left_out_words(table)}"
    sheet = Sheet.grid(spec.paper, [names], about, SHARED.but(height=1.7, across=0.3))
    for _, column, ax in sheet:
        depth, layer, row, col = panels[column]
        here = (shares["num_layers"] == depth) & (shares["layer"] == layer)
        _draw_score_shares(ax, shares[here & (shares["row"] == row) & (shares["col"] == col)], run.axis)
        ax.set_title(labels.block_words(row, col) + (f", layer {layer} of {depth}" if depth > 1 else ""))
    label_side(sheet.first, _score_share_words())
    yield sheet.page("", as_written(shares.assign(part="H_fT^2/(H_oT^2+H_fT^2)"), run.axis))


def _name(depth: int, layer: int, row: str, col: str) -> str:
    return labels.block_name(row, col) + (f" {layer} of {depth}" if depth > 1 else "")


def _score_share_words() -> str:
    outer, functional = (labels.symbol(part) for part in AT_SCORES)
    return rf"$\|${functional}$\|^2/(\|${outer}$\|^2+\|${functional}$\|^2)$"


def _draw_score_shares(ax: Axes, shares: pd.DataFrame, axis: Axis) -> None:
    """Draw shares against the setting, a line per place; where it is no number, along the axis, a line per value."""
    variants = list(shares["variant"].unique())
    name, values = varied_setting(variants)
    numbers = as_numbers(values)
    setting = shares["variant"].map(dict(zip(variants, numbers or values, strict=True)))
    shares = shares.assign(setting=setting)
    x, by, title = ("setting", X, axis.symbol) if numbers else (X, "setting", labels.plain(name))
    groups = list(shares.sort_values(x).groupby(by, sort=bool(numbers), dropna=False))
    for tone, (at, one) in zip(shades("#2166ac", len(groups)), groups, strict=True):
        words = at if isinstance(at, str) else f"{at:g}"
        ax.plot(one[x], one["mean"], "o-", color=tone, markersize=3, label=labels.plain(words))
        ax.fill_between(one[x], one["low"], one["high"], color=tone, alpha=0.25, linewidth=0)
    ax.axhline(0.5, color="#333333", linestyle=(0, (1, 2)), linewidth=0.6, zorder=1)
    ax.set(xlabel=labels.plain(name) if numbers else axis.symbol, ylim=(-0.03, 1.03))
    places = sorted(numbers or shares[X].unique())
    name_values(ax, [f"{place:g}" for place in places], places)
    ax.set_xticks(places[:: 1 + len(places) // _MOST_NAMED])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _as_ratio(place) if numbers else f"{place:g}"))
    ax.legend(title=f"{title}:", loc="best", alignment="left")


def _as_ratio(number: float) -> str:
    """Return a number below 1 as one over a whole number where it is one."""
    below = 0 < number < 1 and (1 / number).is_integer()
    return f"1/{1 / number:g}" if below else f"{number:g}"
