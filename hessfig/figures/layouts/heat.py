"""Heat maps layer by weight: where in a deep network the curvature is, at one place on the axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hessfig.analysis.curves import growth_curves
from hessfig.errors import UserError
from hessfig.figures.parts.grid import Margins, panel_grid, panel_width, width_in
from hessfig.figures.parts.measured import in_order, parts_of
from hessfig.figures.parts.numbers import as_written, at_one_place, read_numbers
from hessfig.figures.parts.paper import paper
from hessfig.figures.parts.save import Page, file_words, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import TINY, width_of
from hessfig.figures.parts.style import points as points_of
from hessfig.figures.parts.words import (
    estimator_words,
    part_title,
    plain,
    quantity_words,
    seeds_words,
    symbol,
    variant_words,
    weight_words,
)
from hessfig.record import FROBENIUS, NETWORK

_ROW, _LETTER = 0.13, 0.042  # inches: height of a layer, width of a letter of a name
_WRITTEN = 0.19  # from this width of a cell on, its number is written in it
_OUTSIDE = "none"  # the row of weights that belong to no layer


def heat(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the value of every weight's diagonal block, layers from top to bottom, weights across, a panel per part.

    How to read it: the colour (and the number, where there is room) is log10 of the mean over seeds; one scale for
    all panels. Quantities that can be negative are coloured themselves, blue below zero and red above. `= 0`: the
    block vanishes identically. Grey: not measured, or no such weight in that layer. The row `none` holds weights
    outside the layers.
    Requires: the sweep's table.csv with diagonal blocks (options `quantities`: a page each, frobenius by default;
    `index`; `at`: the nearest place on the axis is drawn).
    """
    for quantity in spec.words("quantities") or [spec.quantity]:
        one = replace(spec, options={**spec.options, "quantity": quantity})
        yield from _pages(one, folder, several=len(spec.words("quantities") or []) > 1)


def _pages(spec: FigureSpec, folder: Path, *, several: bool) -> Iterator[Page]:
    run, numbers = read_numbers(spec, folder)
    diagonal = numbers[numbers["row"] == numbers["col"]]
    if diagonal.empty:
        raise UserError(
            "figure.layout=heat draws diagonal blocks, and the table has none",
            got=f"{spec.quantity} of pairs",
            allowed="blocks=each, or a list of weights",
            remedy="figure.layout=blocks",
        )
    curves = growth_curves(diagonal, axis=run.axis, quantity=spec.quantity)
    here, place = at_one_place(curves, spec.number("at"), run.axis)
    networks = list(here[NETWORK].drop_duplicates().itertuples(index=False, name=None))
    for variant, depth in networks:
        network = here[(here["variant"] == variant) & (here["num_layers"] == depth)]
        suffix = page_suffix(variant, depth, networks) + f"_{file_words(spec.quantity)}" * several
        note = _note(spec.quantity, diagonal, ", ".join(filter(None, (variant_words(variant), place))))
        yield Page(suffix, draw_heat(network, spec.quantity, note), as_written(network, run.axis))


def draw_heat(points: pd.DataFrame, quantity: str, note: str) -> Figure:
    """Draw one network's panels beside each other, with one colour bar."""
    layers, names = sorted(points["layer"].unique()), in_order(points["row"])
    parts = [*map(str, parts_of(points))] or [""]
    longest = max((len(name) for name in names if weight_words(name) == plain(name)), default=6)
    margins = Margins(left=0.36, right=0.66, top=0.24, bottom=0.22 + _LETTER * longest, across=0.1)
    height = _ROW * max(len(layers), 4)
    figure, axes = panel_grid(1, len(parts), note=note, panel_height=height, margins=margins, share_y="all")
    widest = max(width_of(part_title(part), points_of("axes.titlesize")) for part in parts)
    in_full = widest <= panel_width(len(parts), margins) + margins.across
    signed = bool((points["mean"] < 0).any())
    scale = _scale(points["mean"], signed)
    for ax, part in zip(axes[0], parts, strict=True):
        square, zero = _matrix(points[points["part"] == part], layers, names)
        image = _draw_panel(ax, square, zero, scale, signed=signed)
        ax.set_xticks(range(len(names)), [weight_words(name) for name in names], rotation=90)
        ax.set_title(part_title(part) if in_full else symbol(part))
    axes[0, 0].set_yticks(range(len(layers)), [str(layer) if layer else _OUTSIDE for layer in layers])
    axes[0, 0].set_ylabel("layer")
    box = axes[0, -1].get_position()
    page = paper().inches
    bar = figure.add_axes((box.x1 + 0.08 / page, box.y0, 0.09 / page, box.height))
    figure.colorbar(image, cax=bar, label=_label(quantity, signed))
    return figure


def _matrix(
    points: pd.DataFrame, layers: Sequence[int], names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return means by layer and weight, nan where there is none, and which of the blocks vanish identically."""
    square = np.full((len(layers), len(names)), np.nan)
    zero = np.zeros(square.shape, dtype=bool)
    for row in points.itertuples():
        place = layers.index(row.layer), names.index(row.row)
        square[place], zero[place] = row.mean, row.is_zero
    return square, zero


def _scale(means: pd.Series, signed: bool) -> Normalize:
    """Return a scale for log10 of the means, or for the means themselves where some are negative."""
    if signed:
        largest = float(means.abs().max())
        smallest = float(means.abs().where(means != 0).min())
        return SymLogNorm(max(smallest, 1e-3 * largest), vmin=-largest, vmax=largest)
    logs = np.log10(means.where(means > 0))
    return Normalize(float(logs.min()), float(logs.max())) if logs.notna().any() else Normalize(0, 1)


def _draw_panel(
    ax: Axes, square: np.ndarray, zero: np.ndarray, scale: Normalize, *, signed: bool
) -> AxesImage:
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = square if signed else np.log10(square)
    shown = np.where(np.isfinite(shown), shown, np.nan)
    image = ax.imshow(shown, cmap="RdBu_r" if signed else "viridis", norm=scale, aspect="auto")
    ax.set_facecolor("#e6e6e6")
    if width_in(ax) / square.shape[1] >= _WRITTEN:
        _write_numbers(ax, shown, zero, scale, signed)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image


def _write_numbers(ax: Axes, shown: np.ndarray, zero: np.ndarray, scale: Normalize, signed: bool) -> None:
    for (i, j), value in np.ndenumerate(shown):
        if np.isfinite(value) or zero[i, j]:
            words = "= 0" if zero[i, j] else f"{value:z.1f}" if not signed else f"{value:.0e}"
            dark = not zero[i, j] and not signed and scale(value) < 0.55
            colour = "white" if dark else "black"
            ax.text(
                j, i, words.replace("-", "−"), ha="center", va="center", color=colour, fontsize=TINY - 1.4
            )


def _note(quantity: str, numbers: pd.DataFrame, where: str) -> str:
    repeats = seeds_words(numbers)
    over = "one seed" if repeats == "1 seeds" else f"{repeats} (means)"
    what = f"{quantity_words(quantity).capitalize()} of every weight, {over}"
    return f"{what}{', ' * bool(where)}{where}; grey: no such weight. {estimator_words(numbers)}."


def _label(quantity: str, signed: bool) -> str:
    words = r"$\|\cdot\|_F$" if quantity == FROBENIUS else plain(quantity_words(quantity))
    return words if signed else rf"$\log_{{10}}$ {words}"
