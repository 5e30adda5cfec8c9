"""Names of the rows of this study."""

from itertools import product

from hessfig.terms import NamedDirection, Optimiser, SliceDirection, StepNorm

_WHOLE = []
for _heading in NamedDirection:
    if _heading not in (NamedDirection.update, NamedDirection.singular):
        _WHOLE.append(f"{_heading}_direction")
for _rule in Optimiser:
    _WHOLE.append(f"{_rule}_update")
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
    *map("_".join, product(_WHOLE, _NUMBERS)),
    *(f"singular_direction_{number}" for number in (*_OF_PARTS, "value")),
    *("singular_decay", "curvature_exponent", "curvature_decay", "curvature_positive"),
)
WITHOUT_PART = (
    *map("_".join, product(_WHOLE, _OF_DIRECTIONS)),
    *("singular_direction_value", "singular_decay"),
)
CRITICAL_POINT = (
    *("critical_gradient", "critical_loss", "critical_index", "critical_flat"),
    *("critical_distance", "critical_start"),
)
SLICES = (
    *map("_ray_".join, product(SliceDirection, ("slope", "curvature", "departure"))),
    *("convex_directions", "flat_directions", "concave_directions"),
)
DESCENT = (
    "descent_horizon",
    "descent_rate",
    "descent_run_curvature",
    "descent_line_curvature",
)
NORM_SHARPNESS = (
    *map("_".join, product(StepNorm, ("sharpness", "steepest_curvature"))),
    "sharpness_edge",
)
