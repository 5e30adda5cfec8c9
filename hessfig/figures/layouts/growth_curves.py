"""Figures of growth rates: logarithmic axes, linear axes, all layers in one panel."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from pandas import DataFrame

from hessfig.analysis.axis import X
from hessfig.analysis.slopes.printed import WHOLE, label, window_of, within
from hessfig.figures.parts import (
    GUIDE,
    OWN_Y,
    SHARED,
    TOP_ROWS,
    FigureSpec,
    MeasuredCurves,
    Page,
    Sheet,
    SheetStyle,
    Source,
    drawn_numbers,
    how,
    layer_words,
    matrix_colour,
    norm_label,
    panels,
    part_title,
    parts_of,
    read_measured,
    rows_of,
    say,
    seeds_words,
    shaded,
    shades,
    symbol,
    unit_label,
    weight_words,
    width_in,
    window_words,
)
from hessfig.predictions.growth_rates import Prediction
from hessfig.predictions.network_series import Regime
from hessfig.terms import PARTS, Part


def draw_guides(ax: Axes, measured: MeasuredCurves) -> None:
    """Draw predicted power laws below their curves, or the fits themselves if there is no prediction."""
    predicted = measured.slopes[measured.slopes["prediction"] == Prediction.exponent]
    if (measured.slopes["prediction"] == Prediction.unknown).all():
        _draw_fits(ax, measured)
        return
    x = np.sort(measured.curves[X].unique())
    # Laws of several regimes: each along a window of its own.
    by_window = len(predicted["regime"].unique()) > 1
    keys = ["predicted", "regime"] if by_window else ["predicted"]
    for style, (_, rows) in enumerate(predicted.groupby(keys, sort=True)):
        is_limit = (
            len(measured.windows) > 1 and (rows["regime"] == Regime.small_sigma).all()
        )
        own_window = window_of(rows_of(rows)[-1 if is_limit else 0])
        exponent = rows["predicted"].iloc[0]
        window = own_window if by_window else measured.windows[0]
        curves = [measured.of(layer=layer).curves for layer in rows["layer"].unique()]
        constants = [panels.coefficient(curve, exponent, window) for curve in curves]
        along = x[within(x, window)] if by_window or is_limit else x
        panels.draw_guide(
            ax, along, exponent, panels.dropped(ax) * np.nanmin(constants), style=style
        )
    write_powers(ax, measured)


def write_powers(ax: Axes, measured: MeasuredCurves) -> None:
    """Write the predicted powers and their layers into the right corner that the curve leaves free."""
    predicted = measured.slopes[measured.slopes["prediction"] == Prediction.exponent]
    groups = predicted.groupby("predicted", sort=True)["layer"].unique()
    words = [
        panels.power(exponent) + _for_layers(layers, measured)
        for exponent, layers in groups.items()
    ]
    if words:
        _, free = panels.free_corners(measured.curves)
        panels.beside_one(ax, words, measured.axis, at=free)


def _draw_fits(ax: Axes, measured: MeasuredCurves) -> None:
    """Draw the fitted power law of every window along that window, below the curve unless it spans the grid."""
    for style, window in enumerate(measured.windows):
        for layer in measured.layers():
            curves = measured.of(layer=layer)
            slope = float(curves.slopes["slope"].iloc[style])
            x = curves.curves[X].to_numpy()
            c = panels.coefficient(curves.curves, slope, window)
            if window != WHOLE:
                c *= panels.dropped(ax)
            panels.draw_guide(ax, x[within(x, window)], slope, c, style=style)


def _for_layers(layers: np.ndarray, measured: MeasuredCurves) -> str:
    """Return the layers of an exponent in words, unless it applies to all layers."""
    if set(layers) == set(measured.layers()):
        return ""
    if len(layers) == 1:
        return f" (layer {layers[0]})"
    return f" (layers {min(layers)}–{max(layers)})"


def growth(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the norms of diagonal blocks against sigma in log-log axes (Figures 3, 6, 7): a page per network.

    How to read it: a straight line of slope p means ||block||_F ~ sigma^p. Each panel
    prints the fitted slope with half of its 95 % interval over seeds and, in the
    corner, the predicted power, drawn as a grey dashed guide a little below the curve.
    Without a prediction the guides are the fits themselves, one a window. Later layers
    are darker. A block that vanishes says so. Requires: the sweep's table.csv with
    diagonal blocks; manifest.json for predictions (option `words`: level prints the
    mean level in each window in place of the slope, as levels.csv has it).
    """
    yield from growth_pages(read_measured(spec, source))


def growth_pages(measured: MeasuredCurves) -> Iterator[Page]:
    """Draw one page per network: rows W_V, W_Q (and other measured weights), columns H_o, H_f, H."""
    for suffix, network in measured.pages():
        style = SHARED.replace(
            height=_HEIGHT + _LAYER * max(0, len(network.layers()) - _FEW_LAYERS)
        )
        sheet = _blocks_by(
            _PARTS, network, draw_panel, _set_row_range, how(network), style
        )
        label_parts(sheet, network)
        yield sheet.page(suffix, drawn_numbers(network))


# Inches of a panel and of a further layer in its legend; layers.
_HEIGHT = 1.35
_LAYER = 0.11
_FEW_LAYERS = 2


def shown_matrices(measured: MeasuredCurves) -> list[str]:
    """Return the weights that have a row; W_V and W_Q if none was measured."""
    return measured.matrices() or list(TOP_ROWS)


_PARTS = {part.value: {"part": part} for part in PARTS}


def _blocks_by(
    columns: Mapping[str, Mapping[str, object]],
    measured: MeasuredCurves,
    draw: Callable[[Axes, MeasuredCurves, str], None],
    set_range: Callable[[list[Axes], MeasuredCurves], None] | None,
    note: str,
    style: SheetStyle = SHARED,
) -> Sheet:
    """Return a sheet with a row for each weight and a column for each choice of numbers: W_V:H_o, ..."""
    matrices = shown_matrices(measured)
    names = [[f"{matrix}:{name}" for name in columns] for matrix in matrices]
    sheet = Sheet.grid(measured.paper, names, note, style)
    rows = [measured.of(row=matrix, col=matrix) for matrix in matrices]
    for number, block in enumerate(rows):
        if set_range and sheet.row(number):
            set_range(sheet.row(number), block)
    for row, column, ax in sheet:
        draw(
            ax,
            rows[row].of(**list(columns.values())[column]),
            matrix_colour(matrices[row]),
        )
    return sheet


def _set_row_range(axes: list[Axes], block: MeasuredCurves) -> None:
    panels.set_log_range(axes, block.curves, block.axis)


def label_parts(
    sheet: Sheet, measured: MeasuredCurves, *, x: str = "", what: str = ""
) -> None:
    """Label rows by their weights (and `what` of them is drawn, if not the quantity) and columns by their parts."""
    weights = [weight_words(matrix) for matrix in shown_matrices(measured)]
    rows = _norms(measured)
    if what:
        rows = [f"{what} of {weight}" for weight in weights]
    columns = [(part_title(part), symbol(part)) for part in PARTS]
    sheet.label(
        x or measured.axis.symbol,
        columns,
        rows,
        weights,
        what or unit_label(measured.quantity),
    )


def _norms(measured: MeasuredCurves) -> list[str]:
    return [
        norm_label(matrix, measured.quantity) for matrix in shown_matrices(measured)
    ]


def draw_panel(ax: Axes, measured: MeasuredCurves, colour: str) -> None:
    """Draw the curves of one block, one shade per layer, with guides and fitted slopes, or why there is no curve."""
    panels.mark_one(ax, measured.axis)
    if not panels.positive(measured.curves).any():
        say(ax, panels.why_empty(measured))
        return
    layers = measured.layers()
    for shade, layer in shaded(colour, layers):
        curve = measured.of(layer=layer)
        words = layer_words(curve, layer) if len(layers) > 1 else ""
        panels.draw_curve(ax, curve.curves, curve.table, colour=shade, label=words)
    at, _ = panels.free_corners(measured.curves)
    place = f"{at} left"
    if len(layers) > 1:
        draw_guides(ax, measured)
        title = f"Layer: {measured.printed}"
        _legend(ax, title=title, loc=place, alignment="left", handlelength=0.9)
        return
    words, aside = window_words(measured)
    if words:
        lines = "\n".join(filter(None, (words, aside)))
        panels.make_room(ax, measured.curves, lines, at)
    draw_guides(ax, measured)
    panels.corner(ax, words, place, aside=aside)


def _legend(ax: Axes, **style: Any) -> None:
    """Write a legend whose lines all have the same width."""
    for line in ax.legend(**style).get_lines():
        line.set_linewidth(1.2)


def linear_axes(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the norms of diagonal blocks along the axis on linear axes: a page per network.

    How to read it: the same numbers as in a growth sheet, but each panel has its own
    scale. The grey dashed curve is c * sigma^p with the predicted p and the c of least
    squares on these axes. Where the curve leaves it (sigma > 1), attention saturates
    and the power law ends. Requires: the sweep's table.csv with diagonal blocks;
    manifest.json for predictions.
    """
    for suffix, network in read_measured(spec, source).pages():
        note = how(network)
        places = network.curves[X]
        if network.axis.is_sigma and places.min() < 1 < places.max():
            note += " They average over the bend at σ = 1."
        sheet = _blocks_by(
            _PARTS,
            network,
            _draw_linear_panel,
            None,
            note,
            OWN_Y.replace(top=0.36, down=0.3),
        )
        label_parts(sheet, network)
        for ax in sheet.axes:
            ax.set_title(ax.get_title(), pad=11)  # above the power of ten of the y axis
        yield sheet.page(suffix, drawn_numbers(network))


def _draw_linear_panel(ax: Axes, measured: MeasuredCurves, colour: str) -> None:
    if not panels.positive(measured.curves).any():
        ax.set_yticks([])
        say(ax, panels.why_empty(measured))
        return
    panels.mark_one(ax, measured.axis)
    layers = measured.layers()
    for shade, layer in shaded(colour, layers):
        curve = measured.of(layer=layer)
        panels.draw_curve(ax, curve.curves, curve.table, colour=shade)
        _draw_guide(ax, curve)
    ax.set_xlim(0, 1.04 * measured.curves[X].max())
    ax.set_ylim(
        0, 1.12 * (measured.curves["mean"] + measured.curves["sem"].fillna(0)).max()
    )
    ax.ticklabel_format(axis="y", scilimits=(-2, 3))
    left = 0.03
    end = ax.get_xlim()[1]
    if measured.axis.is_sigma and end > 2:
        left = max(left, 1 / end + _AT_ONE)
    words, aside = window_words(measured)
    panels.corner(ax, words, "upper left", aside=aside, left=left)
    write_powers(ax, measured)


def _draw_guide(ax: Axes, measured: MeasuredCurves) -> None:
    """Draw c * x^p, c by least squares on the linear axes."""
    exponent = panels.drawn_exponent(measured)
    if np.isnan(exponent):
        return
    drawn = measured.curves[panels.positive(measured.curves)]
    power = drawn[X] ** exponent
    constant = float((drawn["mean"] * power).sum() / (power**2).sum())
    x = measured.curves[X].to_numpy()
    panels.draw_guide(ax, np.linspace(x.min(), x.max(), 200), exponent, constant)


_AT_ONE = 0.03  # of a panel: from the line at sigma = 1 to words
_BESIDE = 1.35  # width in inches of a legend of depths and slopes


def one_panel(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the full Hessian's blocks against sigma, all layers of all depths in one panel.

    How to read it: a straight line of slope p means ||block||_F ~ sigma^p. Colour is
    darker for deeper networks; early layers are drawn wide, later ones narrow on top,
    so that curves that coincide can still be counted. Requires: the sweep's table.csv
    with diagonal blocks of H (option `part` chooses another); manifest.json for
    predictions.
    """
    measured = read_measured(spec, source)
    parts = parts_of(measured.curves)
    usual = Part.H if Part.H in parts else parts[0]
    part = Part(spec.choice("part", parts, usual))
    for suffix, network in measured.pages(by_depth=False):
        yield draw_depths(network.of(part=part), part, suffix)


def draw_depths(measured: MeasuredCurves, part: Part, suffix: str) -> Page:
    """Draw one panel per weight with all layers of all depths, and their slopes next to it."""
    columns = {part.value: {"part": part}}
    style = SHARED.replace(height=2.2, right=_BESIDE, down=0.3)
    sheet = _blocks_by(
        columns, measured, _draw_every_layer, _set_row_range, how(measured), style
    )
    weights = [weight_words(matrix) for matrix in shown_matrices(measured)]
    sheet.label(
        measured.axis.symbol,
        [(part_title(part), symbol(part))],
        _norms(measured),
        weights,
    )
    return sheet.page(suffix, drawn_numbers(measured))


def _draw_every_layer(ax: Axes, measured: MeasuredCurves, colour: str) -> None:
    """Draw one shade per depth, with wide early and narrow later layers, so that coinciding curves remain visible."""
    panels.mark_one(ax, measured.axis)
    if not panels.positive(measured.curves).any():
        say(ax, panels.why_empty(measured))
        return
    depths = sorted(measured.curves["num_layers"].unique())
    for shade, depth in shaded(colour, depths):
        of_depth = measured.of(num_layers=depth)
        layers = of_depth.layers()
        for rank, layer in enumerate(layers):
            curve = of_depth.of(layer=layer)
            label = "" if rank else _depth_words(of_depth, depth)
            width = 0.8 + 0.35 * (len(layers) - 1 - rank)
            panels.draw_curve(
                ax,
                curve.curves,
                curve.table,
                colour=shade,
                label=label,
                linewidth=width,
            )
        if depth == depths[-1]:
            draw_guides(ax, of_depth)
    _legend(
        ax,
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        title=f"Layers: {measured.printed} of each",
    )


def _depth_words(measured: MeasuredCurves, depth: int) -> str:
    """Return the depth with the slope (or level) of its only layer, or the lowest and highest of its layers."""
    if len(measured.layers()) == 1:
        return layer_words(measured, depth)
    ends = measured.telling()[measured.printed].agg(["min", "max"])
    low, high = (f"{end:.3f}".replace("-", "−") for end in ends)
    return f"{depth}: {low} to {high}"


_NAME = 0.27  # width in inches of a layer in the legend
_STEP = 0.14  # between the layers of one network, in units of one depth


def growth_by_depth(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw a growth sheet for every depth (Figures 6 and 7), then the overview of their slopes.

    How to read it: on a sheet, a straight line of slope p means ||block||_F ~ sigma^p;
    each panel prints the fitted slopes with half of their 95 % intervals next to the
    predicted powers (grey dashed guides), later layers are darker. In the overview a
    dot is the slope fitted to one layer of one network, with its error; the grey bar at
    its place is the predicted exponent. Requires: the sweep's table.csv with diagonal
    blocks of several depths; manifest.json for predictions.
    """
    measured = read_measured(spec, source)
    yield from growth_pages(measured)
    for suffix, network in measured.pages(by_depth=False):
        yield draw_overview(network, f"{suffix}_overview")


def draw_overview(measured: MeasuredCurves, suffix: str) -> Page:
    """Draw one slope per curve against the number of layers: rows W_V, W_Q, columns H_o, H_f, H."""
    measured = replace(measured, slopes=measured.telling_slopes())
    note = f"{_words(measured)} Layers stand side by side, darker for later ones.{measured.setting}"
    sheet = _blocks_by(_PARTS, measured, _draw_depth_panel, _set_ranges, note)
    highest = int(measured.slopes["layer"].max())
    for row, matrix in enumerate(shown_matrices(measured)):
        if sheet.row(row):
            _name_layers(sheet.row(row)[0], highest, matrix_colour(matrix))
    label_parts(sheet, measured, x="number of layers", what="slope")
    return sheet.page(suffix, measured.slopes)


def _words(measured: MeasuredCurves) -> str:
    windows = map(window_of, rows_of(measured.slopes))
    axis = measured.axis.symbol
    first, *others = dict.fromkeys([measured.windows[0], *windows])
    where = label(first, axis) + "".join(
        f" ({label(window, axis)} for limits of small σ)" for window in others
    )
    seeds = seeds_words(measured.table)
    return f"Dots: slope on {where}, {seeds}, ± 95% interval over seeds; grey bars: predicted."


def _draw_depth_panel(ax: Axes, measured: MeasuredCurves, colour: str) -> None:
    slopes = measured.slopes
    if slopes["slope"].isna().all():
        say(ax, panels.why_empty(measured))
        return
    tones = shades(colour, max(1, int(slopes["layer"].max())))
    place = slopes["num_layers"] + _STEP * (
        slopes["layer"] - (slopes["num_layers"] + 1) / 2
    )
    _draw_predictions(ax, slopes.assign(place=place))
    for x, row in zip(place, slopes.itertuples(), strict=True):
        tone = tones[max(row.layer, 1) - 1]
        ax.errorbar(
            x,
            row.slope,
            row.ci_high - row.slope,
            fmt="o",
            color=tone,
            elinewidth=0.8,
            markersize=2.6,
        )
    if slopes["is_zero"].any():
        panels.corner(ax, "last layer: = 0 (theorem)", "lower left")


def _draw_predictions(ax: Axes, slopes: DataFrame) -> None:
    """Draw a grey bar at every predicted exponent of a network, from its first to its last layer of that exponent."""
    predicted = slopes[slopes["prediction"] == Prediction.exponent]
    for (_, exponent), layers in predicted.groupby(["num_layers", "predicted"]):
        ends = [layers["place"].min() - 0.14, layers["place"].max() + 0.14]
        ax.plot(ends, [exponent] * 2, color=GUIDE, linewidth=0.8, zorder=1)


def _set_ranges(axes: list[Axes], block: MeasuredCurves) -> None:
    """Leave room above the highest slope for the legend, and next to the first and last depth."""
    slopes = block.slopes
    if slopes.empty:
        return
    values = slopes[["slope", "predicted"]].to_numpy(float)
    if np.isfinite(values).any():
        low = np.nanmin(values)
        high = np.nanmax(values)
        spread = max(high - low, 1.0)
        axes[0].set_ylim(low - 0.2 * spread, high + 0.4 * spread)
    axes[0].set_xlim(slopes["num_layers"].min() - 0.6, slopes["num_layers"].max() + 0.6)
    axes[0].set_xticks(sorted(slopes["num_layers"].unique()))


def _name_layers(ax: Axes, count: int, colour: str) -> None:
    if not count:
        return  # only weights without a layer
    handles = [
        Line2D(
            [], [], marker="o", linestyle="", color=tone, markersize=2.6, label=layer
        )
        for layer, tone in enumerate(shades(colour, count), start=1)
    ]
    columns = min(count, int(width_in(ax) / _NAME))
    ax.legend(
        handles=handles,
        title="Layer:",
        ncols=columns,
        loc="upper left",
        columnspacing=0.4,
        alignment="left",
    )
