"""The registry of layouts, and the one call that draws a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hessfig.errors import UserError, did_you_mean
from hessfig.figures.layouts.ablation import ablation
from hessfig.figures.layouts.blocks import blocks
from hessfig.figures.layouts.entries import entries
from hessfig.figures.layouts.growth import growth
from hessfig.figures.layouts.histograms import histograms
from hessfig.figures.layouts.linear_axes import linear_axes
from hessfig.figures.layouts.one_panel import one_panel
from hessfig.figures.layouts.overview import growth_by_depth
from hessfig.figures.layouts.pairs import pairs
from hessfig.figures.parts.save import Page, save_page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import styled

__all__ = ["LAYOUTS", "FigureSpec", "draw"]

LAYOUTS: dict[str, Callable[[FigureSpec, Path], Iterator[Page]]] = {
    "growth": growth,
    "growth_by_depth": growth_by_depth,
    "linear_axes": linear_axes,
    "ablation": ablation,
    "blocks": blocks,
    "entries": entries,
    "histograms": histograms,
    "one_panel": one_panel,
    "pairs": pairs,
}


def draw(spec: FigureSpec, outputs: Path) -> list[Path]:
    """Draw `spec` from outputs/<sweep> into outputs/figures and return the paths written.

    Raises UserError for an unknown layout, and for a sweep that was not run or whose table is bad.
    """
    if spec.layout not in LAYOUTS:
        raise UserError(
            "figure.layout: there is no such layout",
            got=spec.layout,
            allowed=", ".join(LAYOUTS),
            remedy=did_you_mean(spec.layout, LAYOUTS),
        )
    with styled():
        pages = LAYOUTS[spec.layout](spec, outputs / spec.sweep)
        return [path for page in pages for path in save_page(page, outputs / "figures", spec.name)]
