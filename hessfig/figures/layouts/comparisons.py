"""Bars and lines over any varied setting, and how a setting moves the two parts of the Hessian."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from hessfig.analysis.axis import Axis, X, along, as_numbers, check_places, has_places, varied_setting
from hessfig.analysis.curves import functional_shares, growth_curves, of_quantity
from hessfig.analysis.intervals import band
from hessfig.analysis.manifest import read_run
from hessfig.figures.parts import labels
from hessfig.figures.parts.colours import matrix_colour, shades
from hessfig.figures.parts.encoding import WEIGHT, Encoding, ordered, seen, set_x_scale, set_y_scale, unseen, values_of
from hessfig.figures.parts.figure_spec import FigureSpec
from hessfig.figures.parts.lettering import TINY, fitting, width_of
from hessfig.figures.parts.measured import (
    BLOCK_KEY,
    BlockKey,
    Measured,
    as_written,
    at_one_place,
    blocks_in_order,
    drawn_numbers,
    networks_of,
    read_measured,
    where,
    with_pairs,
)
from hessfig.figures.parts.page import Page, Paper
from hessfig.figures.parts.panel_sheet import APART, OWN_Y, SHARED, Sheet, in_sheets, label_side, say
from hessfig.figures.parts.panels import (
    draw_curve,
    draw_errors,
    mark_one,
    positive,
    set_log_range,
    why_empty,
    why_no_line,
)
from hessfig.figures.parts.saving import file_words, page_suffix
from hessfig.record import FROBENIUS
from hessfig.terms import Part

_BLOCK = 0.16  # inches of the page for a block
_STEP = 0.14  # between layers, in units of one block
_BARS_PAGE = ["variant", "num_layers", "quantity", "index"]
_LONGEST = 1.4  # inches for a name
_COLOUR = "#4575b4"


def bars(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the value of every block at one place on the axis (or without one), a panel per part, a page per network.

    How to read it: a dot is the mean over seeds and its bar the 95 % interval (of a single seed: the estimate's own
    error). Layers stand side by side, darker for later ones; `= 0` stands for a block that is zero.
    Requires: the sweep's table.csv (options `quantity`, `index`, and `at`: the nearest place on the axis is drawn).
    """
    run = read_run(folder)
    chosen = of_quantity(run.table, spec.quantity, spec.index)
    yield from all_bars(along(chosen, run.axis), [spec.quantity], run.axis, spec, config=run.config)


def all_bars(
    table: pd.DataFrame,
    quantities: Sequence[str],
    axis: Axis,
    spec: FigureSpec,
    *,
    config: Mapping[str, Any] | None = None,
) -> Iterator[Page]:
    """Draw every network's blocks at the place of the option `at`, a page for each quantity."""
    every = [growth_curves(table, axis=axis, quantity=quantity) for quantity in quantities]
    points, place = at_one_place(with_pairs(pd.concat(every)), spec.number("at"), axis)
    networks = networks_of(points)
    several = [name for name in _BARS_PAGE[2:] if len(points[name].unique()) > 1]
    for key, here in points.groupby(_BARS_PAGE, sort=False):
        of_page = dict(zip(_BARS_PAGE, key, strict=True))
        words = "".join(f"_{file_words(str(of_page[name]))}" for name in several)
        suffix = page_suffix(of_page["variant"], of_page["num_layers"], networks) + words
        names = [labels.variant_words(of_page["variant"]), *(f"{name} {of_page[name]}" for name in several)]
        note = labels.note_words(table, axis, names, place=place, config=config)
        for blocks, end in in_sheets(blocks_in_order(here), int(SHARED.width(spec.paper, 1) / _BLOCK)):
            yield _draw_bars(here, blocks, axis, spec.paper, note, suffix + end)


def _draw_bars(
    points: pd.DataFrame, blocks: Sequence[BlockKey], axis: Axis, paper: Paper, note: str, suffix: str
) -> Page:
    place = {key: rank for rank, key in enumerate(blocks)}
    keys = list(points[BLOCK_KEY].itertuples(index=False, name=None))
    points = points.assign(place=[place.get(key, -1) for key in keys])
    points, parts = points[points["place"] >= 0], list(points["part"].unique())
    names = [fitting([labels.block_title(*key, quantity="")], _LONGEST) for key in blocks]
    style = OWN_Y.but(bottom=0.12 + max(map(width_of, names)), down=0.3)
    sheet = Sheet.grid(paper, [[part or "all"] for part in parts], note, style)
    for row, _, ax in sheet:
        _draw_bar_panel(ax, where(points, part=parts[row]), points)
        ax.set_title(labels.part_title(parts[row]))
        label_side(ax, _label(points))
    lowest = sheet.panels[sheet.lines[-1][0]]
    lowest.set_xticks(range(len(blocks)), names, rotation=90)
    lowest.set_xlim(-0.6, len(blocks) - 0.4)
    return sheet.page(suffix, as_written(points.drop(columns=["across", "place"]), axis))


def _draw_bar_panel(ax: Axes, points: pd.DataFrame, page: pd.DataFrame) -> None:
    log_y = set_y_scale(ax, page["mean"])  # the same kind of scale in every panel of a page
    drawn = points[np.isfinite(points["mean"]) & ((points["mean"] > 0) | (not log_y))]
    layers = sorted(page["layer"].unique())
    for rank, (tone, layer) in enumerate(zip(shades(_COLOUR, len(layers)), layers, strict=True)):
        one = drawn[drawn["layer"] == layer]
        shift = _STEP * (rank - (len(layers) - 1) / 2) * min(1.0, 5 / len(layers)) if layer else 0.0
        ends = _reach(one, logs=log_y)
        error = np.where(np.isfinite(ends), ends, one["probe_sem"].fillna(0.0))
        ax.errorbar(one["place"] + shift, one["mean"], error, fmt="o", color=tone, elinewidth=0.8, label=str(layer))
    without_dot = points["is_zero"] | ((points["mean"] == 0) & log_y)
    above: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "fontsize": TINY, "ha": "center"}
    for place in points[without_dot]["place"].unique():
        ax.text(place, 0.03 if log_y else 0.1, "= 0", **above)
    if len(layers) > 1:
        ax.legend(title="Layer:", ncols=len(layers), loc="best", alignment="left", columnspacing=0.4)
    if drawn.empty and not without_dot.any():
        say(ax, why_no_line(points))


def _reach(points: pd.DataFrame, *, logs: bool) -> np.ndarray:
    """Return (2, points): how far the 95 % interval of each mean reaches down and up; nan for a single seed."""
    ends = np.array(band(points["mean"], points["sem"], points["count"], logs=logs))
    return np.abs(ends - points["mean"].to_numpy())


def _label(points: pd.DataFrame) -> str:
    quantity, index = str(points["quantity"].iloc[0]), int(points["index"].iloc[0])
    return f"{labels.quantity_label(quantity)} {index}" if index else labels.quantity_label(quantity)


_ROWS = 6  # of panels on a page
_PAGE = ["variant", "num_layers", "layer", "part", "index"]


def lines(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw means over seeds along `figure.x` (the sweep's axis by default), a page for whatever else varies.

    How to read it: a point is a mean over seeds, its band the 95 % interval of the mean. Colour stands for
    `figure.colour` (weight: diagonal blocks in one panel), dashes for `figure.dashes` (sigma, step, layer, num_layers,
    part, index or a varied setting; what varies first by default). Scales are logarithmic where the numbers span them.
    A table without an axis is drawn as bars.
    Requires: the sweep's table.csv (options `quantity`: one, or a list, each then a column of panels; `sigmas`: those
    that are drawn).
    """
    run, quantities = read_run(folder), spec.words("quantity") or [FROBENIUS]
    axis, asked = (Axis(spec.x), "figure.x") if spec.x else (run.axis, "sweep.axis")
    chosen = pd.concat([of_quantity(run.table, quantity, spec.index) for quantity in quantities])
    if sigmas := spec.numbers("sigmas"):
        chosen = chosen[np.isclose(chosen["sigma"].to_numpy()[:, None], sigmas).any(axis=1)]
    table = along(chosen, axis, asked=asked)
    if not (spec.x or spec.colour or spec.dashes or has_places(table, axis)):
        yield from all_bars(table, quantities, axis, spec, config=run.config)
        return
    check_places(table, axis)
    curves = pd.concat([growth_curves(table, axis=axis, quantity=quantity) for quantity in quantities])
    colour, dashes = seen(spec, curves)
    column = "quantity" if len(quantities) > 1 else "" if "part" in (colour, dashes) else "part"
    look, config = Encoding(axis, colour, dashes, column), run.config
    for names, here, suffix in _pages(with_pairs(curves), look):
        together = colour == WEIGHT
        here = here[(here["row"] == here["col"]) & (here["row"] != "")] if together else here
        note = labels.note_words(table, axis, names, several_points=True, config=config)
        for rows, end in in_sheets(_TOGETHER if together else blocks_in_order(here), _ROWS):
            yield _draw_page(here, rows, look, spec.paper, note, suffix + end)


_TOGETHER: list[BlockKey] = [("weights", "weights", "")]  # the one row of panels in which all weights stand


def _pages(curves: pd.DataFrame, look: Encoding) -> Iterator[tuple[list[str], pd.DataFrame, str]]:
    """Yield names, points and suffix of a page for whatever nothing on a page tells apart."""
    rest = unseen(curves, [look.colour, look.dashes, look.column])
    networks = networks_of(rest)
    several = [name for name in _PAGE[2:] if len(rest[name].unique()) > 1]
    for key, group in rest.groupby(_PAGE, sort=False):
        place, here = dict(zip(_PAGE, key, strict=True)), curves.loc[group.index]
        told = [name for name in several if place[name] != ""]
        words = "".join(f"_{name if name in ('layer', 'index') else ''}{place[name]}" for name in told)
        suffix = page_suffix(place["variant"], place["num_layers"], networks) + words
        yield [place["variant"], *(_told(name, place[name]) for name in told)], here, suffix


def _told(name: str, value: Any) -> str:
    """Return what a page is of, in words."""
    return labels.part_words(value) if name == "part" else f"{name} {value}"


def _draw_page(
    curves: pd.DataFrame, rows: Sequence[BlockKey], look: Encoding, paper: Paper, note: str, suffix: str
) -> Page:
    columns, apart = ordered(curves[look.column]) if look.column else [""], look.column == "quantity"
    sheet = Sheet.grid(paper, _names(rows, columns), note, (OWN_Y if apart else SHARED).but(down=0.22))
    blocks = [_of_block(curves, key) for key in rows]
    for row, column, ax in sheet:
        one = where(blocks[row], **{look.column: columns[column]}) if look.column else blocks[row]
        _draw_panel(ax, one, one if apart else blocks[row], curves, look)
    quantity = "" if apart else str(curves["quantity"].iloc[0])
    titles = [labels.block_title(*key, quantity=quantity) for key in rows]
    if rows == _TOGETHER:
        titles = ["" if apart else labels.unit_label(quantity)]
    named = [
        labels.plain(labels.quantity_words(one)) if apart else (labels.part_title(one), labels.symbol(one))
        for one in columns
    ]
    short = [labels.block_title(*key, quantity="") for key in rows]
    sheet.label(labels.plain(look.axis.symbol), named, titles, short, "" if apart else labels.unit_label(quantity))
    look.name(sheet.first, curves)
    return sheet.page(suffix, as_written(pd.concat(blocks).drop(columns="across"), look.axis))


def _of_block(curves: pd.DataFrame, key: BlockKey) -> pd.DataFrame:
    return curves if key in _TOGETHER else where(curves, **dict(zip(BLOCK_KEY, key, strict=True)))


def _names(rows: Sequence[BlockKey], columns: list[Any]) -> list[list[str]]:
    """Return the names of panels: W_Q:H_o, or W_Q-W_V:H_o for a pair (@1,2 across layers)."""
    blocks = [labels.block_name(row, col) + (f"@{across}" if across else "") for row, col, across in rows]
    return [[":".join(filter(None, [block, str(column)])) for column in columns] for block in blocks]


def _draw_panel(ax: Axes, points: pd.DataFrame, scale: pd.DataFrame, page: pd.DataFrame, look: Encoding) -> None:
    """Draw the lines of one panel; `scale` are all points on its y axis, `page` all on the page."""
    log_x, log_y = set_x_scale(ax, page[X]), set_y_scale(ax, scale["mean"])
    if log_x:
        mark_one(ax, look.axis)
    drawable = np.isfinite(points["mean"]) & ((points["mean"] > 0) | (not log_y))
    if not drawable.any():
        say(ax, why_no_line(points))
        return
    tones, strokes, widths = look.tones(page, points["row"].iloc[0]), look.strokes(page), look.widths(page)
    drawn = points[drawable]
    keys = [values_of(drawn, look.colour).rename("colour"), values_of(drawn, look.dashes).rename("dashes")]
    for (colour, dashes), curve in drawn.groupby(keys, sort=False):
        style = {"linestyle": strokes[dashes], "linewidth": widths[colour]}
        draw_errors(ax, curve, colour=tones[colour], **style)


_SHOWN = 3
_COLUMNS = (Part.H_o.value, Part.H_f.value, "share")


def ablation(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw, for every block, H_o and H_f along the axis for each value of the varied setting, and their share.

    How to read it: the left and middle panels are growth curves, darker for later values. The right panel
    tells which part rules: ||H_f|| / (||H_o|| + ||H_f||) against the varied setting at a few sigmas (or places on
    another axis; dots: mean over seeds, bars: 95 % interval); above 1/2 the functional part is the larger.
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
    shares = functional_shares(measured.table, measured.axis)
    blocks, null = _split_blocks(measured)
    places = _chosen_places(shares, spec.numbers("sigmas"), measured)
    axis = measured.axis.symbol
    words = f"Shares: mean over seeds of the ratio, bars: 95% interval; lighter for smaller {axis}."
    words += f" Not drawn: {', '.join(null)}, whose functional part is 0 (theorem)." if null else ""
    names = [[f"{labels.block_name(*block)}:{column}" for column in _COLUMNS] for block in blocks]
    note, style = f"{measured.how(guides=False)} {words}", APART.but(height=1.5, across=0.38, down=0.42)
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


def _split_blocks(measured: Measured) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the blocks to draw, and the names of those without a functional part; all are drawn if none has one."""
    functional = measured.of(part=Part.H_f).curves
    zero = functional.groupby(["row", "col"])["is_zero"].all()
    every = _blocks(measured)
    drawn = [block for block in every if not zero.get(block, False)]
    return (drawn, [labels.block_name(*block) for block in every if block not in drawn]) if drawn else (every, [])


def _blocks(measured: Measured) -> list[tuple[str, str]]:
    """Return the measured blocks: diagonal ones first, in the order of growth sheets."""
    present = list(measured.curves[["row", "col"]].drop_duplicates().itertuples(index=False, name=None))
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
            draw_curve(ax, one.of(variant=variant).curves, colour=tone, label=labels.plain(value), linewidth=width)
        if not positive(one.curves).any():
            say(ax, why_empty(one))
    if any(values):
        title, columns = f"{labels.plain(name)}:", 1 + len(values) // 5
        axes[0].legend(title=title, loc="upper left", ncols=columns, alignment="left", columnspacing=0.6)


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
    ax.set_xlabel(labels.plain(name))
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
            np.nan_to_num(_reach(here, logs=False)),
            fmt="o-" if numbers else "o",
            color=tone,
            elinewidth=0.8,
            label=f"{at:.2g}" if block.axis.is_sigma else f"{at:g}",
        )
    name_values(ax, values, numbers)
    if places:
        ax.legend(title=f"{block.axis.symbol}:", loc="best", alignment="left")


def name_values(ax: Axes, values: list[str], numbers: list[float] | None) -> None:
    """Put the varied values on the x axis: a logarithmic one for positive numbers that span it, names otherwise."""
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= 8:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(
        numbers or range(len(values)),
        [f"{number:g}" for number in numbers] if numbers else list(map(labels.plain, values)),
    )
    ax.margins(x=0.1)
