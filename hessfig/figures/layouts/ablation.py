"""Design components: how a varied setting moves the two parts of the Hessian, and which one dominates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from hessfig.analysis.axis import Axis, X, as_numbers, varied_setting
from hessfig.analysis.curves import functional_shares, score_shares
from hessfig.errors import UserError
from hessfig.figures.parts.measured import Measured, as_written, drawn_numbers, read_measured, read_numbers
from hessfig.figures.parts.page import FigureSpec, Page, matrix_colour, shades
from hessfig.figures.parts.panel_sheet import Margins, label_side, panel_sheet, say
from hessfig.figures.parts.panels import draw_curve, mark_one, positive, set_log_range, why_empty
from hessfig.figures.parts.words import (
    block_words,
    estimator_words,
    left_out_words,
    norm_label,
    part_title,
    plain,
    seeds_words,
    setting_words,
    symbol,
)
from hessfig.terms import AT_SCORES, Part

_SHOWN = 3
_MOST_NAMED = 8  # values on an axis
_COLUMNS = (Part.H_o.value, Part.H_f.value, "share")


def ablation(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw, for every block, H_o and H_f along the axis for each value of the varied setting, and their share.

    How to read it: the left and middle panels are growth curves, darker for later values. The right panel
    tells which part rules: ||H_f|| / (||H_o|| + ||H_f||) against the varied setting at a few sigmas (or places on
    another axis; dots: mean over seeds, bars: ± standard error); above 1/2 the functional part is the larger. The note
    tells a claim of the paper (option `claim`) and the shares at both ends of the setting.
    Requires: the sweep's table.csv with H_o and H_f of several variants (option `sigmas` picks the shares).
    """
    measured = read_measured(spec, folder)
    depths = sorted(measured.curves["num_layers"].unique())
    for depth in depths:
        one = measured.of(num_layers=depth)
        for layer in one.layers():
            several = len(depths) > 1 or depth > 1 or len(one.layers()) > 1
            suffix = f"_depth{depth}_layer{layer}" if several else ""
            yield draw_ablation(one.of(layer=layer), spec, suffix=suffix)


def draw_ablation(measured: Measured, spec: FigureSpec, *, suffix: str = "") -> Page:
    """Draw one layer: a row per block, columns ||H_o||, ||H_f|| and the share of H_f."""
    blocks = _blocks(measured)
    shares = functional_shares(measured.table, measured.axis)
    places = _chosen_places(shares, spec.numbers("sigmas"), measured)
    axis = measured.axis.symbol
    words = f"Shares: mean over seeds of the ratio, bars ± standard error; lighter for smaller {axis}."
    sheet = panel_sheet(
        [[f"{_name(*block)}:{column}" for column in _COLUMNS] for block in blocks],
        note=f"{measured.how(guides=False)} {words}{_claim(spec, shares, measured, places)}",
        height=1.5,
        margins=Margins(across=0.38, down=0.42),
        share_x=False,
        share_y=False,
    )
    for row, (name, col) in enumerate(blocks):
        block = measured.of(row=name, col=col)
        curves = {column: ax for i, column, ax in sheet if i == row and column < 2}
        _draw_curves(curves, block)
        for ax in (ax for i, column, ax in sheet if i == row and column == 2):
            _draw_shares(ax, shares[(shares["row"] == name) & (shares["col"] == col)], block, places)
    sheet.label(
        x="",
        columns=_titles(),
        rows=[norm_label(*block) for block in blocks],
        names=[block_words(*block) for block in blocks],
    )
    written = as_written(shares.assign(part="H_f/(H_o+H_f)"), measured.axis)
    numbers = pd.concat([drawn_numbers(measured), written], ignore_index=True)
    return Page(suffix, sheet.figure, numbers)


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
    names = [f"{_name(row, col)}{f' {layer} of {depth}' * (depth > 1)}" for depth, layer, row, col in panels]
    words = f"Lines: mean over {seeds_words(table)}; bands: 95% interval of the mean (Student's t)."
    about = f"{words} {setting_words(run.config, table, run.axis)} {estimator_words(table)}.{left_out_words(table)}"
    sheet = panel_sheet([names], note=about, height=1.7, margins=Margins(across=0.3))
    for _, column, ax in sheet:
        depth, layer, row, col = panels[column]
        here = (shares["num_layers"] == depth) & (shares["layer"] == layer)
        _draw_score_shares(ax, shares[here & (shares["row"] == row) & (shares["col"] == col)], run.axis)
        ax.set_title(f"{block_words(row, col)}{f', layer {layer} of {depth}' * (depth > 1)}")
    label_side(sheet.first, _score_share_words())
    yield Page("", sheet.figure, as_written(shares.assign(part="H_fT^2/(H_oT^2+H_fT^2)"), run.axis))


def _score_share_words() -> str:
    outer, functional = (symbol(part) for part in AT_SCORES)
    return rf"$\|${functional}$\|^2/(\|${outer}$\|^2+\|${functional}$\|^2)$"


def _draw_score_shares(ax: Axes, shares: pd.DataFrame, axis: Axis) -> None:
    """Draw shares against the setting, a line per place; where it is no number, along the axis, a line per value."""
    variants = list(shares["variant"].unique())
    name, values = varied_setting(variants)
    numbers = as_numbers(values)
    setting = shares["variant"].map(dict(zip(variants, numbers or values, strict=True)))
    shares = shares.assign(setting=setting)
    x, by, title = ("setting", X, axis.symbol) if numbers else (X, "setting", plain(name))
    groups = list(shares.sort_values(x).groupby(by, sort=bool(numbers), dropna=False))
    for tone, (at, one) in zip(shades("#2166ac", len(groups)), groups, strict=True):
        words = at if isinstance(at, str) else f"{at:g}"
        ax.plot(one[x], one["mean"], "o-", color=tone, markersize=3, label=plain(words))
        ax.fill_between(one[x], one["low"], one["high"], color=tone, alpha=0.25, linewidth=0)
    ax.axhline(0.5, color="#333333", linestyle=(0, (1, 2)), linewidth=0.6, zorder=1)
    ax.set(xlabel=plain(name) if numbers else axis.symbol, ylim=(-0.03, 1.03))
    places = sorted(numbers or shares[X].unique())
    _name_values(ax, [f"{place:g}" for place in places], places)
    ax.set_xticks(places[:: 1 + len(places) // _MOST_NAMED])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _as_ratio(place) if numbers else f"{place:g}"))
    ax.legend(title=f"{title}:", loc="best", alignment="left")


def _as_ratio(number: float) -> str:
    """Return a number below 1 as one over a whole number where it is one."""
    below = 0 < number < 1 and (1 / number).is_integer()
    return f"1/{1 / number:g}" if below else f"{number:g}"


def _name(row: str, col: str) -> str:
    return row if row == col else f"{row}-{col}"


def _blocks(measured: Measured) -> list[tuple[str, str]]:
    """Return the measured blocks: diagonal ones first, in the order of growth sheets."""
    present = list(measured.curves[["row", "col"]].drop_duplicates().itertuples(index=False, name=None))
    diagonal = [(name, name) for name in measured.matrices()]
    return diagonal + [pair for pair in present if pair not in diagonal]


def _titles() -> list[tuple[str, ...]]:
    outer, functional = (symbol(part) for part in (Part.H_o, Part.H_f))
    share = rf"$\|${functional}$\|/(\|${outer}$\|+\|${functional}$\|)$"
    return [(part_title(Part.H_o), outer), (part_title(Part.H_f), functional), (f"share {share}", "share")]


def _draw_curves(panels: Mapping[int, Axes], block: Measured) -> None:
    """Draw the curves of H_o (panel 0) and H_f (panel 1), those of the two that are shown."""
    if not panels:
        return
    variants = list(block.curves["variant"].unique())
    name, values = varied_setting(variants)
    tones = shades(matrix_colour(block.curves["row"].iloc[0]), len(variants))
    axes = list(panels.values())
    axes[0].sharey(axes[-1])
    set_log_range(axes, block.curves[block.curves["part"] != Part.H], block.axis)
    for column, ax in panels.items():
        one = block.of(part=(Part.H_o, Part.H_f)[column])
        mark_one(ax, block.axis)
        ax.set_xlim(axes[0].get_xlim())
        ax.set_xlabel(block.axis.symbol)
        widths = np.linspace(1.8, 0.8, len(variants))  # curves that coincide stay countable
        for tone, variant, value, width in zip(tones, variants, values, widths, strict=True):
            draw_curve(ax, one.of(variant=variant).curves, colour=tone, label=plain(value), linewidth=width)
        if not positive(one.curves).any():
            say(ax, why_empty(one))
    if any(values):
        axes[0].legend(
            title=f"{plain(name)}:", loc="upper left", ncols=1 + len(values) // 5, alignment="left", columnspacing=0.6
        )


def _claim(spec: FigureSpec, shares: pd.DataFrame, measured: Measured, places: list[float]) -> str:
    """Return the paper's claim and the shares that speak for or against it: first to last value of the setting."""
    alive = shares[(shares["mean"] > 0) & np.isclose(shares[X], max(places, default=np.nan))]
    if "claim" not in spec.options or alive.empty:
        return ""
    variants = list(measured.curves["variant"].unique())
    name, values = varied_setting(variants)
    ends = alive[alive["variant"].isin([variants[0], variants[-1]])].groupby(["row", "col"], sort=False)
    found = ", ".join(f"{row} {group['mean'].iloc[0]:.2f} to {group['mean'].iloc[-1]:.2f}" for (row, _), group in ends)
    where = f"{name} {values[0]} to {values[-1]}, {measured.axis.symbol} = {max(places):g}"
    return f" Claim: {spec.options['claim']}. Shares from {where}: {found}."


def _chosen_places(shares: pd.DataFrame, wanted: list[float] | None, measured: Measured) -> list[float]:
    """Return the places nearest the wanted ones; by default lowest, middle and highest (sigma: up to 1)."""
    known = np.sort(shares[X].unique())
    known = known[known > 0]
    if not known.size:
        return []
    low = known[known <= 1.0 + 1e-9] if measured.axis.is_sigma else known
    practical = low if low.size else known
    targets = wanted or np.geomspace(practical[0], practical[-1], _SHOWN)
    return sorted({float(known[np.abs(np.log(known / target)).argmin()]) for target in targets})


def _draw_shares(ax: Axes, shares: pd.DataFrame, block: Measured, places: list[float]) -> None:
    name, values = varied_setting(list(block.curves["variant"].unique()))
    numbers = as_numbers(values)
    ax.set_xlabel(plain(name))
    ax.set_ylim(-0.03, 1.08)
    if shares.empty or (shares["mean"] == 0).all():
        say(ax, "= 0 (theorem)" if len(shares) else "(not measured)")
        places = []
    place = dict(zip(block.curves["variant"].unique(), numbers or range(len(values)), strict=True))
    for tone, at in zip(shades("#555555", len(places)), places, strict=True):
        here = shares[np.isclose(shares[X], at)]
        ax.errorbar(
            [place[variant] for variant in here["variant"]],
            here["mean"],
            here["sem"],
            fmt="o-" if numbers else "o",
            color=tone,
            elinewidth=0.8,
            label=f"{at:.2g}" if block.axis.is_sigma else f"{at:g}",
        )
    _name_values(ax, values, numbers)
    if places:
        ax.legend(title=f"{block.axis.symbol}:", loc="best", alignment="left")


def _name_values(ax: Axes, values: list[str], numbers: list[float] | None) -> None:
    """Put the varied values on the x axis: a logarithmic one for positive numbers that span it, names otherwise."""
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(
        numbers or range(len(values)), [f"{number:g}" for number in numbers] if numbers else list(map(plain, values))
    )
    ax.margins(x=0.1)
