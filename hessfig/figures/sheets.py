"""The registry of layouts, and the one call that draws a figure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hessfig.errors import UserError, did_you_mean, unknown_name
from hessfig.figures.layouts.approximation_maps import approximations, influence, number_of, rows_of
from hessfig.figures.layouts.block_maps import blocks, pairs
from hessfig.figures.layouts.comparisons import bars, lines
from hessfig.figures.layouts.component_charts import components, ratio_courses, sgd_gap
from hessfig.figures.layouts.compression_curves import pruning, quantisation
from hessfig.figures.layouts.courses import attention_mass, curvature_flow, training
from hessfig.figures.layouts.direction_charts import critical_points, norm_edges, slices, trajectories
from hessfig.figures.layouts.distance_maps import heat, heterogeneity
from hessfig.figures.layouts.eigenvalue_plots import spectra
from hessfig.figures.layouts.growth_curves import growth, growth_by_depth, linear_axes, one_panel
from hessfig.figures.layouts.hessian_maps import entries, histograms
from hessfig.figures.layouts.landscapes import landscape, power_laws
from hessfig.figures.layouts.part_shares import ablation, score_split
from hessfig.figures.layouts.races import critical_batch, edge, heterogeneity_trained, race_of_rules, steps
from hessfig.figures.layouts.scaling import gauss_newton, sinks, weight_norms
from hessfig.figures.parts.chart_encoding import ChartEncoding, MapEncoding
from hessfig.figures.parts.figure_spec import STEPS, FigureSpec, Requires, Source
from hessfig.figures.parts.page import styled
from hessfig.figures.parts.panel_sheet import Page
from hessfig.figures.parts.saving import save_each
from hessfig.terms import OF_INFLUENCE, OF_PRUNING, OF_QUANTISATION

__all__ = ["LAYOUTS", "FigureLayout", "FigureSpec", "draw"]


@dataclass(frozen=True)
class FigureLayout:
    """A way of drawing a sweep: what draws its pages, which figure.options it takes, what it requires of the table.

    It `takes` some of x, colour and dashes.
    """

    pages: Callable[[FigureSpec, Source], Iterator[Page]]
    options: tuple[str, ...] = ("quantity", "index")
    requires: tuple[Requires, ...] = ()
    takes: tuple[str, ...] = ()

    def draw(self, spec: FigureSpec, folder: Path) -> Iterator[Page]:
        """Yield the pages of a sweep. Raises UserError where it lacks what the layout requires."""
        source = Source(folder, spec.where)
        for one in self.requires:
            one.check(spec, source)
        yield from self.pages(spec, source)


_GROWTH = ("quantity", "index", "words")
_LANDSCAPE = (Requires("landscape_difference"), Requires("landscape_difference", ("landscape_null",)))
_NUMBERS = Requires("approximations", lambda spec: rows_of(number_of(spec)), "approximations", "approximations")
_REMOVED = Requires("pruning", OF_PRUNING, "pruning", "such numbers")
_ROUNDED = Requires("quantisation", OF_QUANTISATION, "quantisation", "such numbers")
_SINKS = Requires("sink_mass", sweep="language_sinks")
LAYOUTS: dict[str, FigureLayout] = {
    "growth": FigureLayout(growth, _GROWTH),
    "growth_by_depth": FigureLayout(growth_by_depth, _GROWTH),
    "linear_axes": FigureLayout(linear_axes, _GROWTH),
    "ablation": FigureLayout(ablation, ("sigmas",)),
    "score_split": FigureLayout(score_split, ()),
    "blocks": FigureLayout(blocks, ("quantity", "index", "at", "sigma")),
    "entries": FigureLayout(entries, ("variant", "weights", "blocks")),
    "histograms": FigureLayout(histograms, ("opaque", "faded", "blocks")),
    "one_panel": FigureLayout(one_panel, (*_GROWTH, "part")),
    "pairs": FigureLayout(pairs),
    "lines": FigureLayout(lines, ("quantity", "index", "sigmas", "slopes"), takes=("x", "colour", "dashes")),
    "landscape": FigureLayout(landscape, (), _LANDSCAPE),
    "power_laws": FigureLayout(power_laws, ("quantity", "chance", "published", "repeats")),
    "heat": FigureLayout(heat, ("quantity", "quantities", "index", "at")),
    "approximations": FigureLayout(approximations, ("number", "at"), (_NUMBERS,)),
    "pruning": FigureLayout(pruning, ("at",), (_REMOVED,)),
    "quantisation": FigureLayout(quantisation, ("at",), (_ROUNDED,)),
    "bars": FigureLayout(bars, ("quantity", "index", "at")),
    "spectra": FigureLayout(spectra, ("width", "variance", "part", "floor", "weights")),
    "heterogeneity": FigureLayout(heterogeneity, ("kernel", "variance", "width")),
    "sinks": FigureLayout(sinks, ("block",)),
    "gauss_newton": FigureLayout(gauss_newton, ("block", "up_to")),
    "weight_norms": FigureLayout(weight_norms, ("quantity", "columns")),
    "training": FigureLayout(training, (), (STEPS,)),
    "curvature_flow": FigureLayout(curvature_flow, ("quantity", "parts"), (STEPS,)),
    "attention_mass": FigureLayout(attention_mass, (), (STEPS, _SINKS)),
    "heterogeneity_trained": FigureLayout(heterogeneity_trained, ("quantity",), (STEPS,)),
    "components": FigureLayout(components, ("quantity", "part")),
    "ratio_courses": FigureLayout(ratio_courses, (), (STEPS,)),
    "sgd_gap": FigureLayout(sgd_gap, (), (STEPS,)),
    "edge": FigureLayout(edge, ("quantity",), (STEPS,)),
    "steps": FigureLayout(steps, (), (STEPS,)),
    "critical_batch": FigureLayout(critical_batch, (), (STEPS,)),
    "slices": FigureLayout(slices, ()),
    "critical_points": FigureLayout(critical_points, (), (Requires("critical_points", ("critical_index",)),)),
    "trajectories": FigureLayout(trajectories, ()),
    "norm_edges": FigureLayout(norm_edges, (), (STEPS, Requires("norm_sharpness", ("sharpness_edge",)))),
    "influence": FigureLayout(influence, (), (STEPS, Requires("influence", OF_INFLUENCE))),
    "race": FigureLayout(race_of_rules, ("reference",), (STEPS,)),
}


def draw(spec: FigureSpec, outputs: Path, *, into: Path | None = None) -> list[Path]:
    """Draw `spec` from outputs/<sweep> into a folder (None: outputs/figures) and return the paths written.

    Width, note, formats and panels are those of `spec.paper`. Raises UserError for an unknown layout, for settings that
    the layout does not take, for panels that are not there, and for a sweep that was not run or whose table is bad.
    """
    return [path for _, paths in draw_charted(spec, outputs, into=into or outputs / "figures") for path in paths]


def draw_charted(
    spec: FigureSpec, outputs: Path, *, into: Path
) -> list[tuple[ChartEncoding | MapEncoding, list[Path]]]:
    """Draw `spec` as `draw` does; return what a chart of each page shows, and the paths of the page."""
    check(spec)
    with styled(spec.paper):
        pages = LAYOUTS[spec.layout].draw(spec, outputs / spec.sweep)
        return [(page.encoding, paths) for page, paths in save_each(pages, into, spec.name, spec.paper)]


def check(spec: FigureSpec) -> None:
    """Raise UserError for a layout that does not exist, or a setting that would have no effect in it."""
    if spec.layout not in LAYOUTS:
        what, otherwise = "figure.layout: there is no such layout", "for example figure.layout=growth"
        raise unknown_name(what, spec.layout, LAYOUTS, otherwise)
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
