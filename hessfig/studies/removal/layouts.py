"""The layouts of this study: pruning, quantisation and influence."""

from hessfig.figures.parts import STEPS, FigureLayout, Requires
from hessfig.studies.removal.row_names import OF_INFLUENCE, OF_PRUNING, OF_QUANTISATION

_HERE = "hessfig.studies.removal"
_REMOVED = Requires("pruning", OF_PRUNING, "pruning", "such numbers")
_ROUNDED = Requires("quantisation", OF_QUANTISATION, "quantisation", "such numbers")
LAYOUTS = {
    "pruning": FigureLayout(
        f"{_HERE}.compression_curves:pruning", ("at", "saliencies"), (_REMOVED,)
    ),
    "quantisation": FigureLayout(
        f"{_HERE}.compression_curves:quantisation", ("at",), (_ROUNDED,)
    ),
    "influence": FigureLayout(
        f"{_HERE}.influence_chart:influence",
        (),
        (STEPS, Requires("influence", OF_INFLUENCE)),
    ),
}
