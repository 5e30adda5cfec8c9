"""Figures of the share of the functional part, for splits at the outputs and at the scores, by a varied setting."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from hessfig.analysis.axis import Axis, X, as_numbers, varied_setting
from hessfig.analysis.curves import functional_shares, score_shares
from hessfig.errors import UserError
from hessfig.figures.parts import labels
from hessfig.figures.parts.colours import matrix_colour, shades
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.measured import MeasuredCurves, drawn_numbers, read_measured, read_numbers
from hessfig.figures.parts.panel_sheet import APART, SHARED, Page, Sheet, label_side, say
from hessfig.figures.parts.panels import draw_curve, mark_one, positive, reach, set_log_range, why_empty
from hessfig.figures.parts.rows import as_written, different, where
from hessfig.figures.parts.ticks import set_x_scale
from hessfig.terms import AT_SCORES, Part

_SHOWN = 3
_COLUMNS = (Part.H_o.value, Part.H_f.value, "share")


def ablation(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw, for every block, H_o and H_f along the axis for each value of the varied setting, and their share.

    How to read it: the left and middle panels are growth curves, darker for later values. The right panel
    shows which part dominates: ||H_f|| / (||H_o|| + ||H_f||) against the varied setting at a few sigmas (or places on
    another axis; dots: mean over seeds, bars: 95 % interval). Above 1/2 the functional part is larger. A setting that
    is not a number has one line per value, along the axis.
    Requires: the sweep's table.csv with H_o and H_f of several variants (option `sigmas` picks the shares).
    """
    measured = read_measured(spec, source)
    pages = measured.curves[["num_layers", "layer"]].drop_duplicates().sort_values(["num_layers", "layer"])
    for depth, layer in pages.itertuples(index=False):
        suffix = f"_depth{depth}_layer{layer}" if len(pages) > 1 or depth > 1 else ""
        yield draw_ablation(measured.of(num_layers=depth, layer=layer), spec, suffix=suffix)


def draw_ablation(measured: MeasuredCurves, spec: FigureSpec, *, suffix: str = "") -> Page:
    """Draw one layer with one row per block and the columns ||H_o||, ||H_f|| and share of H_f."""
    shares = functional_shares(measured.table, measured.axis)
    blocks, null = _split_blocks(measured)
    places = _chosen_places(shares, spec.numbers("sigmas"), measured)
    axis = measured.axis.symbol
    numbers = as_numbers(varied_setting(list(measured.curves["variant"].unique()))[1])
    words = "Shares: mean over seeds of the ratio, bars: 95% interval"
    words += f"; lighter for smaller {axis}" if numbers else ""
    words += f". Not drawn: {', '.join(null)}, whose functional part is 0 (theorem)." if null else "."
    names = [[f"{labels.block_name(*block)}:{column}" for column in _COLUMNS] for block in blocks]
    note, style = f"{measured.how(guides=False)} {words}", APART.replace(height=1.5, across=0.38, down=0.42)
    sheet = Sheet.grid(measured.paper, names, note, style)
    for row, (name, col) in enumerate(blocks):
        block, panels = measured.of(row=name, col=col), {column: ax for i, column, ax in sheet if i == row}
        if 2 in panels:
            _draw_shares(panels.pop(2), where(shares, row=name, col=col), block, places)
        _draw_curves(panels, block)
    rows, short = ([words(*block) for block in blocks] for words in (labels.norm_label, labels.block_words))
    sheet.label("", _titles(), rows, short)
    written = as_written(shares.assign(part="H_f/(H_o+H_f)"), measured.axis)
    numbers = pd.concat([drawn_numbers(measured), written], ignore_index=True)
    return sheet.page(suffix, numbers)


def _split_blocks(measured: MeasuredCurves) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the blocks to draw and those without a functional part; if no block has one, all are drawn."""
    functional = measured.of(part=Part.H_f).curves
    zero = functional.groupby(["row", "col"])["is_zero"].all()
    every = _blocks(measured)
    drawn = [block for block in every if not zero.get(block, False)]
    words = [f"({row.removeprefix('W_')}, {col.removeprefix('W_')})" for row, col in every if (row, col) not in drawn]
    return (drawn, words) if drawn else (every, [])


def _blocks(measured: MeasuredCurves) -> list[tuple[str, str]]:
    """Return the measured blocks: diagonal ones first, in the order of growth sheets."""
    present = different(measured.curves, "row", "col")
    diagonal = [(name, name) for name in measured.matrices()]
    return diagonal + [pair for pair in present if pair not in diagonal]


def _titles() -> list[tuple[str, ...]]:
    outer, functional = (labels.symbol(part) for part in (Part.H_o, Part.H_f))
    share = rf"$\|${functional}$\|/(\|${outer}$\|+\|${functional}$\|)$"
    return [
        (labels.part_title(Part.H_o), outer),
        (labels.part_title(Part.H_f), functional),
        (f"share {share}", "share"),
    ]


def _draw_curves(panels: Mapping[int, Axes], block: MeasuredCurves) -> None:
    """Draw the curves of H_o (panel 0) and H_f (panel 1), as far as the panels are shown."""
    if not panels:
        return
    variants = list(block.curves["variant"].unique())
    name, values = varied_setting(variants)
    tones = shades(matrix_colour(block.curves["row"].iloc[0]), len(variants))
    axes = list(panels.values())
    axes[0].sharey(axes[-1])
    set_log_range(axes, block.curves[block.curves["part"] != Part.H], block.axis)
    for column, ax in panels.items():
        of_part = block.of(part=(Part.H_o, Part.H_f)[column])
        mark_one(ax, block.axis)
        ax.set_xlim(axes[0].get_xlim())
        ax.set_xlabel(block.axis.symbol)
        widths = np.linspace(1.8, 0.8, len(variants))  # so that coinciding curves remain visible
        for tone, variant, value, width in zip(tones, variants, values, widths, strict=True):
            curve = of_part.of(variant=variant)
            label = labels.variant_words(variant) if as_numbers(values) is None else labels.plain(value)
            draw_curve(ax, curve.curves, curve.table, colour=tone, label=label, linewidth=width)
        if not positive(of_part.curves).any():
            say(ax, why_empty(of_part))
    if any(values):
        title, columns = f"{labels.plain(name)}:", 1 + len(values) // 5
        axes[0].legend(title=title, loc="upper left", ncols=columns, alignment="left", columnspacing=0.6)


def _chosen_places(shares: pd.DataFrame, wanted: list[float] | None, measured: MeasuredCurves) -> list[float]:
    """Return the places nearest to the wanted ones; by default the lowest, middle and highest (sigma: up to 1)."""
    known = np.sort(shares[X].unique())
    known = known[known > 0]
    if not known.size:
        return []
    low = known[known <= 1.0 + 1e-9] if measured.axis.is_sigma else known
    practical = low if low.size else known
    targets = wanted or np.geomspace(practical[0], practical[-1], _SHOWN)
    return sorted({float(known[np.abs(np.log(known / target)).argmin()]) for target in targets})


def _draw_shares(ax: Axes, shares: pd.DataFrame, block: MeasuredCurves, places: list[float]) -> None:
    variants = list(block.curves["variant"].unique())
    name, values = varied_setting(variants)
    numbers = as_numbers(values)
    ax.set_ylim(-0.03, 1.08)
    if not numbers:
        _draw_share_lines(ax, shares, block, variants)
        return
    ax.set_xlabel(labels.plain(name))
    if shares.empty or (shares["mean"] == 0).all():
        say(ax, "= 0 (theorem)" if len(shares) else "(not measured)")
        places = []
    place = dict(zip(variants, numbers or range(len(values)), strict=True))
    for tone, at in zip(shades("#555555", len(places)), places, strict=True):
        here = shares[np.isclose(shares[X], at)]
        x, error = here["variant"].map(place), np.nan_to_num(reach(here, logs=False))
        words = f"{at:.2g}" if block.axis.is_sigma else f"{at:g}"
        ax.errorbar(x, here["mean"], error, fmt="o-", color=tone, elinewidth=0.8, label=words)
    name_values(ax, values, numbers)
    if places:
        ax.legend(title=f"{block.axis.symbol}:", loc="best", alignment="left")


def _draw_share_lines(ax: Axes, shares: pd.DataFrame, block: MeasuredCurves, variants: Sequence[str]) -> None:
    """Draw shares along the axis, with one line per value of a setting that is not a number."""
    mark_one(ax, block.axis)
    set_x_scale(ax, block.curves[X])
    for tone, variant in zip(shades(matrix_colour(block.curves["row"].iloc[0]), len(variants)), variants, strict=True):
        here = where(shares, variant=variant)
        ax.errorbar(here[X], here["mean"], np.nan_to_num(reach(here, logs=False)), fmt="o-", color=tone, elinewidth=0.8)
    ax.set_xlabel(block.axis.symbol)


def name_values(ax: Axes, values: list[str], numbers: list[float] | None) -> None:
    """Put the varied values on the x axis: a logarithmic axis for positive numbers of a wide range, otherwise names."""
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    names = [f"{number:g}" for number in numbers] if numbers else list(map(labels.plain, values))
    ax.set_xticks(numbers or range(len(values)), names)
    ax.margins(x=0.1)


_MOST_NAMED = 8  # largest number of values with a tick label


def score_split(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the share of the functional part of the split at the scores against the varied setting, a line per place.

    How to read it: a panel per block and layer; lines are the mean over seeds of
    ||H_fT|| / (||H_oT|| + ||H_fT||) at one sigma (or another place on the axis), darker for later ones, bands
    its 95 % interval (Student's t). Above 1/2, the dotted line, the functional part is the larger. A setting that is
    no number has a line per value, along sigma.
    Requires: the sweep's table.csv with H_oT and H_fT of several variants.
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
    sheet = Sheet.grid(spec.paper, [names], about, SHARED.replace(height=1.7, across=0.3))
    for _, column, ax in sheet:
        depth, layer, row, col = panels[column]
        _draw_score_shares(ax, where(shares, num_layers=depth, layer=layer, row=row, col=col), run.axis)
        ax.set_title(labels.block_words(row, col) + (f", layer {layer} of {depth}" if depth > 1 else ""))
    outer, functional = (labels.symbol(part) for part in AT_SCORES)
    label_side(sheet.first, rf"$\|${functional}$\|/(\|${outer}$\|+\|${functional}$\|)$")
    yield sheet.page("", as_written(shares.assign(part="H_fT/(H_oT+H_fT)"), run.axis))


def _name(depth: int, layer: int, row: str, col: str) -> str:
    return labels.block_name(row, col) + (f" {layer} of {depth}" if depth > 1 else "")


def _draw_score_shares(ax: Axes, shares: pd.DataFrame, axis: Axis) -> None:
    """Draw shares against the setting with one line per place, or, if it is not a number, along the axis by value."""
    variants = list(shares["variant"].unique())
    name, values = varied_setting(variants)
    numbers = as_numbers(values)
    setting = shares["variant"].map(dict(zip(variants, numbers or values, strict=True)))
    shares = shares.assign(setting=setting)
    x, by, title = ("setting", X, axis.symbol) if numbers else (X, "setting", labels.plain(name))
    groups = list(shares.sort_values(x).groupby(by, sort=bool(numbers), dropna=False))
    for tone, (at, group) in zip(shades("#2166ac", len(groups)), groups, strict=True):
        words = at if isinstance(at, str) else f"{at:g}"
        ax.plot(group[x], group["mean"], "o-", color=tone, markersize=3, label=labels.plain(words))
        ax.fill_between(group[x], group["low"], group["high"], color=tone, alpha=0.25, linewidth=0)
    ax.axhline(0.5, color="#333333", linestyle=(0, (1, 2)), linewidth=0.6, zorder=1)
    ax.set(xlabel=labels.plain(name) if numbers else axis.symbol, ylim=(-0.03, 1.03))
    places = sorted(numbers or shares[X].unique())
    name_values(ax, [f"{place:g}" for place in places], places)
    ax.set_xticks(places[:: 1 + len(places) // _MOST_NAMED])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _as_ratio(place) if numbers else f"{place:g}"))
    ax.legend(title=f"{title}:", loc="best", alignment="left")


def _as_ratio(number: float) -> str:
    """Return a number below 1 as a fraction 1/n if it is one."""
    below = 0 < number < 1 and (1 / number).is_integer()
    return f"1/{1 / number:g}" if below else f"{number:g}"
