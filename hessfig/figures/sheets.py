"""The registry of layouts, and the one call that draws a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hessfig.errors import UserError, did_you_mean
from hessfig.figures.layouts.ablation import ablation
from hessfig.figures.layouts.bars import bars
from hessfig.figures.layouts.blocks import blocks
from hessfig.figures.layouts.entries import entries
from hessfig.figures.layouts.growth.linear_axes import linear_axes
from hessfig.figures.layouts.growth.log_axes import growth
from hessfig.figures.layouts.growth.one_panel import one_panel
from hessfig.figures.layouts.growth.overview import growth_by_depth
from hessfig.figures.layouts.heat import heat
from hessfig.figures.layouts.histograms import histograms
from hessfig.figures.layouts.lines import lines
from hessfig.figures.layouts.pairs import pairs
from hessfig.figures.parts.save import Page, save_page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import styled

__all__ = ["LAYOUTS", "FigureSpec", "Layout", "draw"]


@dataclass(frozen=True)
class Layout:
    """A way of drawing a sweep: what draws it, which of x, colour and dashes it takes, which figure.options."""

    draw: Callable[[FigureSpec, Path], Iterator[Page]]
    options: tuple[str, ...] = ("quantity", "index")
    takes: tuple[str, ...] = ()


LAYOUTS: dict[str, Layout] = {
    "growth": Layout(growth),
    "growth_by_depth": Layout(growth_by_depth),
    "linear_axes": Layout(linear_axes),
    "ablation": Layout(ablation, options=("claim", "sigmas")),
    "blocks": Layout(blocks, options=("quantity", "index", "at", "sigma")),
    "entries": Layout(entries, options=("variant", "weights", "blocks")),
    "histograms": Layout(histograms, options=("opaque", "faded", "blocks")),
    "one_panel": Layout(one_panel, options=("quantity", "index", "part")),
    "pairs": Layout(pairs),
    "lines": Layout(lines, takes=("x", "colour", "dashes")),
    "heat": Layout(heat, options=("quantity", "quantities", "index", "at")),
    "bars": Layout(bars, options=("quantity", "index", "at")),
}


def draw(spec: FigureSpec, outputs: Path) -> list[Path]:
    """Draw `spec` from outputs/<sweep> into outputs/figures and return the paths written.

    Raises UserError for an unknown layout, for settings that the layout does not take, and for a sweep that was not
    run or whose table is bad.
    """
    check(spec)
    with styled():
        pages = LAYOUTS[spec.layout].draw(spec, outputs / spec.sweep)
        return [path for page in pages for path in save_page(page, outputs / "figures", spec.name)]


def check(spec: FigureSpec) -> None:
    """Raise UserError for a layout that does not exist, or a setting that would have no effect in it."""
    if spec.layout not in LAYOUTS:
        raise UserError(
            "figure.layout: there is no such layout",
            got=spec.layout,
            allowed=", ".join(LAYOUTS),
            remedy=did_you_mean(spec.layout, LAYOUTS) or "for example figure.layout=growth",
        )
    layout = LAYOUTS[spec.layout]
    for key in ("x", "colour", "dashes"):
        if getattr(spec, key) is not None and key not in layout.takes:
            takers = [f"figure.layout={name}" for name, other in LAYOUTS.items() if key in other.takes]
            raise UserError(
                f"figure.{key}: the layout {spec.layout} does not take it",
                got=f"figure.{key}={getattr(spec, key)}",
                allowed="no such setting with this layout",
                remedy=" or ".join(takers),
            )
    for key in spec.options:
        if key not in layout.options:
            raise UserError(
                f"figure.options.{key}: the layout {spec.layout} does not take it",
                got=f"figure.options.{key}={spec.options[key]}",
                allowed=", ".join(layout.options),
                remedy=did_you_mean(key, layout.options) or "leave it out",
            )
