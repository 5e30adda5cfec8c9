"""The quantities of this study, and checks that they can be measured with the given settings."""

from operator import attrgetter

from hessfig.config.checks import check_installed
from hessfig.config.enums import SliceDirection
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.measurements.quantity import Quantity
from hessfig.measurements.requirements import (
    MOST_DENSE,
    has_all_eigenvectors,
    leaves_the_weights,
)
from hessfig.measurements.settings_and_costs import OF_BLOCKS, reads
from hessfig.studies.directions.row_names import (
    ALONG,
    CRITICAL_POINT,
    DESCENT,
    NORM_SHARPNESS,
    SLICES,
)
from hessfig.terms import Group
from hessfig.weights import Layout


def check_rules(config: Config, layout: Layout) -> None:
    """Raise UserError for a step rule whose package is not installed."""
    del layout
    for rule in config.directions.rules:
        check_installed(rule, f"directions.rules: {rule}")


def check_slices(config: Config, layout: Layout) -> None:
    """Raise UserError for a direction of the bulk in a network that is too large for a full eigendecomposition."""
    size = layout.size(0, Group.all.value)
    asked = {*config.directions.along, *config.directions.plane}
    if not has_all_eigenvectors(size) and SliceDirection.bulk in asked:
        others = ",".join(
            direction
            for direction in config.directions.along
            if direction != SliceDirection.bulk
        )
        raise UserError(
            "directions.along, directions.plane: an eigenvector of the bulk takes all eigenvectors of the Hessian",
            got=f"bulk, with {size} weights",
            allowed=f"bulk with at most {MOST_DENSE} weights",
            remedy=f"'directions.along=[{others}]', or a smaller model.d_model",
        )


def check_critical(config: Config, layout: Layout) -> None:
    """Raise UserError for a network that is too large for a search with the whole Hessian at every step."""
    del config
    size = layout.size(0, Group.all.value)
    if not has_all_eigenvectors(size):
        raise UserError(
            "quantities=[critical_points]: every step of the search takes the whole Hessian",
            got=f"{size} weights",
            allowed=f"at most {MOST_DENSE} weights (minutes from a few hundred on)",
            remedy="model.d_model=4",
        )


_HERE = "hessfig.studies.directions"
QUANTITIES = (
    Quantity(
        "slices",
        f"{_HERE}.slices",
        reads(
            "products",
            directions=("along", "plane", "reach", "points", "departure"),
            spectrum=("tolerance", "steps", "cut"),
        ),
        check_slices,
        gives=SLICES,
        knows_decay=True,
        walks=leaves_the_weights,
    ),
    Quantity(
        "critical_points",
        f"{_HERE}.walks",
        reads("products", directions=("evaluations", "tolerance"), spectrum=("cut",)),
        check_critical,
        gives=CRITICAL_POINT,
        knows_decay=True,
        walks=leaves_the_weights,
    ),
    Quantity(
        "descent",
        f"{_HERE}.walks",
        reads(
            "products",
            directions=("rate", "steps", "departure"),
            spectrum=("tolerance", "steps"),
        ),
        gives=DESCENT,
        knows_decay=True,
        walks=leaves_the_weights,
    ),
    Quantity(
        "along",
        f"{_HERE}.along",
        reads(
            *(*OF_BLOCKS, "training"),
            directions=("named", "rules", "gradients"),
            spectrum=("tolerance", "steps"),
        ),
        check_rules,
        serves=attrgetter("is_diagonal"),
        gives=ALONG,
        version=2,  # since 2, entries of a gradient that are rounding have no sign
        needs_optimiser="any",
    ),
    Quantity(
        "norm_sharpness",
        f"{_HERE}.norm_sharpness",
        reads("training", directions=("starts",), spectrum=("tolerance", "steps")),
        gives=NORM_SHARPNESS,
        version=2,  # since 2, searches go on until they are stationary, and state no error
        needs_optimiser="any",
    ),
)
