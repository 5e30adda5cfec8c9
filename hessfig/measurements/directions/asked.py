"""What enters the keys of slices, critical points and descents, and which networks are too large; without tensors."""

from __future__ import annotations

from hessfig.config.enums import Ray
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.measurements.quantity import Quantity
from hessfig.measurements.settings_and_costs import reads
from hessfig.terms import Group
from hessfig.weights import Layout

MOST_DENSE = 4096  # weights of a network whose Hessian is decomposed; a minute, and 0.5 GB
_LANCZOS = ("tolerance", "steps")
_NUMBERS = ("slope", "curvature", "departure")
_COUNTS = ("convex_directions", "flat_directions", "concave_directions")
_HOME = "hessfig.measurements.directions"


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


QUANTITIES = (
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
