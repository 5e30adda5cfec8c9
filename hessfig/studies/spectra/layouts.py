"""The layouts of this study: spectra, distances between them, sinks, and extreme eigenvalues against scales."""

from hessfig.figures.parts import FigureLayout

_HERE = "hessfig.studies.spectra"
LAYOUTS = {
    "spectra": FigureLayout(
        f"{_HERE}.eigenvalue_plots:spectra",
        ("width", "variance", "part", "floor", "weights"),
    ),
    "heterogeneity": FigureLayout(
        f"{_HERE}.distance_maps:heterogeneity", ("kernel", "variance", "width")
    ),
    "sinks": FigureLayout(f"{_HERE}.scaling:sinks", ("block",)),
    "gauss_newton": FigureLayout(f"{_HERE}.scaling:gauss_newton", ("block", "up_to")),
    "weight_norms": FigureLayout(
        f"{_HERE}.scaling:weight_norms", ("quantity", "columns")
    ),
}
