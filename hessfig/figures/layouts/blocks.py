"""The matrix of block norms: which pairs of weights matter, at one sigma."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from hessfig.analysis.curves import growth_curves
from hessfig.analysis.table import TABLE, read_table
from hessfig.figures.layouts.growth import page_suffix
from hessfig.figures.parts.grid import Margins, panel_grid
from hessfig.figures.parts.measured import parts_of, seeds_words
from hessfig.figures.parts.panels import symbol
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import TEXT_WIDTH
from hessfig.terms import Matrix, Part

_SIDE_BY_SIDE = 5  # up to this many weights the three parts fit beside each other


def blocks(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw log10 of the block norms of one layer as an annotated matrix, for each part of the Hessian.

    How to read it: the number in cell (A, B) is log10 of the mean norm of the block of second derivatives
    with respect to A and B, at the sigma named below; one colour scale for all parts. The matrix is
    symmetric. `= 0`: the block vanishes identically. A dot: not measured.
    Requires: the sweep's table.csv with pairs of weights, best blocks=all (option `sigma`: the nearest measured
    one is drawn; 1 by default).
    """
    table = read_table(folder / TABLE)
    curves = growth_curves(table)
    sigma = _nearest(curves["sigma"].unique(), float(spec.options.get("sigma", 1.0)))
    here = curves[curves["sigma"] == sigma]
    networks = list(here[["variant", "num_layers"]].drop_duplicates().itertuples(index=False, name=None))
    note = f"log10 of the mean block norm over {seeds_words(table)}, σ = {sigma:.2g}; a dot: not measured."
    for variant, depth in networks:
        network = here[(here["variant"] == variant) & (here["num_layers"] == depth)]
        for layer in sorted(set(network["layer"]) - {0}):
            one = network[network["layer"].isin([0, layer])]
            suffix = page_suffix(variant, depth, networks) + (f"_layer{layer}" if depth > 1 else "")
            yield from draw_blocks(one, note=note, suffix=suffix)


def draw_blocks(norms: pd.DataFrame, *, note: str, suffix: str = "") -> Iterator[Page]:
    """Draw one layer's matrices: on one page, or a page per part when there are many weights."""
    matrices = [m for m in Matrix if m in set(norms["row"]) | set(norms["col"])]
    logs = np.log10(norms["mean"].where(norms["mean"] > 0))
    scale = Normalize(np.floor(logs.min()), np.ceil(logs.max()))
    parts = parts_of(norms)
    if len(matrices) <= _SIDE_BY_SIDE:
        yield Page(suffix, _draw_page(norms, matrices, parts, scale, note), norms)
        return
    for part in parts:
        figure = _draw_page(norms, matrices, [part], scale, note)
        yield Page(f"{suffix}_{part}", figure, norms[norms["part"] == part])


def norm_matrix(norms: pd.DataFrame, matrices: list[Matrix]) -> np.ndarray:
    """Return the symmetric matrix of mean norms; nan where a pair was not measured."""
    square = np.full((len(matrices), len(matrices)), np.nan)
    for row in norms.itertuples():
        i, j = matrices.index(Matrix(row.row)), matrices.index(Matrix(row.col))
        square[i, j] = square[j, i] = row.mean
    return square


def _nearest(measured: np.ndarray, wanted: float) -> float:
    return float(measured[np.abs(np.log(measured / wanted)).argmin()])


def _draw_page(
    norms: pd.DataFrame, matrices: list[Matrix], parts: list[Part], scale: Normalize, note: str
) -> Figure:
    single = len(parts) == 1 and len(matrices) > _SIDE_BY_SIDE
    margins = Margins(
        left=0.62 if single else 0.4, right=0.95 if single else 0.62, top=0.26, bottom=0.3, across=0.14
    )
    width = (TEXT_WIDTH - margins.left - margins.right - (len(parts) - 1) * margins.across) / len(parts)
    height = width * (0.72 if single else 1.0)
    figure, axes = panel_grid(1, len(parts), note=note, panel_height=height, margins=margins, share_y="all")
    for ax, part in zip(axes[0], parts, strict=True):
        image = _draw_matrix(ax, norm_matrix(norms[norms["part"] == part], matrices), matrices, scale)
        ax.set_title(f"{symbol(part)}: {part.label}")
    box = axes[0, -1].get_position()
    bar = figure.add_axes((box.x1 + 0.015, box.y0, 0.015, box.height))
    figure.colorbar(image, cax=bar, label=r"$\log_{10}\|\cdot\|_F$")
    return figure


def _draw_matrix(ax: Axes, square: np.ndarray, matrices: list[Matrix], scale: Normalize):  # type: ignore[no-untyped-def]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(square)
    image = ax.imshow(np.where(np.isfinite(logs), logs, np.nan), cmap="viridis", norm=scale, aspect="auto")
    ax.set_facecolor("#e6e6e6")
    for (i, j), value in np.ndenumerate(square):
        words = (
            "·" if np.isnan(value) else "= 0" if value == 0 else f"{logs[i, j] + 0.0:z.1f}".replace("-", "−")
        )
        dark = np.isfinite(logs[i, j]) and scale(logs[i, j]) < 0.55
        ax.text(j, i, words, ha="center", va="center", color="white" if dark else "black", fontsize=6)
    ticks = [f"${matrix.label}$" for matrix in matrices]
    ax.set_xticks(range(len(matrices)), ticks)
    ax.set_yticks(range(len(matrices)), ticks)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image
