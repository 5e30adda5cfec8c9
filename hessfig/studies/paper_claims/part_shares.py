"""Figures of the share of the functional part, for splits at the outputs and at the scores, by a varied setting."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator
from pandas import DataFrame, concat

from hessfig.analysis.axis import Axis, X, as_numbers, varied_setting
from hessfig.analysis.curves import functional_shares, score_shares
from hessfig.errors import UserError
from hessfig.figures.parts import (
    DOTTED,
    ONE_SCALE,
    FigureSpec,
    MeasuredCurves,
    Page,
    Sheet,
    Source,
    as_written,
    different,
    drawn_numbers,
    label_side,
    labels,
    matrix_colour,
    name_ends,
    reach,
    read_measured,
    read_numbers,
    say,
    set_x_scale,
    shaded,
    shades,
    where,
)
from hessfig.record import FROBENIUS, LEFT_OUT, NETWORK, Status
from hessfig.terms import AT_SCORES, Part

TOGETHER = ("together", "together")  # the block of all diagonal ones
_SHOWN = 3
_MARKS = "s^Dvo"
# Inches of a panel with its names of lines, and of these names.
_PANEL, _NAMES = (2.6, 0.95)


def ablation(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the share of the functional part of every block, ||H_f|| / (||H_o|| + ||H_f||).

    How to read it: above 1/2, the dotted line, the functional part is the larger. The x
    axis has the varied setting, with a line for each of a few sigmas (or places on
    another axis); for a setting that is not a number it has sigma, with a line for each
    value. Dots: mean over seeds, bars: 95 % interval. Norms of H_o and H_f are in the
    CSV file. Blocks whose functional part is 0 by a theorem have no panel of their own,
    but count in a last one: that of all diagonal blocks together, ||H||^2 = sum over
    weights of ||H(W, W)||^2. Requires: the sweep's table.csv with H_o and H_f of
    several variants (option `sigmas` picks the places).
    """
    measured = read_measured(spec, source)
    pages = (
        measured.curves[["num_layers", "layer"]]
        .drop_duplicates()
        .sort_values(["num_layers", "layer"])
    )
    for depth, layer in pages.itertuples(index=False):
        suffix = f"_depth{depth}_layer{layer}" if len(pages) > 1 or depth > 1 else ""
        yield draw_ablation(
            measured.of(num_layers=depth, layer=layer), spec, suffix=suffix
        )


def draw_ablation(
    measured: MeasuredCurves, spec: FigureSpec, *, suffix: str = ""
) -> Page:
    """Draw one layer with one panel per block, and one of all diagonal blocks where some have no functional part."""
    shares = functional_shares(measured.table, measured.axis)
    blocks, null = _split_blocks(measured)
    places = _chosen_places(shares, spec.numbers("sigmas"), measured)
    titles = [f"{labels.block_words(*block)} block" for block in blocks]
    words = ""
    if null:
        together = _together(measured)
        shares = concat(
            [shares, functional_shares(together, measured.axis)], ignore_index=True
        )
        blocks = [*blocks, TOGETHER]
        if len(measured.matrices()) == 2:
            weights = labels.block_words(*measured.matrices())
        else:
            weights = "diagonal"
        titles.append(f"{weights} blocks together")
        words = f" Together: their squared norms added. Of {', '.join(null)} the functional part is 0 (theorem)."
    marks = (
        "Share of the functional part: its norm over the sum of both. Dots: mean over"
    )
    marks += f" {labels.seeds_words(measured.table)}; bars: 95% interval of the mean; dotted: 1/2."
    note = f"{marks}{labels.made_words(measured.table, measured.axis, measured.setting)}{words}"
    room = measured.paper.inches - ONE_SCALE.left - len(blocks) * _PANEL
    style = ONE_SCALE.replace(height=1.8, right=max(_NAMES, room), across=_NAMES)
    sheet = Sheet.grid(
        measured.paper, [[labels.block_name(*block) for block in blocks]], note, style
    )
    for _, column, ax in sheet:
        row, col = blocks[column]
        if blocks[column] == TOGETHER:
            curves = measured
        else:
            curves = measured.of(row=row, col=col)
        _draw_shares(ax, where(shares, row=row, col=col), curves, places)
    share = f"share of {labels.symbol(Part.H_f)}"
    name, values = varied_setting(list(measured.curves["variant"].unique()))
    along = labels.plain(name) if as_numbers(values) else measured.axis.symbol
    sheet.label(along, titles, [share], [""], share)
    written = as_written(shares.assign(part="H_f/(H_o+H_f)"), measured.axis)
    return sheet.page(suffix, drawn_numbers(measured), written)


def _together(measured: MeasuredCurves) -> DataFrame:
    """Return the norms of all diagonal blocks together, sqrt(sum over W of ||H(W, W)||^2), in place of the blocks'."""
    table = measured.table
    # A norm that is left out makes its sum infinite, which is left out below.
    squares = (table["value"] ** 2).where(~table["status"].isin(LEFT_OUT), np.inf)
    diagonal = table.assign(value=squares)[table["row"] == table["col"]]
    one_sum = [*NETWORK, "layer", "row_layer", X, "seed", "part"]
    sums = (
        diagonal.groupby(one_sum, sort=False, dropna=False)["value"]
        .sum()
        .pow(0.5)
        .reset_index()
    )
    sums = sums[np.isfinite(sums["value"])]
    return sums.assign(
        row=TOGETHER[0], col=TOGETHER[1], status=Status.ok, quantity=FROBENIUS
    )


def _split_blocks(measured: MeasuredCurves) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the blocks to draw and those without a functional part; if no block has one, all are drawn."""
    functional = measured.of(part=Part.H_f).curves
    zero = functional.groupby(["row", "col"])["is_zero"].all()
    present = different(measured.curves, "row", "col")
    diagonal = [(name, name) for name in measured.matrices()]
    every = diagonal + [pair for pair in present if pair not in diagonal]
    drawn = [block for block in every if not zero.get(block, False)]
    if not drawn:
        return every, []
    words = []
    for row, col in every:
        if (row, col) not in drawn:
            words.append(f"({row.removeprefix('W_')}, {col.removeprefix('W_')})")
    return drawn, words


def _chosen_places(
    shares: DataFrame, wanted: list[float] | None, measured: MeasuredCurves
) -> list[float]:
    """Return the places nearest to the wanted ones; by default the lowest, middle and highest (sigma: up to 1)."""
    known = np.sort(shares[X].unique())
    known = known[known > 0]
    if not known.size:
        return []
    low = known[known <= 1.0 + 1e-9] if measured.axis.is_sigma else known
    practical = low if low.size else known
    targets = wanted or np.geomspace(practical[0], practical[-1], _SHOWN)
    nearest = {np.abs(np.log(known / target)).argmin() for target in targets}
    return sorted(float(known[rank]) for rank in nearest)


def _draw_shares(
    ax: Axes, shares: DataFrame, block: MeasuredCurves, places: list[float]
) -> None:
    """Draw the shares of one block, with names at the ends of the lines."""
    variants = list(block.curves["variant"].unique())
    _, values = varied_setting(variants)
    numbers = as_numbers(values)
    ax.set_ylim(-0.03, 1.03)
    ax.axhline(0.5, **DOTTED)
    if shares.empty or (shares["mean"] == 0).all():
        say(ax, "= 0 (theorem)" if len(shares) else "(not measured)")
        places = []
        variants = []
    if numbers:
        lines = _by_place(
            shares, block.axis, places, dict(zip(variants, numbers, strict=False))
        )
        name_values(ax, values, numbers)
    else:
        lines = _by_variant(shares, block, variants)
        set_x_scale(ax, block.curves[X])
    ends = []
    for words, here, style in lines:
        if here.empty:
            continue
        bars = np.nan_to_num(reach(here, logs=False))
        ax.errorbar(here["x"], here["mean"], bars, elinewidth=0.8, **style)
        last = here.sort_values("x")["mean"].iloc[-1]
        ends.append((float(last), words, style["color"]))
    name_ends(ax, ends)


# Its name, its points in the columns x and mean, its style.
_Line = tuple[str, DataFrame, dict[str, Any]]


def _by_place(
    shares: DataFrame, axis: Axis, places: list[float], settings: Mapping[str, float]
) -> Iterator[_Line]:
    """Yield a line per place on the axis against the setting of each variant, darker for later places."""
    for rank, (tone, at) in enumerate(shaded("#555555", places)):
        here = shares[np.isclose(shares[X], at)]
        words = f"{axis.symbol} = {at:{'.2g' if axis.is_sigma else 'g'}}"
        yield (
            words,
            here.assign(x=here["variant"].map(settings)),
            {"fmt": f"{_MARKS[rank % 5]}-", "color": tone},
        )


def _by_variant(
    shares: DataFrame, block: MeasuredCurves, variants: Sequence[str]
) -> Iterator[_Line]:
    """Yield a line per variant along the axis."""
    rows = list(block.curves["row"].unique())
    weight, colour = "", "#555555"
    if len(rows) == 1:
        weight = f"{labels.weight_words(rows[0])}, "
        colour = matrix_colour(rows[0])
    for rank, (tone, variant) in enumerate(shaded(colour, variants)):
        words = f"{weight}{labels.variant_words(variant)}"
        yield (
            words,
            where(shares, variant=variant),
            {"fmt": f"{_MARKS[rank % 5]}-", "color": tone},
        )


def name_values(ax: Axes, values: list[str], numbers: list[float] | None) -> None:
    """Put the varied values on the x axis: a logarithmic axis for positive numbers of a wide range, otherwise names."""
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    if numbers:
        names = [f"{number:g}" for number in numbers]
    else:
        names = list(map(labels.plain, values))
    ax.set_xticks(numbers or range(len(values)), names)
    ax.margins(x=0.1)


_MOST_NAMED = 8  # largest number of values with a tick label
_ENDS = 0.55  # inches of the names of lines


def score_split(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the share of the functional part of the split at the scores against the varied setting, a line per place.

    How to read it: a panel per block and layer; lines are the mean over seeds of
    ||H_fT|| / (||H_oT|| + ||H_fT||) at one sigma (or another place on the axis), darker for later ones, bands
    its 95 % interval (Student's t). Above 1/2, the dotted line, the functional part is
    the larger. A setting that is no number has a line per value, along sigma. Requires:
    the sweep's table.csv with H_oT and H_fT of several variants.
    """
    run, table = read_numbers(spec, source)
    shares = score_shares(table, run.axis)
    if shares.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws parts at the scores, and the table has none",
            got=", ".join(table["part"].unique()),
            allowed="numbers of both H_oT and H_fT",
            remedy="hessfig run ... blocks=[query_key] parts=[H_oT,H_fT,H]",
        )
    panels = different(shares, "num_layers", "layer", "row", "col")
    names = [_name(*panel) for panel in panels]
    words = f"Lines: mean over {labels.seeds_words(table)}; bands: 95% interval of the mean (Student's t)."
    settings = f"{labels.setting_words(run.config, table, run.axis)} {labels.estimator_words(table)}."
    about = f"{words} {settings}{labels.left_out_words(table)}"
    sheet = Sheet.grid(
        spec.paper,
        [names],
        about,
        ONE_SCALE.replace(height=1.7, across=_ENDS, right=_ENDS),
    )
    for _, column, ax in sheet:
        depth, layer, row, col = panels[column]
        _draw_score_shares(
            ax, where(shares, num_layers=depth, layer=layer, row=row, col=col), run.axis
        )
        title = labels.block_words(row, col)
        if depth > 1:
            title += f", layer {layer} of {depth}"
        ax.set_title(title)
    outer, functional = (labels.symbol(part) for part in AT_SCORES)
    label_side(sheet.first, rf"$\|${functional}$\|/(\|${outer}$\|+\|${functional}$\|)$")
    yield sheet.page("", as_written(shares.assign(part="H_fT/(H_oT+H_fT)"), run.axis))


def _name(depth: int, layer: int, row: str, col: str) -> str:
    name = labels.block_name(row, col)
    if depth > 1:
        name += f" {layer} of {depth}"
    return name


def _draw_score_shares(ax: Axes, shares: DataFrame, axis: Axis) -> None:
    """Draw shares against the setting with one line per place, or, if it is not a number, along the axis by value."""
    variants = list(shares["variant"].unique())
    name, values = varied_setting(variants)
    numbers = as_numbers(values)
    setting = shares["variant"].map(dict(zip(variants, numbers or values, strict=True)))
    shares = shares.assign(setting=setting)
    x, by = ("setting", X) if numbers else (X, "setting")
    ends: list[tuple[float, str, Any]] = []
    groups = list(shares.sort_values(x).groupby(by, sort=bool(numbers), dropna=False))
    marks = itertools.cycle("o" if numbers else _MARKS)
    for mark, tone, (at, group) in zip(
        marks, shades("#2166ac", len(groups)), groups, strict=False
    ):
        if numbers:
            words = f"{axis.symbol} = {at:g}"
        else:
            words = labels.variant_words(group["variant"].iloc[0])
        ax.plot(
            group[x], group["mean"], f"{mark}-", color=tone, markersize=3, label=words
        )
        ends.append((float(group["mean"].iloc[-1]), words, tone))
        ax.fill_between(
            group[x], group["low"], group["high"], color=tone, alpha=0.25, linewidth=0
        )
    ax.axhline(0.5, **DOTTED)
    ax.set(xlabel=labels.plain(name) if numbers else axis.symbol, ylim=(-0.03, 1.03))
    places = sorted(numbers or shares[X].unique())
    name_values(ax, [f"{place:g}" for place in places], places)
    ax.set_xticks(places[:: 1 + len(places) // _MOST_NAMED])
    form = _as_ratio if numbers else "{:g}".format
    ax.xaxis.set_major_formatter(FuncFormatter(lambda place, _: form(place)))
    name_ends(ax, ends)


def _as_ratio(number: float) -> str:
    """Return a number below 1 as a fraction 1/n if it is one."""
    below = 0 < number < 1 and (1 / number).is_integer()
    return f"1/{1 / number:g}" if below else f"{number:g}"
