"""The layout of this study: losses of k + 1 and k samples."""

from hessfig.figures.parts import FigureLayout, Requires

_DIFFERENCES = (
    Requires("landscape_difference"),
    Requires("landscape_difference", ("landscape_null",)),
)
LAYOUTS = {
    "landscape": FigureLayout(
        "hessfig.studies.landscape.landscape_charts:landscape", (), _DIFFERENCES
    )
}
