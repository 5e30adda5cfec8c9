"""Blocks by pair: values as annotated matrices, and curves of pairs."""

from collections.abc import Iterator
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from pandas import DataFrame, concat

from hessfig.analysis.curves import growth_curves
from hessfig.figures.parts import (
    ONE_SCALE,
    FigureSpec,
    MeasuredCurves,
    Page,
    Sheet,
    Source,
    as_written,
    at_one_place,
    by_network,
    drawn_numbers,
    fitting,
    in_order,
    labels,
    networks_of,
    panels,
    part_colour,
    parts_of,
    read_measured,
    read_numbers,
    say,
    slope_words,
    where,
    width_in,
    width_of,
)
from hessfig.predictions.growth_rates import Prediction
from hessfig.terms import Part

_CELL = 0.26  # size in inches of a cell with its number
_MARKS = "os^"  # of the parts: their colours alone are alike for some readers
_SIDE_BY_SIDE = 5  # up to this many weights the three parts fit next to each other


def blocks(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw log10 of the block norms of one layer as an annotated matrix, for each part of the Hessian.

    How to read it: the number in cell (A, B) is log10 of the mean norm of the block of
    second derivatives with respect to A and B, at the sigma named below; one colour
    scale for all parts. The matrix is symmetric. `= 0`: the block vanishes identically.
    A dot: not measured. Requires: the sweep's table.csv with pairs of weights, best
    blocks=all (option `at`, or `sigma`: the nearest measured place is drawn; sigma = 1
    by default, the end of another axis).
    """
    run, numbers = read_numbers(spec, source)
    curves = growth_curves(numbers, run.axis, spec.quantity)
    wanted = spec.number("sigma") if spec.number("at") is None else spec.number("at")
    here, place = at_one_place(curves, wanted, run.axis)
    what = f"log10 of the mean {labels.quantity_words(spec.quantity)} over {labels.seeds_words(numbers)}"
    about = ", ".join(filter(None, (what, place)))
    note = f"{about}.{labels.setting_words(run.config, numbers, run.axis)}"
    several = len(networks_of(here)) > 1
    for suffix, (variant, depth), network in by_network(here):
        for layer in sorted(set(network["layer"]) - {0}) or [0]:
            rows = as_written(network[network["layer"].isin([0, layer])], run.axis)
            which = f" {labels.variant_words(variant)}." * bool(several and variant)
            end = suffix + f"_layer{layer}" * (depth > 1)
            yield from draw_blocks(rows, spec, note + which, end)


def draw_blocks(
    norms: DataFrame, spec: FigureSpec, note: str, suffix: str
) -> Iterator[Page]:
    """Draw the matrices of one layer on one page, or on one page per part if there are many weights."""
    names = in_order(concat([norms["row"], norms["col"]]))
    parts = parts_of(norms)
    logs = np.log10(norms["mean"].where(norms["mean"] > 0))
    scale = Normalize(0, 1)
    if logs.notna().any():
        scale = Normalize(np.floor(2 * logs.min()) / 2, np.ceil(2 * logs.max()) / 2)
    if len(names) <= _SIDE_BY_SIDE:
        yield _draw_page(spec, norms, names, parts, scale, note).page(suffix, norms)
        return
    for part in parts:
        yield _draw_page(spec, norms, names, [part], scale, note).page(
            f"{suffix}_{part}", where(norms, part=part)
        )


def norm_matrix(norms: DataFrame, names: list[str]) -> np.ndarray:
    """Return the symmetric matrix of mean norms; nan where a pair was not measured."""
    square = np.full((len(names), len(names)), np.nan)
    for row in norms.itertuples():
        i = names.index(row.row)
        j = names.index(row.col)
        square[i, j] = square[j, i] = row.mean
    return square


def _draw_page(
    spec: FigureSpec,
    norms: DataFrame,
    names: list[str],
    parts: list[Part],
    scale: Normalize,
    note: str,
) -> Sheet:
    long = _length(names)
    style = ONE_SCALE.replace(
        left=0.36 + long, right=0.62, top=0.26, bottom=0.3 + long, across=0.14, down=0.3
    )
    style = style.replace(narrowest=_CELL * len(names))
    columns = min(len(parts), style.columns(spec.paper))
    width = style.width(spec.paper, columns)
    squares = [norm_matrix(where(norms, part=part), names) for part in parts]
    values = np.concatenate(squares, axis=None)
    widest = max(width_of(_cell(value)) for value in values)
    fits = widest <= 0.95 * width / len(names)
    if np.isnan(values).any():
        note += " A dot: not measured."
    if not fits:
        note += " Numbers are in the CSV file."
    style = style.replace(height=width if columns > 1 else 0.72 * width)
    sheet = Sheet.grid(spec.paper, [[part.value for part in parts]], note, style)
    weights = [labels.weight_words(name) for name in names]
    for _, column, ax in sheet:
        square = squares[column]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log10(square)
        words = np.vectorize(_cell, otypes=[str])(square) if fits else None
        image = panels.draw_matrix(ax, logs, scale, words=words)
        panels.name_sides(ax, rows=weights, columns=weights, upright=bool(long))
        part = parts[column]
        titles = [labels.part_title(part), labels.symbol(part)]
        ax.set_title(fitting(titles, width_in(ax), 8))
    label = rf"$\log_{{10}}$ {labels.quantity_label(norms['quantity'].iloc[0])}"
    # One formula, not two.
    panels.colour_bar(sheet.outermost, image, gap=0.07, label=label.replace("$ $", ""))
    return sheet


def _length(names: list[str]) -> float:
    """Return how many inches the longest name needs beyond the width of a weight of the paper."""
    own = [
        name for name in map(labels.plain, names) if labels.weight_words(name) == name
    ]
    return max([0.0, *(width_of(name) - 0.2 for name in own)])


def _cell(value: float) -> str:
    if np.isnan(value):
        return "·"
    if value <= 0:
        return "= 0" if value == 0 else "< 0"
    return f"{np.log10(value) + 0.0:z.1f}".replace("-", "−")


_NARROWEST = 1.22  # inches: a panel that holds two slopes with their predictions


def pairs(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw every block (row, col) along the axis, H_o and H_f in one panel: a page per network.

    How to read it: panel (A, B) shows the norm of the block of second derivatives with
    respect to A and B. Its words give the fitted slope ± half of its 95 % interval and,
    in brackets, the predicted exponent; dashed lines are the predicted powers through
    the window. The block (B, A) is the transpose of (A, B) and is not drawn. Requires:
    the sweep's table.csv with off-diagonal blocks; manifest.json for predictions.
    """
    for suffix, network in read_measured(spec, source).pages():
        several = network.curves["num_layers"].max() > 1 or len(network.layers()) > 1
        for layer in network.layers():
            end = suffix + f"_layer{layer}" * bool(several)
            yield draw_pairs(network.of(layer=layer), end)


def draw_pairs(measured: MeasuredCurves, suffix: str) -> Page:
    """Draw the grid of one layer of one network."""
    matrices = in_order(concat([measured.curves["row"], measured.curves["col"]]))
    count = len(matrices)
    parts: list[Part] = [
        part for part in parts_of(measured.curves) if part is not Part.H
    ] or [Part.H]
    right = max(0.08, measured.paper.inches - 0.54 - count * 1.7) if count < 3 else 0.08
    slopes = slope_words(measured.windows, measured.axis, measured.average)
    note = f"{measured.how()} In brackets: predicted exponent. {slopes}"
    names = [[f"{row}:{col}" for col in matrices] for row in matrices]
    measured_pairs = set(measured.curves["row"] + ":" + measured.curves["col"])
    empty = [name for name in chain(*names) if name not in measured_pairs]
    style = ONE_SCALE.replace(right=right, narrowest=_NARROWEST)
    sheet = Sheet.grid(measured.paper, names, note, style, left_out=empty)
    drawn = measured.curves[measured.curves["part"].isin(parts)]
    panels.set_log_range(sheet.axes, drawn, measured.axis)
    for i, j, ax in sheet:
        _draw_cell(ax, measured, matrices[i], matrices[j], parts)
    weights = [labels.weight_words(name) for name in matrices]
    rows = []
    for name in matrices:
        norm = labels.norm_label(name, measured.quantity)
        rows.append(norm.replace(" block", ":  block", 1))
    sheet.label(
        measured.axis.symbol,
        weights,
        rows,
        weights,
        labels.unit_label(measured.quantity),
    )
    return sheet.page(suffix, drawn_numbers(measured))


def _draw_cell(
    ax: Axes, measured: MeasuredCurves, row: str, col: str, parts: list[Part]
) -> None:
    here = measured.of(row=row, col=col)
    mirrored = measured.of(row=col, col=row)
    if here.curves.empty:
        ax.set_facecolor("#f7f7f7")
        other = f"transpose of\n{labels.pair_words(col, row)}"
        say(ax, "(not measured)" if mirrored.curves.empty else other)
        return
    panels.mark_one(ax, measured.axis)
    handles = []
    words = []
    for part, mark in zip(parts, _MARKS, strict=False):
        curve = here.of(part=part)
        colour = part_colour(part)
        if panels.positive(curve.curves).any():
            panels.draw_curve(
                ax,
                curve.curves,
                curve.table,
                colour=colour,
                marker=mark,
                markersize=2.5,
            )
            panels.draw_fit(ax, curve)
        handles.append(Line2D([], [], color=colour, marker=mark, markersize=2.5))
        words.append(f"{labels.symbol(part)}  {_slope(curve)}")
    ax.legend(handles, words, loc="upper left", handlelength=0.9)


def _slope(measured: MeasuredCurves) -> str:
    if not panels.positive(measured.curves).any():
        return panels.why_empty(measured)
    first = measured.slopes.iloc[0]
    words = panels.slope_and_half(first)
    if first["prediction"] == Prediction.exponent:
        words += f"  ({first['predicted']:g})"
    elif first["prediction"] == Prediction.structural_zero:
        words += "  (predicted = 0)"
    return words
