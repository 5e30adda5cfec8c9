"""The layouts of the core, each with its drawing function, options and requirements."""

from collections.abc import Collection

from hessfig.figures.parts import STEPS, FigureLayout, FigureSpec, Requires


def _chosen_approximations(spec: FigureSpec) -> Collection[str]:
    """Return the quantities of which the layout `approximations` requires one."""
    from hessfig.figures.layouts.approximation_maps import number_of, rows_of

    return rows_of(number_of(spec))


_HERE = "hessfig.figures.layouts"
_GROWTH = ("quantity", "index", "words")
_NUMBERS = Requires(
    "approximations", _chosen_approximations, "approximations", "approximations"
)
_SINKS = Requires("sink_mass", sweep="language_sinks")
CORE_LAYOUTS: dict[str, FigureLayout] = {
    "growth": FigureLayout(f"{_HERE}.growth_curves:growth", _GROWTH),
    "growth_by_depth": FigureLayout(f"{_HERE}.growth_curves:growth_by_depth", _GROWTH),
    "linear_axes": FigureLayout(f"{_HERE}.growth_curves:linear_axes", _GROWTH),
    "one_panel": FigureLayout(f"{_HERE}.growth_curves:one_panel", (*_GROWTH, "part")),
    "blocks": FigureLayout(
        f"{_HERE}.block_maps:blocks", ("quantity", "index", "at", "sigma")
    ),
    "pairs": FigureLayout(f"{_HERE}.block_maps:pairs"),
    "entries": FigureLayout(
        f"{_HERE}.hessian_maps:entries", ("variant", "weights", "blocks")
    ),
    "histograms": FigureLayout(f"{_HERE}.hessian_maps:histograms", ("blocks",)),
    "lines": FigureLayout(
        f"{_HERE}.comparisons:lines",
        ("quantity", "index", "sigmas", "slopes"),
        takes=("x", "colour", "dashes"),
    ),
    "bars": FigureLayout(
        f"{_HERE}.comparisons:bars", ("quantity", "index", "at"), takes=("colour",)
    ),
    "heat": FigureLayout(
        f"{_HERE}.heat_maps:heat", ("quantity", "quantities", "index", "at")
    ),
    "power_laws": FigureLayout(
        f"{_HERE}.power_laws:power_laws", ("quantity", "chance", "published", "repeats")
    ),
    "approximations": FigureLayout(
        f"{_HERE}.approximation_maps:approximations", ("number", "at"), (_NUMBERS,)
    ),
    "training": FigureLayout(f"{_HERE}.courses:training", (), (STEPS,)),
    "curvature_flow": FigureLayout(
        f"{_HERE}.courses:curvature_flow", ("quantity", "parts"), (STEPS,)
    ),
    "attention_mass": FigureLayout(
        f"{_HERE}.courses:attention_mass", (), (STEPS, _SINKS)
    ),
}
