"""What enters the keys of slices, critical points and descents, and which networks are too large; without tensors."""

from __future__ import annotations

from operator import attrgetter

from hessfig.config.enums import Heading, Ray
from hessfig.config.schema import Config
from hessfig.config.training_checks import check_installed
from hessfig.errors import UserError
from hessfig.measurements.quantity import Quantity
from hessfig.measurements.settings_and_costs import OF_BLOCKS, reads
from hessfig.terms import Group, Optimiser, StepNorm
from hessfig.weights import Layout

MOST_DENSE = 4096  # weights of a network whose Hessian is decomposed; a minute, and 0.5 GB
_LANCZOS = ("tolerance", "steps")
_NUMBERS = ("slope", "curvature", "departure")
_COUNTS = ("convex_directions", "flat_directions", "concave_directions")
_HOME = "hessfig.measurements.directions"
_OF_PARTS = ("curvature", "product", "cosine")
_SPLIT = ("within_weights", "across_weights", "within_layers", "across_layers")
_WHOLE_DIRECTIONS = (
    *(f"{one}_direction" for one in Heading if one not in (Heading.update, Heading.singular)),
    *(f"{rule}_update" for rule in Optimiser),
)
_OF_EXPONENTS = ("singular_decay", "curvature_exponent", "curvature_decay", "curvature_positive")
_ALONG = (
    *(f"{name}_{number}" for name in _WHOLE_DIRECTIONS for number in (*_OF_PARTS, *_SPLIT, "slope", "length")),
    *(f"singular_direction_{number}" for number in (*_OF_PARTS, "value")),
    *_OF_EXPONENTS,
)


def is_dense(size: int) -> bool:
    """Whether all eigenvectors of a Hessian of this size are computed."""
    return size <= MOST_DENSE


def _check_slices(config: Config, layout: Layout) -> None:
    """Raise UserError for a direction of the bulk in a network whose eigenvectors are not all computed."""
    size, asked = layout.size(0, Group.all.value), {*config.directions.along, *config.directions.plane}
    if not is_dense(size) and Ray.bulk in asked:
        others = ",".join(one for one in config.directions.along if one != Ray.bulk)
        raise UserError(
            "directions.along, directions.plane: an eigenvector of the bulk takes all eigenvectors of the Hessian",
            got=f"bulk, with {size} weights",
            allowed=f"bulk with at most {MOST_DENSE} weights",
            remedy=f"'directions.along=[{others}]', or a smaller model.d_model",
        )


def _check_critical(config: Config, layout: Layout) -> None:
    """Raise UserError for a network that is too large for a search that takes its whole Hessian at every step."""
    del config
    size = layout.size(0, Group.all.value)
    if not is_dense(size):
        raise UserError(
            "quantities=[critical_points]: every step of the search takes the whole Hessian",
            got=f"{size} weights",
            allowed=f"at most {MOST_DENSE} weights (minutes from a few hundred on)",
            remedy="model.d_model=4",
        )


def _check_along(config: Config, layout: Layout) -> None:
    """Raise UserError for a step rule of a package that is not installed."""
    del layout
    for rule in config.directions.rules:
        check_installed(rule, f"directions.rules: {rule}")


QUANTITIES = (
    Quantity(
        "along",
        f"{_HOME}.along",
        reads(*OF_BLOCKS, "training", directions=("named", "rules", "gradients"), spectrum=_LANCZOS),
        _check_along,
        serves=attrgetter("is_diagonal"),
        gives=_ALONG,
        needs_optimiser="any",
        may_be_undefined=_ALONG,
    ),
    Quantity(
        "norm_sharpness",
        f"{_HOME}.norm_sharpness",
        reads("training", directions=("starts",), spectrum=_LANCZOS),
        gives=(
            *(f"{norm}_{number}" for norm in StepNorm for number in ("sharpness", "steepest_curvature")),
            "sharpness_edge",
        ),
        needs_optimiser="any",
    ),
    Quantity(
        "slices",
        f"{_HOME}.slices",
        reads("products", directions=("along", "plane", "reach", "points", "departure"), spectrum=(*_LANCZOS, "cut")),
        _check_slices,
        gives=(*(f"{ray}_ray_{number}" for ray in Ray for number in _NUMBERS), *_COUNTS),
        knows_decay=True,
        may_be_undefined=tuple(f"{ray}_ray_departure" for ray in Ray),
    ),
    Quantity(
        "critical_points",
        f"{_HOME}.critical_points",
        reads("products", directions=("evaluations", "tolerance"), spectrum=("cut",)),
        _check_critical,
        gives=(
            *("critical_gradient", "critical_loss", "critical_index", "critical_flat"),
            *("critical_distance", "critical_start"),
        ),
        knows_decay=True,
    ),
    Quantity(
        "descent",
        f"{_HOME}.gradient_descent",
        reads("products", directions=("rate", "steps", "departure"), spectrum=_LANCZOS),
        gives=("descent_horizon", "descent_rate", "descent_run_curvature", "descent_line_curvature"),
        knows_decay=True,
        may_be_undefined=("descent_horizon",),
    ),
)
