"""Distances between spectra, and heat maps by layer."""

from __future__ import annotations

import math
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
from hessfig.analysis.intervals import Interval, student_interval
from hessfig.analysis.spectral_distances import FIXED, KERNELS, PAIR, PUBLISHED, Kernel, is_weight, pair_distances
from hessfig.analysis.stored_spectra import Density, Spectrum
from hessfig.errors import UserError
from hessfig.figures.layouts.collected_spectra import Collected, Network, collected
from hessfig.figures.layouts.eigenvalue_plots import kernel_of
from hessfig.figures.parts.measured import as_written, at_one_place, in_order, parts_of, read_numbers
from hessfig.figures.parts.page import TEXT_WIDTH, TINY, FigureSpec, Page, file_words, page_suffix, paper, width_of
from hessfig.figures.parts.page import points as points_of
from hessfig.figures.parts.panel_sheet import Margins, panel_grid, panel_width, width_in
from hessfig.figures.parts.words import (
    estimator_words,
    part_title,
    part_words,
    plain,
    quantity_words,
    seeds_words,
    symbol,
    variant_words,
    weight_words,
)
from hessfig.record import FROBENIUS, NETWORK

_COLUMNS = 2
_WRITTEN = 0.13  # inches: from this width of a cell on, its number is written in it
_NETWORK = ["variant", "num_layers", "part"]
_MARGINS = Margins(left=0.42, right=0.5, top=0.36, bottom=0.42, across=0.5, down=0.7)


def heterogeneity(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the Jensen-Shannon distance of every pair of weights' spectra, a map a network, a page a part of H.

    How to read it: dark is alike, bright is different (ln 2 at most); sizes do not count, for eigenvalues are divided
    by the block's 10th largest. JS⁰ is the average over all pairs, ± half its 95 % interval over seeds. A network
    whose map is bright has blocks that ask for step sizes of their own. Grey: a block with fewer than 10 eigenvalues
    that are not zero has no distance.
    The published kernel's width follows from the range of each network, so that outliers alone make spectra alike; with
    option `kernel=fixed` it is one width, in units of the 10th largest, for all networks and steps. The CSV file has
    the distances under both (the other one's in columns other_...).
    Requires: a sweep with `spectrum` (or `density`) of every weight (options `kernel`, or `variance` or `width` of the
    published one).
    """
    name = spec.choice("kernel", list(KERNELS), "published")
    kernel = FIXED if name == "fixed" else kernel_of(spec, PUBLISHED)
    for words, one in collected(folder, is_weight):
        stored = one.spectra or one.densities
        pairs, means = _beside_each_other(stored, kernel, PUBLISHED if kernel == FIXED else FIXED)
        for part in one.parts:
            end = (f"_{part}" if len(one.parts) > 1 else "") + (f"_{words}" if words else "")
            note = (
                f"{part_words(part)}, {'exact eigenvalues' if one.spectra else 'Lanczos densities'}, mean over"
                f" {len(one.seeds)} seeds. Divided by the 10th largest in size; {kernel.words}, one grid a network;"
                f" natural logarithms.{one.where}"
            )
            here, total = pairs[pairs["part"] == part], means[means["part"] == part]
            yield _draw_page(one, here, total, note=note, suffix=end)


def _beside_each_other(
    stored: Sequence[Spectrum | Density], kernel: Kernel, other: Kernel
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return distances and averages under one kernel, with those under another in columns other_..., and its words."""
    (pairs, means), (other_pairs, other_means) = (pair_distances(stored, one) for one in (kernel, other))
    pairs = pairs.assign(other_distance=other_pairs["distance"], kernel=kernel.words, other_kernel=other.words)
    return pairs, means.assign(other_average=other_means["average"])


def _draw_page(one: Collected, pairs: pd.DataFrame, means: pd.DataFrame, *, note: str, suffix: str) -> Page:
    rows = math.ceil(len(one.networks) / _COLUMNS)
    figure, axes = panel_grid(
        rows,
        _COLUMNS,
        note=note,
        panel_height=panel_width(_COLUMNS, _MARGINS),
        margins=_MARGINS,
        share_x=False,
        share_y=False,
    )
    numbers, panels = [], axes.ravel()
    for ax, network in zip(panels, one.networks, strict=False):
        here, total = (frame[_is_of(frame, network)] for frame in (pairs, means))
        interval, other = (student_interval(total[name]) for name in ("average", "other_average"))
        image = _draw_map(ax, here)
        ax.set_title(f"{variant_words(network[0]) or 'network'}\n{_average_words(interval)}")
        numbers.append(_written(here, network, interval, other))
    for ax in panels[len(one.networks) :]:
        ax.set_axis_off()
    _colour_bar(figure, panels[min(_COLUMNS, len(one.networks)) - 1], image)
    return Page(suffix, figure, pd.concat(numbers, ignore_index=True))


def _draw_map(ax: Axes, pairs: pd.DataFrame) -> AxesImage:
    names = list(pairs[PAIR[:2]].drop_duplicates().itertuples(index=False, name=None))
    mean = pairs.groupby(PAIR, sort=False)["distance"].mean().reset_index()
    place = {name: rank for rank, name in enumerate(names)}
    square = np.full((len(names), len(names)), math.nan)
    for layer, one, other_layer, other, value in mean.itertuples(index=False):
        square[place[layer, one], place[other_layer, other]] = value
    ax.set_facecolor("#bbbbbb")
    image = ax.imshow(square, cmap="magma", vmin=0, vmax=math.log(2))
    labels = [weight_words(name) + (f" {layer}" if layer > 1 else "") for layer, name in names]
    ax.set_xticks(range(len(names)), labels, rotation=90)
    ax.set_yticks(range(len(names)), labels)
    ax.tick_params(length=0, labelsize=TINY)
    if len(names) <= 12 and width_in(ax) / len(names) >= _WRITTEN:
        for i, j in np.argwhere(np.isfinite(square)):
            dark = square[i, j] < 0.6 * math.log(2)
            ax.text(j, i, f"{square[i, j]:.2f}", ha="center", va="center", size=4, color="w" if dark else "k")
    return image


def _average_words(interval: Interval) -> str:
    if math.isnan(interval.mean):
        return "no distances"
    margin = f" ± {interval.mean - interval.low:.3f}" if math.isfinite(interval.low) else ""
    return f"JS⁰ = {interval.mean:.3f}{margin}"


def _written(pairs: pd.DataFrame, network: Network, interval: Interval, other: Interval) -> pd.DataFrame:
    """Return mean, standard error and count of every pair, with the network's average beside them."""
    grouped = pairs.groupby(PAIR, sort=False)
    found = grouped["distance"].agg(["mean", "sem", "count"]).assign(other_mean=grouped["other_distance"].mean())
    found = found.reset_index()
    averages = {"average": interval, "other_average": other}
    bounds = {"": "mean", "_low": "low", "_high": "high"}
    beside = {f"{name}{end}": getattr(one, bound) for name, one in averages.items() for end, bound in bounds.items()}
    beside |= {name: pairs[name].iloc[0] for name in ("kernel", "other_kernel")}
    return found.assign(variant=network[0], num_layers=network[1], part=pairs["part"].iloc[0], **beside)


def _is_of(frame: pd.DataFrame, network: Network) -> pd.Series:
    return (frame["variant"] == network[0]) & (frame["num_layers"] == network[1])


def _colour_bar(figure: Figure, ax: Axes, image: AxesImage) -> None:
    box = ax.get_position()
    wide = 0.015 * (TEXT_WIDTH / paper().inches)  # as wide in inches on every page
    bar = figure.add_axes((box.x1 + wide, box.y0, wide, box.height))
    figure.colorbar(image, cax=bar)


_ROW, _LETTER = 0.13, 0.042  # inches: height of a layer, width of a letter of a name
_WRITTEN_CELLS = 0.19  # from this width of a cell on, its number is written in it
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


def _matrix(points: pd.DataFrame, layers: Sequence[int], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
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


def _draw_panel(ax: Axes, square: np.ndarray, zero: np.ndarray, scale: Normalize, *, signed: bool) -> AxesImage:
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = square if signed else np.log10(square)
    shown = np.where(np.isfinite(shown), shown, np.nan)
    image = ax.imshow(shown, cmap="RdBu_r" if signed else "viridis", norm=scale, aspect="auto")
    ax.set_facecolor("#e6e6e6")
    if width_in(ax) / square.shape[1] >= _WRITTEN_CELLS:
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
            ax.text(j, i, words.replace("-", "−"), ha="center", va="center", color=colour, fontsize=TINY - 1.4)


def _note(quantity: str, numbers: pd.DataFrame, where: str) -> str:
    repeats = seeds_words(numbers)
    over = "one seed" if repeats == "1 seeds" else f"{repeats} (means)"
    what = f"{quantity_words(quantity).capitalize()} of every weight, {over}"
    return f"{what}{', ' * bool(where)}{where}; grey: no such weight. {estimator_words(numbers)}."


def _label(quantity: str, signed: bool) -> str:
    words = r"$\|\cdot\|_F$" if quantity == FROBENIUS else plain(quantity_words(quantity))
    return words if signed else rf"$\log_{{10}}$ {words}"
