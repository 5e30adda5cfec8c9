"""Heat maps by layer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.image import AxesImage
from pandas import DataFrame, Series

from hessfig.analysis.curves import growth_curves
from hessfig.errors import UserError
from hessfig.figures.parts import (
    ONE_SCALE,
    TINY,
    FigureSpec,
    Page,
    Paper,
    Sheet,
    Source,
    as_written,
    at_one_place,
    by_network,
    colour_bar,
    draw_matrix,
    file_words,
    in_order,
    labels,
    name_sides,
    parts_of,
    read_numbers,
    where,
    width_in,
    width_of,
)
from hessfig.figures.parts import points as points_of

# Inches: height of a layer, width of a letter of a name, and of its column.
_ROW = 0.13
_LETTER = 0.042
_NAME = 0.1
_WRITTEN_CELLS = 0.19  # from this width of a cell on, its number is written in it
_OUTSIDE = "outside"  # the row of weights outside the layers


def heat(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the value of every weight's diagonal block, layers from top to bottom, weights across, a panel per part.

    How to read it: the colour (and the number, where there is room) is log10 of the
    mean over seeds; one scale for all panels. Quantities that can be negative are
    coloured themselves, blue below zero and red above. `= 0`: the block vanishes
    identically. Grey: not measured, or no such weight in that layer. The row `outside`
    holds weights outside the layers. Requires: the sweep's table.csv with diagonal
    blocks (options `quantities`: a page each, frobenius by default; `index`; `at`: the
    nearest place on the axis is drawn).
    """
    quantities = spec.words("quantities") or [spec.quantity]
    for quantity in quantities:
        chosen = replace(spec, options={**spec.options, "quantity": quantity})
        end = f"_{file_words(quantity)}" * (len(quantities) > 1)
        run, numbers = read_numbers(chosen, source)
        diagonal = numbers[numbers["row"] == numbers["col"]]
        if diagonal.empty:
            raise UserError(
                "figure.layout=heat draws diagonal blocks, and the table has none",
                got=f"{chosen.quantity} of pairs",
                allowed="blocks=each, or a list of weights",
                remedy="figure.layout=blocks",
            )
        curves = growth_curves(diagonal, run.axis, chosen.quantity)
        here, place = at_one_place(curves, chosen.number("at"), run.axis)
        for suffix, (variant, _), rows in by_network(here):
            words = filter(None, (labels.variant_words(variant), place))
            note = _note(chosen.quantity, diagonal, ", ".join(words))
            sheet = draw_heat(rows, chosen.quantity, note, chosen)
            yield sheet.page(suffix + end, as_written(rows, run.axis))


def draw_heat(points: DataFrame, quantity: str, note: str, spec: FigureSpec) -> Sheet:
    """Draw one network's panels next to each other, with one colour bar."""
    layers = sorted(points["layer"].unique())
    names = in_order(points["row"])
    parts = [*map(str, parts_of(points))] or [""]
    words = [labels.weight_words(name) for name in names]
    longest = max((len(text) for text in words if "$" not in text), default=6)
    style = ONE_SCALE.replace(
        left=0.5, right=0.66, top=0.24, bottom=0.22 + _LETTER * longest, across=0.1
    )
    narrowest = min(_NAME * len(names), style.width(Paper(), len(parts)))
    height = _ROW * max(len(layers), 4)
    style = style.replace(narrowest=narrowest, height=height)
    sheet = Sheet.grid(spec.paper, [[part or "all" for part in parts]], note, style)
    widest = max(
        width_of(labels.part_title(part), points_of("axes.titlesize")) for part in parts
    )
    in_full = widest <= width_in(sheet.first) + style.across
    signed = bool((points["mean"] < 0).any())
    scale = _scale(points["mean"], signed)
    for _, column, ax in sheet:
        square, zero = _matrix(where(points, part=parts[column]), layers, names)
        image = _draw_panel(ax, square, zero, scale, signed=signed)
        name_sides(ax, columns=words)
        title = labels.part_title if in_full else labels.symbol
        ax.set_title(title(parts[column]))
    rows = [str(layer) if layer else _OUTSIDE for layer in layers]
    for line in sheet.lines:
        name_sides(sheet.panels[line[0]], rows=rows)
        sheet.panels[line[0]].set_ylabel("layer")
    if signed:
        label = labels.quantity_label(quantity)
    else:
        label = rf"$\log_{{10}}$ {labels.quantity_label(quantity)}"
    colour_bar(sheet.outermost, image, wide=0.09, label=label)
    return sheet


def _matrix(
    points: DataFrame, layers: Sequence[int], names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return means by layer and weight (nan if there is none), and which of the blocks vanish identically."""
    square = np.full((len(layers), len(names)), np.nan)
    zero = np.zeros(square.shape, dtype=bool)
    for row in points.itertuples():
        place = layers.index(row.layer), names.index(row.row)
        square[place], zero[place] = row.mean, row.is_zero
    return square, zero


def _scale(means: Series, signed: bool) -> Normalize:
    """Return a scale for log10 of the means, or for the means themselves if some are negative."""
    if signed:
        largest = float(means.abs().max())
        smallest = float(means.abs().where(means != 0).min())
        return SymLogNorm(max(smallest, 1e-3 * largest), vmin=-largest, vmax=largest)
    logs = np.log10(means.where(means > 0))
    if logs.notna().any():
        return Normalize(float(logs.min()), float(logs.max()))
    return Normalize(0, 1)


def _draw_panel(
    ax: Axes, square: np.ndarray, zero: np.ndarray, scale: Normalize, *, signed: bool
) -> AxesImage:
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = square if signed else np.log10(square)
    words = None
    if width_in(ax) / square.shape[1] >= _WRITTEN_CELLS:
        pairs = zip(shown.flat, zero.flat, strict=True)
        words = np.array(
            [_cell(value, is_zero, signed) for value, is_zero in pairs]
        ).reshape(shown.shape)
    colours: dict[str, Any] = {"cmap": "RdBu_r"} if signed else {}
    return draw_matrix(ax, shown, scale, words=words, size=TINY - 1.4, **colours)


def _cell(value: float, is_zero: bool, signed: bool) -> str:
    if is_zero:
        return "= 0"
    words = f"{value:.0e}" if signed else f"{value:z.1f}"
    return words.replace("-", "−") if np.isfinite(value) else ""


def _note(quantity: str, numbers: DataFrame, place: str) -> str:
    repeats = labels.seeds_words(numbers)
    over = repeats if repeats == labels.ONE_SEED else f"{repeats} (means)"
    what = f"{labels.quantity_words(quantity).capitalize()} of every weight, {over}"
    about = ", ".join(filter(None, (what, place)))
    return f"{about}; grey: no such weight. {labels.estimator_words(numbers)}."
