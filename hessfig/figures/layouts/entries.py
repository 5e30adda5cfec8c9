"""The Hessian's entries themselves (Figure 1): heat maps of a whole model, above the histograms of two blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from hessfig.analysis.arrays import StoredHessian, read_hessians
from hessfig.figures.layouts.histograms import blocks_of, describe, draw_bars, picked, setting_of
from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import Margins, fitting_columns, panel_width, width_in
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import TINY, width_of
from hessfig.figures.parts.words import weight_words

ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
_FLOOR, _RANGE = 1e-6, (-6.0, -1.0)
_PIXELS = 960
_NARROWEST = 1.6  # inches of a heat map whose weights are named
_SMALLEST_LABEL = 0.04  # parameters that own less of the axis than this carry no name


def entries(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the Hessian of the whole model and of attention alone, and histograms of |entries| (Figure 1).

    How to read it: bright squares are pairs of parameters whose loss curvature is strong; dashed lines
    separate the weights, the smallest of which are not named. The histograms show how much smaller the
    entries of the (Q, Q) block are than those of (V, V).
    Requires: stored Hessians (a sweep with `hessian` among its quantities; of one layer for the paper's weights).
    Options: `variant` picks one (all by default), `weights` those of the second heat map, `blocks` the two histograms.
    """
    picture = picked(read_hessians(folder), spec.options.get("variant"))
    networks, weights = [(hessian.variant, 0) for hessian in picture], spec.words("weights") or ATTENTION
    for hessian in picture:
        suffix = page_suffix(hessian.variant, 0, networks)
        yield draw_entries(hessian, weights, blocks_of(spec), suffix=suffix, setting=setting_of(folder))


def draw_entries(
    hessian: StoredHessian,
    weights: Sequence[str],
    blocks: Sequence[str],
    *,
    suffix: str = "",
    setting: str = "",
) -> Page:
    """Draw the two heat maps with one colour bar, and the histograms below them."""
    whole, some = hessian, hessian.restricted(weights)
    name = "attention" if set(weights) == set(ATTENTION) else "some weights"
    margins = Margins(left=0.54, right=0.5, across=0.42, down=0.5)
    side = panel_width(min(2, fitting_columns(margins, _NARROWEST)), margins)
    sheet = panel_sheet(
        [["whole", "attention" if name == "attention" else "some"], ["histogram"]],
        note=f"{describe(hessian)}{setting} Heat maps: log10(|H| + 1e-6), smoothed over 5 x 5 entries.",
        height=[side, 1.1],
        margins=margins,
        narrowest=_NARROWEST,
        share_x=False,
        share_y=False,
    )
    pictures = {(0, 0): (whole, "whole model"), (0, 1): (some, name)}
    for row, column, ax in sheet:
        if row == 0:
            one, title = pictures[row, column]
            image = draw_heat_map(ax, one.matrix, one.borders(), one.names)
            ax.set_title(f"{title}: {len(one.matrix)} parameters")
    numbers = draw_bars(sheet.panels.get((1, 0)) or Figure().subplots(), [hessian], blocks)
    heat_maps = [cell for line in sheet.lines for cell in line if cell[0] == 0 and cell in sheet.lines[0]]
    if heat_maps:
        _colour_bar(sheet.figure, sheet.panels[heat_maps[-1]], image)
    return Page(suffix, sheet.figure, numbers)


def draw_heat_map(ax: Axes, matrix: NDArray[Any], borders: NDArray[Any], names: Sequence[str]) -> AxesImage:
    """Draw log10(|matrix| + 1e-6), smoothed over 5 x 5 entries, with dashed lines between the parameters."""
    from scipy.ndimage import uniform_filter

    logs = uniform_filter(np.log10(np.abs(matrix) + np.float32(_FLOOR)), size=5, mode="nearest")
    size = len(matrix)
    image = ax.imshow(
        _reduced(logs), cmap="viridis", vmin=_RANGE[0], vmax=_RANGE[1], extent=(0, size, size, 0)
    )
    for border in borders[1:-1]:
        ax.axhline(border, color="white", linestyle="--", linewidth=0.4)
        ax.axvline(border, color="white", linestyle="--", linewidth=0.4)
    middles, widths = (borders[:-1] + borders[1:]) / 2, np.diff(borders)
    named = [
        (m, weight_words(n))
        for m, w, n in zip(middles, widths, names, strict=True)
        if w * width_in(ax)
        >= max(_SMALLEST_LABEL * size * width_in(ax), 1.1 * size * width_of(weight_words(n)))
    ]
    ax.set_xticks([m for m, _ in named], [n for _, n in named])
    ax.set_yticks([m for m, _ in named], [n for _, n in named])
    ax.tick_params(length=0, labelsize=TINY)
    return image


def _reduced(logs: NDArray[Any]) -> NDArray[Any]:
    """Average over squares of neighbours until a side has at most _PIXELS: more cannot be printed."""
    edges = np.arange(0, len(logs), -(-len(logs) // _PIXELS))
    widths = np.diff([*edges, len(logs)])
    sums = np.add.reduceat(np.add.reduceat(logs, edges, axis=0), edges, axis=1)
    return sums / (widths[:, None] * widths)


def _colour_bar(figure: Figure, ax: Axes, image: AxesImage) -> None:
    box = ax.get_position()
    page = figure.get_figwidth()
    bar = figure.add_axes((box.x1 + 0.08 / page, box.y0, 0.08 / page, box.height), label="<colorbar>")
    figure.colorbar(image, cax=bar)
    bar.set_title(r"$\log_{10}$", fontsize=TINY, pad=6)
