"""Heat maps of the distances between the spectra of all pairs of blocks, networks side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hessfig.analysis.interval import Interval, student_interval
from hessfig.analysis.spectra.distances import PUBLISHED
from hessfig.analysis.spectra.heterogeneity import PAIR, is_weight, pair_distances
from hessfig.figures.layouts.spectra.collected import Collected, Network, collected
from hessfig.figures.layouts.spectra.eigenvalues import kernel_of
from hessfig.figures.parts.grid import Margins, panel_grid, panel_width, width_in
from hessfig.figures.parts.paper import paper
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import TEXT_WIDTH, TINY
from hessfig.figures.parts.words import part_words, variant_words, weight_words

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
    Requires: a sweep with `spectrum` (or `density`) of every weight (options `variance` or `width` of the kernel).
    """
    kernel = kernel_of(spec, PUBLISHED)
    for words, one in collected(folder, is_weight):
        stored = one.spectra or one.densities
        pairs, means = pair_distances(stored, kernel)
        for part in one.parts:
            end = (f"_{part}" if len(one.parts) > 1 else "") + (f"_{words}" if words else "")
            note = (
                f"{part_words(part)}, {'exact eigenvalues' if one.spectra else 'Lanczos densities'}, mean over"
                f" {len(one.seeds)} seeds. Divided by the 10th largest in size; {kernel.words}, one grid a network;"
                f" natural logarithms.{one.where}"
            )
            here, total = pairs[pairs["part"] == part], means[means["part"] == part]
            yield _draw_page(one, here, total, note=note, suffix=end)


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
        interval = student_interval(total["average"])
        image = _draw_map(ax, here)
        ax.set_title(f"{variant_words(network[0]) or 'network'}\n{_average_words(interval)}")
        numbers.append(_written(here, network, interval))
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


def _written(pairs: pd.DataFrame, network: Network, interval: Interval) -> pd.DataFrame:
    """Return mean, standard error and count of every pair, with the network's average beside them."""
    found = pairs.groupby(PAIR, sort=False)["distance"].agg(["mean", "sem", "count"]).reset_index()
    beside = {"average": interval.mean, "average_low": interval.low, "average_high": interval.high}
    return found.assign(variant=network[0], num_layers=network[1], part=pairs["part"].iloc[0], **beside)


def _is_of(frame: pd.DataFrame, network: Network) -> pd.Series:
    return (frame["variant"] == network[0]) & (frame["num_layers"] == network[1])


def _colour_bar(figure: Figure, ax: Axes, image: AxesImage) -> None:
    box = ax.get_position()
    wide = 0.015 * (TEXT_WIDTH / paper().inches)  # as wide in inches on every page
    bar = figure.add_axes((box.x1 + wide, box.y0, wide, box.height))
    figure.colorbar(image, cax=bar)
