"""Histograms of the absolute entries of two blocks (Figures 1 and 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from hessfig.analysis.arrays.hessian import StoredHessian, histogram, log_bins, read_hessians
from hessfig.analysis.axis import SIGMA
from hessfig.analysis.manifest import read_manifest
from hessfig.errors import UserError
from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import Margins, label_side
from hessfig.figures.parts.panels import set_decades
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour
from hessfig.figures.parts.words import pair_words, plain, setting_words
from hessfig.terms import Matrix

BLOCKS = (Matrix.W_V.value, Matrix.W_Q.value)


def histograms(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw histograms of |entries| of (V, V) and (Q, Q) for two variants, one opaque, one faded (Figure 4).

    How to read it: opaque bars are linear attention, faded ones softmax. Where the two opaque humps lie close
    together and the faded ones far apart, it is softmax that makes the blocks differ.
    Requires: stored Hessians of both variants (options `opaque` and `faded` name others, `blocks` other weights).
    """
    hessians = {hessian.variant: hessian for hessian in read_hessians(folder)}
    names = [
        spec.options.get("opaque", "model.attention=linear"),
        spec.options.get("faded", "model.attention=softmax"),
    ]
    opaque, faded = (picked(list(hessians.values()), name)[0] for name in names)
    yield draw_histograms(opaque, faded, blocks_of(spec), setting=setting_of(folder))


def blocks_of(spec: FigureSpec) -> list[str]:
    """Return the weights whose blocks are counted (option `blocks`), W_V and W_Q unless told otherwise."""
    return spec.words("blocks") or list(BLOCKS)


def draw_histograms(
    opaque: StoredHessian, faded: StoredHessian, blocks: Sequence[str], *, setting: str = ""
) -> Page:
    """Draw the histograms of two networks in one panel."""
    note = f"{describe(opaque)}{setting} Opaque: {opaque.variant}; faded: {faded.variant}."
    sheet = panel_sheet([["histogram"]], note=note, height=1.9, margins=Margins(right=0.15))
    return Page("", sheet.figure, draw_bars(sheet.first, [opaque, faded], blocks))


def draw_bars(ax: Axes, hessians: list[StoredHessian], weights: Sequence[str]) -> pd.DataFrame:
    """Draw each network's histograms, e.g. of (V, V) and (Q, Q), the first opaque and on top; return the shares."""
    blocks = [(hessian, name, hessian.block(name)) for hessian in hessians for name in weights]
    edges = log_bins([block for *_, block in blocks])
    rows = []
    for rank, (hessian, matrix, block) in reversed(list(enumerate(blocks))):
        shares, first = histogram(block, edges), rank < len(weights)
        ax.stairs(
            shares,
            edges,
            fill=True,
            color=matrix_colour(matrix),
            alpha=0.75 if first else 0.25,
            label=_legend(hessian, matrix, shares, edges),
        )
        ax.stairs(shares, edges, color=matrix_colour(matrix), alpha=1.0 if first else 0.4, linewidth=0.6)
        rows.append(
            pd.DataFrame(
                {
                    "variant": hessian.variant,
                    "block": matrix,
                    "bin_low": edges[:-1],
                    "bin_high": edges[1:],
                    "share": shares,
                }
            )
        )
    set_decades(ax, "x")
    ax.set_xlim(edges[0], edges[-1])
    ax.set_xlabel("absolute value of an entry")
    label_side(ax, "share of entries")
    ax.set_ylim(0, ax.get_ylim()[1] * (1 + 0.1 * len(blocks)))  # room for the legend above the bars
    ax.legend(loc="upper left", reverse=True)
    return pd.concat(rows[::-1], ignore_index=True)


def _legend(hessian: StoredHessian, weight: str, shares: NDArray[Any], edges: NDArray[Any]) -> str:
    peak = float(np.sqrt(edges[:-1] * edges[1:])[shares.argmax()])
    name = hessian.variant.rpartition("=")[2]
    block = pair_words(weight, weight) + (f", {plain(name)}" if name else "")
    zeros = 100 * float((hessian.block(weight) == 0).mean())
    return f"{block}: peak at {peak:.1e}" + (f", {zeros:.0f} % exactly 0" if zeros >= 0.5 else "")


def describe(hessian: StoredHessian) -> str:
    """Return which Hessian is drawn, for the note."""
    where = "" if np.isnan(hessian.sigma) else f" at σ = {hessian.sigma:g}"
    when = "" if np.isnan(hessian.step) else f", step {hessian.step:g}"
    return f"Full Hessian{where}, seed {hessian.seed}{when}."


def setting_of(folder: Path) -> str:
    """Return the settings that matter, for the note."""
    return setting_words((read_manifest(folder) or {}).get("config", {}), pd.DataFrame(), SIGMA)


def picked(hessians: list[StoredHessian], variant: str | None) -> list[StoredHessian]:
    """Return the Hessians of a variant (None: all). Raises UserError when there is none."""
    chosen = [hessian for hessian in hessians if variant in (None, hessian.variant)]
    if not chosen:
        raise UserError(
            "the figure's variant was not measured",
            got=variant,
            allowed=", ".join(hessian.variant or "(none)" for hessian in hessians),
            remedy="run the sweep with its own sweep.vary, or set figure.options",
        )
    return chosen
