"""Names of the rows of this study."""

from hessfig.terms import NamedDirection, Optimiser, SliceDirection, StepNorm

_WHOLE = (
    *(
        f"{heading}_direction"
        for heading in NamedDirection
        if heading not in (NamedDirection.update, NamedDirection.singular)
    ),
    *(f"{rule}_update" for rule in Optimiser),
)
_OF_PARTS = ("curvature", "product", "cosine")
_OF_DIRECTIONS = ("slope", "length")
_NUMBERS = (
    *_OF_PARTS,
    "within_weights",
    "across_weights",
    "within_layers",
    "across_layers",
    *_OF_DIRECTIONS,
)
ALONG = (
    *(f"{name}_{number}" for name in _WHOLE for number in _NUMBERS),
    *(f"singular_direction_{number}" for number in (*_OF_PARTS, "value")),
    *("singular_decay", "curvature_exponent", "curvature_decay", "curvature_positive"),
)
WITHOUT_PART = {
    *(f"{name}_{number}" for name in _WHOLE for number in _OF_DIRECTIONS),
    *("singular_direction_value", "singular_decay"),
}
CRITICAL_POINT = (
    *("critical_gradient", "critical_loss", "critical_index", "critical_flat"),
    *("critical_distance", "critical_start"),
)
SLICES = (
    *(
        f"{ray}_ray_{number}"
        for ray in SliceDirection
        for number in ("slope", "curvature", "departure")
    ),
    *("convex_directions", "flat_directions", "concave_directions"),
)
DESCENT = (
    "descent_horizon",
    "descent_rate",
    "descent_run_curvature",
    "descent_line_curvature",
)
NORM_SHARPNESS = (
    *(
        f"{norm}_{number}"
        for norm in StepNorm
        for number in ("sharpness", "steepest_curvature")
    ),
    "sharpness_edge",
)
