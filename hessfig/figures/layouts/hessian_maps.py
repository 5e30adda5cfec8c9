"""Stored Hessians: heat maps and histograms of their entries."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, concat

from hessfig.analysis.arrays import StoredHessian, histogram, log_bins, read_hessians
from hessfig.analysis.axis import SIGMA
from hessfig.analysis.manifest import read_manifest
from hessfig.errors import UserError
from hessfig.figures.parts import (
    APART,
    ONE_SCALE,
    TINY,
    FigureSpec,
    Page,
    Sheet,
    Source,
    block_words,
    colour_bar,
    draw_matrix,
    label_side,
    matrix_colour,
    page_suffix,
    set_decades,
    setting_words,
    variant_names,
    variant_words,
    weight_words,
    width_in,
)
from hessfig.terms import Matrix

BLOCKS = (Matrix.W_V.value, Matrix.W_Q.value)
_NARROW = 4.5  # inches of a page on which labels of the ends of two panels would touch
_BETWEEN = 0.36  # inches between its panels
SIZE, SHARE = "absolute value of an entry", "share of entries"


def histograms(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw histograms of |entries| of (V, V) and (Q, Q), a panel per variant (Figure 4).

    How to read it: where the two humps lie close together with linear attention and far
    apart with softmax, it is softmax that makes the blocks differ. Requires: stored
    Hessians (option `blocks` names other weights).
    """
    hessians = read_hessians(source.folder)
    names = variant_names([hessian.variant for hessian in hessians])
    note = f"{describe(hessians[0])}{setting_words_of(source.folder)}"
    style = ONE_SCALE.replace(height=1.5, right=0.15, narrowest=None)
    if spec.paper.inches < _NARROW:
        style = style.replace(across=_BETWEEN)
    sheet = Sheet.grid(spec.paper, [names], note, style)
    numbers = []
    for _, column, ax in sheet:
        numbers.append(draw_bars(ax, hessians[column], blocks_of(spec), hessians))
        ax.set_title(variant_words(hessians[column].variant))
    sheet.label_sides([SHARE])
    sheet.label_below(SIZE)
    yield sheet.page("", *numbers)


def blocks_of(spec: FigureSpec) -> list[str]:
    """Return the weights of the blocks in the histograms (option `blocks`); W_V and W_Q by default."""
    return spec.words("blocks") or list(BLOCKS)


def draw_bars(
    ax: Axes,
    hessian: StoredHessian,
    weights: Sequence[str],
    every: Sequence[StoredHessian],
) -> DataFrame:
    """Draw a network's histograms, e.g. of (V, V) and (Q, Q), in bins common to `every` one; return the shares."""
    blocks = [one.block(name) for one in every for name in weights]
    edges = log_bins(blocks)
    highest = max(histogram(block, edges).max() for block in blocks)
    rows = []
    for matrix in weights[::-1]:
        shares = histogram(hessian.block(matrix), edges)
        colour = matrix_colour(matrix)
        ax.stairs(
            shares,
            edges,
            fill=True,
            color=colour,
            alpha=0.75,
            label=_legend(hessian, matrix, shares, edges),
        )
        ax.stairs(shares, edges, color=colour, linewidth=0.6)
        bins = {"bin_low": edges[:-1], "bin_high": edges[1:], "share": shares}
        rows.append(DataFrame({"variant": hessian.variant, "block": matrix, **bins}))
    set_decades(ax, "x")
    ax.set_xlim(edges[0], edges[-1])
    # Room for the legend above the bars.
    ax.set_ylim(0, highest * (1.05 + 0.15 * len(weights)))
    ax.legend(loc="upper left", reverse=True)
    return concat(rows[::-1], ignore_index=True)


def _legend(
    hessian: StoredHessian, weight: str, shares: np.ndarray, edges: np.ndarray
) -> str:
    peak = float(np.sqrt(edges[:-1] * edges[1:])[shares.argmax()])
    zeros = 100 * float((hessian.block(weight) == 0).mean())
    digits, _, exponent = f"{peak:.1e}".partition("e")
    words = rf"{block_words(weight, weight)}: peak at ${digits}\times10^{{{int(exponent)}}}$"
    if zeros >= 0.5:
        words += f", {zeros:.0f} % exactly 0"
    return words


def describe(hessian: StoredHessian) -> str:
    """Return in words which Hessian is drawn, for the note."""
    words = "Full Hessian"
    if not np.isnan(hessian.sigma):
        words += f" at σ = {hessian.sigma:g}"
    words += f", seed {hessian.seed}"
    if not np.isnan(hessian.step):
        words += f", step {hessian.step:g}"
    return f"{words}."


def setting_words_of(folder: Path) -> str:
    """Return width, layers and batch in words, for the note."""
    return setting_words(
        (read_manifest(folder) or {}).get("config", {}), DataFrame(), SIGMA
    )


def picked(hessians: list[StoredHessian], variant: str | None) -> list[StoredHessian]:
    """Return the Hessians of a variant (None: all). Raises UserError if there are none."""
    chosen = [hessian for hessian in hessians if variant in (None, hessian.variant)]
    if not chosen:
        raise UserError(
            "the figure's variant was not measured",
            got=variant,
            allowed=", ".join(hessian.variant or "(none)" for hessian in hessians),
            remedy="run the sweep with its own sweep.vary, or set figure.options",
        )
    return chosen


ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
_FLOOR = 1e-6
_PIXELS = 960
# A heat map whose weights are named needs as much.
_STYLE = APART.replace(right=0.5, down=0.5, narrowest=1.6)
_SMALLEST_LABEL = (
    0.1  # inches: parameters with a smaller share of the axis have no name
)


def entries(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the Hessian of the whole model and of attention alone, and histograms of |entries| (Figure 1).

    How to read it: bright squares are pairs of parameters whose loss curvature is
    strong; dashed lines separate the weights, the smallest of which are not named. The
    histograms show how much smaller the entries of the (Q, Q) block are than those of
    (V, V). Requires: stored Hessians (a sweep with `hessian` among its quantities; of
    one layer for the paper's weights). Options: `variant` picks one (all by default),
    `weights` those of the second heat map, `blocks` the two histograms.
    """
    picture = picked(read_hessians(source.folder), spec.options.get("variant"))
    networks = [(hessian.variant, 0) for hessian in picture]
    weights = spec.words("weights") or ATTENTION
    settings = setting_words_of(source.folder)
    maps = []
    for hessian in picture:
        restricted = hessian.restricted(weights)
        maps.append([log_entries(hessian.matrix), log_entries(restricted.matrix)])
    highest = max(float(logs.max()) for logs in chain(*maps))
    # One scale for all pages, up to the next half decade.
    scale = Normalize(math.log10(_FLOOR), (math.floor(2 * highest) + 1) / 2)
    for hessian, both in zip(picture, maps, strict=True):
        note = f"{describe(hessian)}{settings} Heat maps: log10(|H| + 1e-6), smoothed over 5 x 5 entries."
        subset, words = "some", "some weights"
        if set(weights) == set(ATTENTION):
            subset = words = "attention"
        side = _STYLE.width(spec.paper, min(2, _STYLE.columns(spec.paper)))
        sheet = Sheet.grid(
            spec.paper,
            [["whole", subset], ["histogram"]],
            note,
            _STYLE.replace(height=[side, 1.1]),
        )
        pictures = [(hessian, "whole model"), (hessian.restricted(weights), words)]
        for row, column, ax in sheet:
            if row == 0:
                drawn, title = pictures[column]
                image = draw_heat_map(
                    ax, both[column], scale, drawn.borders(), drawn.names
                )
                ax.set_title(f"{title}: {len(drawn.matrix)} parameters")
        below = sheet.panels.get((1, 0)) or Figure().subplots()
        numbers = draw_bars(below, hessian, blocks_of(spec), [hessian])
        label_side(below, SHARE)
        below.set_xlabel(SIZE)
        heat_maps = [cell for cell in sheet.lines[0] if cell[0] == 0]
        if heat_maps:
            bar = colour_bar(sheet.panels[heat_maps[-1]], image)
            bar.locator = MaxNLocator(integer=True)
            bar.set_label(r"$\log_{10}$ of the size of an entry")
        yield sheet.page(page_suffix(hessian.variant, 0, networks), numbers)


def log_entries(matrix: np.ndarray) -> np.ndarray:
    """Return log10(|matrix| + 1e-6), smoothed over 5 x 5 entries, with at most _PIXELS rows."""
    from scipy.ndimage import uniform_filter

    logs = np.log10(np.abs(matrix) + np.float32(_FLOOR))
    return _reduced(uniform_filter(logs, size=5, mode="nearest"))


def draw_heat_map(
    ax: Axes,
    logs: np.ndarray,
    scale: Normalize,
    borders: np.ndarray,
    names: Sequence[str],
) -> AxesImage:
    """Draw the `log_entries` of a matrix, with dashed lines between its parameters, which end at `borders`."""
    size = borders[-1]
    whole: dict[str, Any] = {"aspect": "equal", "extent": (0, size, size, 0)}
    image = draw_matrix(ax, logs, scale, missing="white", **whole)
    for border in borders[1:-1]:
        for draw in (ax.axhline, ax.axvline):
            draw(border, color="white", linestyle="--", linewidth=0.4)
    middles = (borders[:-1] + borders[1:]) / 2
    inches = np.diff(borders) / size * width_in(ax)
    named = {}
    for middle, room, name in zip(middles, inches, names, strict=True):
        if room >= _SMALLEST_LABEL:
            named[middle] = weight_words(name)
    ax.set_xticks(list(named), list(named.values()), rotation=90)
    ax.set_yticks(list(named), list(named.values()))
    ax.tick_params(length=0, labelsize=TINY)
    return image


def _reduced(logs: np.ndarray) -> np.ndarray:
    """Average over squares of neighbours until a side has at most _PIXELS entries, the limit of print."""
    edges = np.arange(0, len(logs), -(-len(logs) // _PIXELS))
    widths = np.diff([*edges, len(logs)])
    sums = np.add.reduceat(np.add.reduceat(logs, edges, axis=0), edges, axis=1)
    return sums / (widths[:, None] * widths)
