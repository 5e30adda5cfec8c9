"""The registry of layouts, and the one call that draws a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hessfig.errors import UserError, did_you_mean
from hessfig.figures.layouts.approximation_maps import approximations
from hessfig.figures.layouts.block_maps import blocks, pairs
from hessfig.figures.layouts.comparisons import ablation, bars, lines
from hessfig.figures.layouts.component_charts import components
from hessfig.figures.layouts.compression_curves import pruning, quantisation
from hessfig.figures.layouts.courses import attention_mass, curvature_flow, training
from hessfig.figures.layouts.direction_charts import critical_points, slices, trajectories
from hessfig.figures.layouts.distance_maps import heat, heterogeneity
from hessfig.figures.layouts.eigenvalue_plots import spectra
from hessfig.figures.layouts.growth_curves import growth, growth_by_depth, linear_axes, one_panel
from hessfig.figures.layouts.hessian_maps import entries, histograms
from hessfig.figures.layouts.landscapes import landscape, power_laws
from hessfig.figures.layouts.races import critical_batch, edge, heterogeneity_trained, race_of_rules, steps
from hessfig.figures.layouts.scaling import gauss_newton, sinks, weight_norms
from hessfig.figures.layouts.score_split import score_split
from hessfig.figures.parts.figure_spec import FigureSpec
from hessfig.figures.parts.page import Page, styled
from hessfig.figures.parts.saving import save_sheets

__all__ = ["LAYOUTS", "FigureSpec", "Layout", "draw"]


@dataclass(frozen=True)
class Layout:
    """A way of drawing a sweep: what draws it, which of x, colour and dashes it takes, which figure.options."""

    draw: Callable[[FigureSpec, Path], Iterator[Page]]
    options: tuple[str, ...] = ("quantity", "index")
    takes: tuple[str, ...] = ()


_GROWTH = ("quantity", "index", "words")
LAYOUTS: dict[str, Layout] = {
    "growth": Layout(growth, options=_GROWTH),
    "growth_by_depth": Layout(growth_by_depth, options=_GROWTH),
    "linear_axes": Layout(linear_axes, options=_GROWTH),
    "ablation": Layout(ablation, options=("sigmas",)),
    "score_split": Layout(score_split, options=()),
    "blocks": Layout(blocks, options=("quantity", "index", "at", "sigma")),
    "entries": Layout(entries, options=("variant", "weights", "blocks")),
    "histograms": Layout(histograms, options=("opaque", "faded", "blocks")),
    "one_panel": Layout(one_panel, options=(*_GROWTH, "part")),
    "pairs": Layout(pairs),
    "lines": Layout(lines, takes=("x", "colour", "dashes"), options=("quantity", "index", "sigmas")),
    "landscape": Layout(landscape, options=()),
    "power_laws": Layout(power_laws, options=("quantity", "chance", "published")),
    "heat": Layout(heat, options=("quantity", "quantities", "index", "at")),
    "approximations": Layout(approximations, options=("number", "at")),
    "pruning": Layout(pruning, options=("at",)),
    "quantisation": Layout(quantisation, options=("at",)),
    "bars": Layout(bars, options=("quantity", "index", "at")),
    "spectra": Layout(spectra, options=("width", "variance", "part", "floor", "weights")),
    "heterogeneity": Layout(heterogeneity, options=("kernel", "variance", "width")),
    "sinks": Layout(sinks, options=("block",)),
    "gauss_newton": Layout(gauss_newton, options=("block",)),
    "weight_norms": Layout(weight_norms, options=("quantity", "columns")),
    "training": Layout(training, options=()),
    "curvature_flow": Layout(curvature_flow, options=("quantity", "parts")),
    "attention_mass": Layout(attention_mass, options=()),
    "heterogeneity_trained": Layout(heterogeneity_trained, options=("quantity",)),
    "components": Layout(components, options=("quantity", "part")),
    "edge": Layout(edge, options=("quantity",)),
    "steps": Layout(steps, options=()),
    "critical_batch": Layout(critical_batch, options=()),
    "slices": Layout(slices, options=()),
    "critical_points": Layout(critical_points, options=()),
    "trajectories": Layout(trajectories, options=()),
    "race": Layout(race_of_rules, options=("reference",)),
}


def draw(spec: FigureSpec, outputs: Path, *, into: Path | None = None) -> list[Path]:
    """Draw `spec` from outputs/<sweep> into a folder (None: outputs/figures) and return the paths written.

    Width, note, formats and panels are those of `spec.paper`. Raises UserError for an unknown layout, for settings that
    the layout does not take, for panels that are not there, and for a sweep that was not run or whose table is bad.
    """
    check(spec)
    with styled(spec.paper):
        pages = LAYOUTS[spec.layout].draw(spec, outputs / spec.sweep)
        return save_sheets(pages, into or outputs / "figures", spec.name, spec.paper)


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
                allowed=", ".join(layout.options) or "none: it takes no options",
                remedy=did_you_mean(key, layout.options) or "leave it out",
            )
