"""Bars and lines of any quantity over any varied setting."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame, Series, concat

from hessfig.analysis.axis import Axis, X, along, check_places, has_places
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import RecordedRun
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.analysis.slopes.printed import WHOLE, window_of
from hessfig.figures.parts import (
    BLOCK_KEY,
    OWN_Y,
    SHARED,
    TINY,
    WEIGHT,
    BlockKey,
    Encoding,
    FigureSpec,
    Page,
    Sheet,
    Source,
    as_written,
    at_one_place,
    blocks_in_order,
    file_words,
    fits_of,
    fitting,
    in_sheets,
    label_side,
    labels,
    networks_of,
    numbers_behind,
    ordered,
    page_suffix,
    panels,
    say,
    seen,
    set_x_scale,
    set_y_scale,
    slope_words,
    unseen,
    values_of,
    where,
    width_of,
    with_pairs,
)
from hessfig.predictions.growth_rates import Prediction
from hessfig.record import CURVE, FROBENIUS

_BLOCK = 0.16  # width in inches of a block
_STEP = 0.14  # between layers, in units of one block
_LAYER = "layer"
_BARS_PAGE = ["variant", "num_layers", "quantity", "index"]
_LONGEST = 1.4  # largest width of a name in inches


def bars(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the value of every block at one place on the axis (or without one), a panel per part, a page per network.

    How to read it: a dot is the mean over seeds and its bar the 95 % interval (of a
    single seed: the estimate's own error). Layers stand side by side, darker for later
    ones; `= 0` stands for a block that is zero. Requires: the sweep's table.csv
    (`figure.colour`: a varied setting, whose values then share a panel; options
    `quantity`, `index`, and `at`: the nearest place on the axis is drawn).
    """
    run = source.run
    chosen = of_quantity(run.table, spec.quantity, spec.index)
    yield from _all_bars(along(chosen, run.axis), [spec.quantity], spec, run)


def _all_bars(
    table: DataFrame, quantities: Sequence[str], spec: FigureSpec, run: RecordedRun
) -> Iterator[Page]:
    """Draw the blocks of every network at the place of the option `at`, with one page per quantity."""
    every = [growth_curves(table, run.axis, quantity) for quantity in quantities]
    points, place = at_one_place(with_pairs(concat(every)), spec.number("at"), run.axis)
    colour = seen(spec, points)[0] if spec.colour else _LAYER
    look = Encoding(run.axis, colour, "", "", run.unchanged)
    paired = points.assign(variant=unseen(points, [look.colour])["variant"])
    networks = networks_of(paired)
    several = [name for name in _BARS_PAGE[2:] if len(points[name].unique()) > 1]
    for key, group in paired.groupby(_BARS_PAGE, sort=False):
        here = points.loc[group.index]
        of_page = dict(zip(_BARS_PAGE, key, strict=True))
        words = "".join(f"_{file_words(str(of_page[name]))}" for name in several)
        suffix = (
            page_suffix(of_page["variant"], of_page["num_layers"], networks) + words
        )
        names = [
            labels.variant_words(of_page["variant"]),
            *(f"{name} {of_page[name]}" for name in several),
        ]
        of_depth = where(table, num_layers=of_page["num_layers"])
        note = labels.note_words(
            of_depth, run.axis, names, place=place, config=run.config
        )
        for blocks, end in in_sheets(
            blocks_in_order(here), int(SHARED.width(spec.paper, 1) / _BLOCK)
        ):
            yield _draw_bars(here, blocks, look, spec, note, suffix + end)


def _draw_bars(
    points: DataFrame,
    blocks: Sequence[BlockKey],
    look: Encoding,
    spec: FigureSpec,
    note: str,
    suffix: str,
) -> Page:
    place = {key: rank for rank, key in enumerate(blocks)}
    keys = list(points[BLOCK_KEY].itertuples(index=False, name=None))
    points = points.assign(place=[place.get(key, -1) for key in keys])
    points, parts = points[points["place"] >= 0], list(points["part"].unique())
    names = [
        fitting([labels.block_title(*key, quantity="")], _LONGEST) for key in blocks
    ]
    has_legend = len(look.marks(points)) > 1
    if has_legend:
        above = _ABOVE * look.lines_above(points, spec.paper.inches) + 0.04
    else:
        above = 0.0
    style = OWN_Y.replace(
        bottom=0.12 + max(map(width_of, names)), down=0.3, top=OWN_Y.top + above
    )
    sheet = Sheet.grid(spec.paper, [[part or "all"] for part in parts], note, style)
    for row, _, ax in sheet:
        _draw_bar_panel(ax, where(points, part=parts[row]), points, look)
        ax.set_title(labels.part_title(parts[row]))
        label_side(ax, _label(points))
    lowest = sheet.panels[sheet.lines[-1][0]]
    lowest.set_xticks(range(len(blocks)), names, rotation=90)
    lowest.set_xlim(-0.6, len(blocks) - 0.4)
    if has_legend:
        look.name_above(sheet.figure, points, spec.paper.inches)
    return sheet.page(
        suffix, as_written(points.drop(columns=["across", "place"]), look.axis)
    )


def _draw_bar_panel(
    ax: Axes, points: DataFrame, page: DataFrame, look: Encoding
) -> None:
    # The same kind of scale in every panel of a page.
    log_y = set_y_scale(ax, page["mean"])
    drawn = points[np.isfinite(points["mean"]) & ((points["mean"] > 0) | (not log_y))]
    layers = [layer for layer in ordered(page[_LAYER]) if layer]
    marks = look.marks(page)
    for colour, tone in look.tones(page, "").items():
        dots = drawn[values_of(drawn, look.colour) == colour]
        place = dots["place"] + _beside(dots[_LAYER], layers)
        if look.colour != _LAYER:
            place += _beside(values_of(dots, look.colour), list(marks))
        ends = panels.reach(dots, logs=log_y)
        error = np.where(np.isfinite(ends), ends, dots["probe_sem"].fillna(0.0))
        style: dict[str, Any] = {
            "marker": "o",
            "linestyle": "",
            "color": tone,
            "elinewidth": 0.8,
            **marks[colour],
        }
        ax.errorbar(place, dots["mean"], error, label=str(colour), **style)
    without_dot = points["is_zero"] | ((points["mean"] == 0) & log_y)
    above: dict[str, Any] = {
        "transform": ax.get_xaxis_transform(),
        "fontsize": TINY,
        "ha": "center",
    }
    for place in points[without_dot]["place"].unique():
        ax.text(place, 0.03 if log_y else 0.1, "= 0", **above)
    if drawn.empty and not without_dot.any():
        say(ax, panels.why_no_line(points))


def _beside(values: Series, every: Sequence[Any]) -> Series:
    """Return how far to the right each value stands of the middle of its block: `every` value has a place there."""
    step = _STEP * min(1.0, 5 / max(len(every), 1))
    places = {
        value: step * (rank - (len(every) - 1) / 2) for rank, value in enumerate(every)
    }
    return values.map(places).fillna(0.0)


def _label(points: DataFrame) -> str:
    quantity = str(points["quantity"].iloc[0])
    index = int(points["index"].iloc[0])
    if index:
        return f"{labels.quantity_label(quantity)} {index}"
    return labels.quantity_label(quantity)


_ROWS = 6  # of panels on a page
_PAGE = ["variant", "num_layers", "layer", "part", "index"]


@dataclass(frozen=True)
class _Lines:
    """Data of pages of lines: points, the numbers behind them, and fits (empty if none are drawn)."""

    curves: DataFrame
    table: DataFrame
    look: Encoding
    spec: FigureSpec
    slopes: DataFrame


def lines(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw means over seeds along an axis, a page for whatever panels, colours and dashes do not tell apart.

    How to read it: a point is a mean over seeds; up to five seeds are thin lines, more
    the band of the 95 % interval of the mean. The legend gives what colours and dashes
    stand for. Scales are logarithmic where the numbers span them; there a panel gives
    the fitted slopes of its lines, and predicted powers as grey dashed lines. A table
    without an axis is drawn as bars. Requires: the sweep's table.csv (`figure.x`: by
    default the sweep's axis; `figure.colour`, `figure.dashes`: sigma, step, layer,
    num_layers, part, index or a varied setting, by default what varies first;
    colour=weight draws diagonal blocks in one panel; options `quantity`: one, or a
    list, each then a column of panels; `sigmas`: those that are drawn; `slopes`: true
    or false, by default true along sigma and for sweeps that state predictions).
    """
    run = source.run
    quantities = spec.words("quantity") or [FROBENIUS]
    axis, asked = (Axis(spec.x), "figure.x") if spec.x else (run.axis, "sweep.axis")
    chosen = concat(
        [of_quantity(run.table, quantity, spec.index) for quantity in quantities]
    )
    if sigmas := spec.numbers("sigmas"):
        chosen = chosen[
            np.isclose(chosen["sigma"].to_numpy()[:, None], sigmas).any(axis=1)
        ]
    table = along(chosen, axis, asked=asked)
    if not (spec.x or spec.colour or spec.dashes or has_places(table, axis)):
        yield from _all_bars(table, quantities, spec, run)
        return
    check_places(table, axis)
    curves = with_pairs(
        concat([growth_curves(table, axis, quantity) for quantity in quantities])
    )
    colour, dashes = seen(spec, curves)
    if len(quantities) > 1:
        column = "quantity"
    elif "part" in (colour, dashes):
        column = ""
    else:
        column = "part"
    look = Encoding(axis, colour, dashes, column, run.unchanged)
    together = colour == WEIGHT
    drawing = _Lines(
        curves, table, look, spec, _fits(spec, run, table, axis, quantities)
    )
    for names, here, suffix in _pages(curves, look):
        blocks = blocks_in_order(here)
        if together:
            here = here[(here["row"] == here["col"]) & (here["row"] != "")]
            blocks = _TOGETHER
        note = labels.note_words(
            table, axis, names, several_points=True, config=run.config
        ) + _fit_words(drawing)
        for rows, end in in_sheets(blocks, _ROWS):
            yield _draw_page(replace(drawing, curves=here), rows, note, suffix + end)


# Numbers whose seeds may be below zero where their mean is not.
_SIGNED = ("_correlation", "_share")
_NAMES = 0.72  # inches to the right of a panel for the names of its lines
# The one row of panels in which all weights stand.
_TOGETHER: list[BlockKey] = [("weights", "weights", "")]
_IN_PANEL = 4  # entries of a legend that stand in a panel
_ABOVE = 0.13  # inches of a line of a legend above the panels


def _pages(
    curves: DataFrame, look: Encoding
) -> Iterator[tuple[list[str], DataFrame, str]]:
    """Yield names, points and suffix of one page per combination that panels, colours and dashes do not distinguish."""
    rest = unseen(curves, [look.colour, look.dashes, look.column])
    networks = networks_of(rest)
    several = [name for name in _PAGE[2:] if len(rest[name].unique()) > 1]
    for key, group in rest.groupby(_PAGE, sort=False):
        place = dict(zip(_PAGE, key, strict=True))
        here = curves.loc[group.index]
        suffix = page_suffix(place["variant"], place["num_layers"], networks)
        words = [labels.variant_words(place["variant"])]
        for name in several:
            value = place[name]
            if value == "":
                continue
            suffix += f"_{name}{value}" if name in ("layer", "index") else f"_{value}"
            if name == "part":
                words.append(labels.part_words(value))
            else:
                words.append(f"{name} {value}")
        yield words, here, suffix


def _draw_page(
    drawing: _Lines, rows: Sequence[BlockKey], note: str, suffix: str
) -> Page:
    curves = drawing.curves
    look = drawing.look
    paper = drawing.spec.paper
    columns = ordered(curves[look.column]) if look.column else [""]
    apart = look.column == "quantity"
    named_at_ends = rows == _TOGETHER and len(columns) == 1 and not look.dashes
    above = 0 if named_at_ends else _lines_above(drawing)
    if named_at_ends:
        style = SHARED.replace(right=_NAMES, height=2.0)
    elif apart:
        style = OWN_Y
    else:
        style = SHARED
    style = style.replace(
        down=0.22, top=style.top + above * _ABOVE + 0.04 * bool(above)
    )
    sheet = Sheet.grid(paper, _names(rows, columns), note, style)
    blocks = []
    for key in rows:
        place = dict(zip(BLOCK_KEY, key, strict=True))
        blocks.append(curves if key in _TOGETHER else where(curves, **place))
    drawn: list[tuple[Axes, _Named]] = []
    for row, column, ax in sheet:
        here = blocks[row]
        if look.column:
            here = where(here, **{look.column: columns[column]})
        scaled = here if apart else blocks[row]
        drawn.append((ax, _draw_panel(ax, here, scaled, drawing)))
    for ax, lines_of in drawn:  # only now do shared limits include every panel
        _write_slopes(ax, lines_of, drawing)
    quantity = unit = ""
    if not apart:
        quantity = str(curves["quantity"].iloc[0])
        unit = labels.unit_label(quantity)
    if rows == _TOGETHER:
        titles = [unit]
    else:
        titles = [labels.block_title(*key, quantity=quantity) for key in rows]
    named: list[str | tuple[str, str]] = []
    for one in columns:
        if apart:
            named.append(labels.quantity_name(one))
        else:
            named.append((labels.part_title(one), labels.symbol(one)))
    short = [labels.block_title(*key, quantity="") for key in rows]
    sheet.label(labels.plain(look.axis.symbol), named, titles, short, unit)
    if named_at_ends:
        panels.name_ends(sheet.first, look.ends(curves))
    elif above:
        look.name_above(sheet.figure, curves, paper.inches)
    else:
        look.name(sheet.first, curves)
    return sheet.page(
        suffix, as_written(concat(blocks).drop(columns="across"), look.axis)
    )


def _lines_above(drawing: _Lines) -> int:
    """Return how many lines of the legend are above the panels: 0 for a short legend, which fits into a panel."""
    entries = drawing.look.entries(drawing.curves)
    if not entries or (len(entries) <= _IN_PANEL and drawing.slopes.empty):
        return 0
    return drawing.look.lines_above(drawing.curves, drawing.spec.paper.inches)


def _names(rows: Sequence[BlockKey], columns: list[Any]) -> list[list[str]]:
    """Return the names of panels: W_Q:H_o, or W_Q-W_V:H_o for a pair (@1,2 across layers)."""
    names = []
    for row, col, across in rows:
        block = labels.block_name(row, col)
        if across:
            block += f"@{across}"
        names.append([f"{block}:{column}".strip(":") for column in columns])
    return names


_Named = list[tuple[str, DataFrame]]  # the lines of a panel, with their names


def _draw_panel(
    ax: Axes, points: DataFrame, scale: DataFrame, drawing: _Lines
) -> _Named:
    """Draw the lines of one panel, and return those with slopes, which need two logarithmic scales.

    `scale` holds all points on the y axis, and the drawing all points of the page.
    """
    page, look = drawing.curves, drawing.look
    log_x = set_x_scale(ax, page[X])
    signed = scale["quantity"].str.endswith(_SIGNED).all()
    log_y = not signed and set_y_scale(ax, scale["mean"])
    if log_x:
        panels.mark_one(ax, look.axis)
    drawable = np.isfinite(points["mean"]) & ((points["mean"] > 0) | (not log_y))
    if not drawable.any():
        say(ax, panels.why_no_line(points))
        return []
    tones = look.tones(page, points["row"].iloc[0])
    drawn = points[drawable]
    named = []
    keys = [
        values_of(drawn, look.colour).rename("colour"),
        values_of(drawn, look.dashes).rename("dashes"),
    ]
    for (colour, dashes), curve in drawn.groupby(keys, sort=False):
        numbers = numbers_behind(curve, drawing.table)
        style = look.style(page, colour, dashes)
        panels.draw_errors(ax, curve, numbers, colour=tones[colour], **style)
        named.append((look.line_name(colour, dashes), curve))
    return named if log_x and log_y else []


_LISTED = 4  # lines whose slopes a panel lists


def _fits(
    spec: FigureSpec,
    run: RecordedRun,
    table: DataFrame,
    axis: Axis,
    quantities: Sequence[str],
) -> DataFrame:
    """Return the slopes on the figure's first window; empty if they are not wanted, or if panels differ in units."""
    settings = fits_of(spec, run)
    if (
        not spec.switch("slopes", axis.is_sigma or bool(settings.predictions))
        or len(quantities) > 1
    ):
        return DataFrame()
    windows = list(spec.windows[:1]) or [WHOLE]
    return fit_slopes(
        table, run.architectures, windows, settings, axis=axis, quantity=quantities[0]
    )


def _fit_words(drawing: _Lines) -> str:
    """Return the end of the note: how slopes were fitted."""
    slopes, spec = drawing.slopes, drawing.spec
    if slopes.empty or slopes["slope"].isna().all():
        return ""
    is_predicted = (slopes["prediction"] == Prediction.exponent).any()
    dashed = " Dashed grey: predicted power law." * bool(is_predicted)
    return f"{dashed} {slope_words(spec.windows[:1] or [WHOLE], drawing.look.axis, spec.average)}"


def _write_slopes(
    ax: Axes, named: Sequence[tuple[str, DataFrame]], drawing: _Lines
) -> None:
    """Write the fitted slopes of a panel into a corner, and draw predicted powers below its lowest line."""
    if drawing.slopes.empty or not named:
        return
    ends = ax.get_xlim()
    keep = ax.get_ylim()
    fits = [(words, curve, _fit_of(curve, drawing.slopes)) for words, curve in named]
    fits = [(words, curve, fit) for words, curve, fit in fits if fit is not None]
    every = concat([curve for _, curve in named])
    left, right = panels.free_corners(every)
    if fits:
        slopes = _slopes_in_words([(words, fit) for words, _, fit in fits])
        panels.corner(ax, slopes, f"{left} left")
    laws: dict[float, list[tuple[str, float]]] = {}
    for words, curve, fit in fits:
        if fit.prediction == Prediction.exponent:
            constant = panels.coefficient(curve, fit.predicted, window_of(fit))
            laws.setdefault(fit.predicted, []).append((words, constant))
    x = np.sort(every[X].unique())
    powers = []
    for style, (exponent, lines_of) in enumerate(sorted(laws.items())):
        names, constants = zip(*lines_of, strict=True)
        lowered = panels.dropped(ax) * min(constants)
        panels.draw_guide(ax, x, exponent, lowered, style=style)
        power = panels.power(exponent, drawing.look.axis)
        if len(laws) > 1 and len(fits) <= _LISTED:
            power += f" ({', '.join(names)})"
        powers.append(power)
    ax.set(xlim=ends, ylim=keep)
    if powers:
        panels.beside_one(ax, powers, drawing.look.axis, at=right)


def _fit_of(curve: DataFrame, slopes: DataFrame) -> Any:
    """Return the fit of one line as a named tuple; None if the line has several curves or no slope."""
    keys = curve[CURVE].drop_duplicates()
    fits = slopes.merge(keys, on=CURVE) if len(keys) == 1 else slopes[:0]
    fits = fits[fits["slope"].notna()]
    return next(fits.itertuples(), None)


def _slopes_in_words(fits: Sequence[tuple[str, Any]]) -> str:
    """Return each slope with its error, or only the lowest and the highest if there are many lines."""
    if len(fits) > _LISTED:
        slopes = [fit.slope for _, fit in fits]
        low = f"{min(slopes):.2f}".replace("-", "−")
        high = f"{max(slopes):.2f}".replace("-", "−")
        return f"slopes {low}" if low == high else f"slopes {low} to {high}"
    return "\n".join(
        f"{words or 'slope'}{':' * bool(words)} {panels.slope_and_half(fit)}"
        for words, fit in fits
    )
