"""The quantities: one row each with where its numbers are made, and those of the user's own files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hessfig.config.user_code import find, guarded, is_own, source
from hessfig.errors import UserError, did_you_mean
from hessfig.measurements import quantity as names
from hessfig.measurements import requirements as need
from hessfig.measurements import settings_and_costs as of
from hessfig.measurements.quantity import Quantity

KEY = "quantities"
_ROWS = (
    Quantity(
        "frobenius",
        "hessfig.measurements.block_norms:frobenius",
        settings=of.norm_settings,
        check=need.check_norms,
        operations=of.norm_operations,
    ),
    Quantity(
        "hessian", "hessfig.measurements.traces:hessian", check=need.check_hessian, operations=of.hessian_operations
    ),
    Quantity(
        "trace",
        "hessfig.measurements.traces:trace",
        settings=of.trace_settings,
        check=need.check_trace,
        operations=of.norm_operations,
        serves=need.is_diagonal,
    ),
    Quantity(
        "density",
        "hessfig.measurements.eigenvalues:density",
        settings=of.spectrum_settings("steps", "num_probes", "probes"),
        operations=of.density_operations,
        serves=need.is_diagonal,
        gives=("density_mean", "density_second_moment", "density_quantile"),
    ),
    Quantity(
        "largest_eigenvalue",
        "hessfig.measurements.eigenvalues:largest_eigenvalue",
        settings=of.spectrum_settings("k", "tolerance", "steps"),
        check=need.check_count,
        operations=of.extreme_operations,
        serves=need.is_diagonal,
    ),
    Quantity(
        "smallest_eigenvalue",
        "hessfig.measurements.eigenvalues:smallest_eigenvalue",
        settings=of.spectrum_settings("k", "tolerance", "steps"),
        check=need.check_count,
        operations=of.extreme_operations,
        serves=need.is_diagonal,
    ),
    Quantity(
        "spectrum",
        "hessfig.measurements.eigenvalues:spectrum",
        settings=of.spectrum_settings("k", "cut"),
        check=need.check_spectrum,
        operations=of.dense_operations,
        serves=need.is_diagonal,
        gives=(
            *("largest_eigenvalue", "smallest_eigenvalue", "share_negative", "effective_rank"),
            *("condition_number", "eigenvalue_quantile"),
        ),
    ),
    Quantity(
        "accuracy",
        "hessfig.measurements.training_dynamics:accuracy",
        settings=of.accuracy_settings,
        check=partial(need.check_task, "accuracy"),
        gives=("accuracy", "cascade_accuracy"),
    ),
    Quantity(
        "batch_sharpness",
        "hessfig.measurements.stability:batch_sharpness",
        settings=of.sharpness_settings,
        check=partial(need.check_task, "batch_sharpness"),
    ),
    Quantity(
        "critical_step",
        "hessfig.measurements.stability:critical_step",
        settings=of.training_settings,
        check=partial(need.check_step, "critical_step"),
        gives=("critical_step", "critical_sharpness"),
    ),
    Quantity(
        "gradient_covariance",
        "hessfig.measurements.training_dynamics:gradient_covariance",
        gives=("gradient_covariance", "gradient_covariance_eigenvalue"),
    ),
    Quantity("gradient_norm", "hessfig.measurements.training_dynamics:gradient_norm", settings=of.diagonal_settings),
    Quantity("loss", "hessfig.measurements.training_dynamics:loss"),
    Quantity(
        "preconditioned_eigenvalue",
        "hessfig.measurements.stability:preconditioned_eigenvalue",
        settings=of.preconditioned_settings,
        check=partial(need.check_preconditioner, "preconditioned_eigenvalue"),
    ),
    Quantity(
        "residual_norm",
        "hessfig.measurements.training_dynamics:residual_norm",
        check=partial(need.check_layers, "residual_norm"),
    ),
    Quantity(
        "score_spread",
        "hessfig.measurements.training_dynamics:score_spread",
        check=partial(need.check_attention, "score_spread"),
        gives=("score_spread", "pattern_spread"),
    ),
    Quantity(
        "stability_threshold",
        "hessfig.measurements.stability:stability_threshold",
        settings=of.training_settings,
        check=partial(need.check_rate, "stability_threshold"),
        gives=("stability_threshold", "learning_rate"),
    ),
    Quantity(
        "training_cost",
        "hessfig.measurements.training_dynamics:training_cost",
        settings=of.training_settings,
        check=partial(need.check_task, "training_cost"),
        gives=("training_cost", "hessian_products", "looks", "update_seconds", "look_seconds"),
    ),
    Quantity("weight_norm", "hessfig.measurements.training_dynamics:weight_norm", settings=of.diagonal_settings),
    Quantity(
        "hessian_distance",
        "hessfig.measurements.sample_hessians:hessian_distance",
        settings=of.distance_settings,
        check=need.check_distance,
        gives=(
            *("hessian_distance", "hessian_distance_null", "subset_norm"),
            *("subset_largest_eigenvalue", "subset_smallest_eigenvalue", "subset_condition_number"),
        ),
    ),
    Quantity(
        "landscape_difference",
        "hessfig.measurements.landscape:landscape_difference",
        settings=of.landscape_settings("distance", "direction", "curvatures"),
        check=need.check_samples,
        gives=(
            *("landscape_difference", "landscape_rms", "landscape_prediction", "landscape_null", "landscape_bound"),
            *("largest_loss", "largest_curvature", "directional_curvature"),
            *("prediction_correlation", "prediction_slope"),
        ),
    ),
    Quantity(
        "landscape_integrals",
        "hessfig.measurements.landscape:landscape_integrals",
        settings=of.landscape_settings("draws", "spread"),
        check=need.check_samples,
        gives=("delta_1", "delta_2", "delta_2_null"),
    ),
    Quantity(
        "stationarity",
        "hessfig.measurements.landscape:stationarity",
        settings=of.landscape_settings(),
        check=need.check_samples,
        gives=("stationarity", "stationarity_rms", "stationarity_expected", "stationarity_null"),
    ),
)
CATALOGUE = {row.name: row for row in _ROWS}

_MODULES_OF_0_2_0 = ("protocol", "blocks", "estimate")  # files written for it import from there what is in quantity now


def quantities() -> list[str]:
    """Return the names of the package's quantities."""
    return list(CATALOGUE)


def quantity(name: str, config_dir: str | None = None) -> Quantity:
    """Return the quantity called `name`, or that of the user's own code (FILE.py:NAME).

    Raises UserError when there is none.
    """
    if is_own(name):
        for module in _MODULES_OF_0_2_0:
            sys.modules.setdefault(f"hessfig.measurements.{module}", names)
        return _guarded(_checked(name, find(KEY, name, config_dir)), name)
    if name not in CATALOGUE:
        raise UserError(
            f"{KEY}: there is no such quantity",
            got=name,
            allowed=f"{', '.join(CATALOGUE)}, or FILE.py:NAME of your own",
            remedy=did_you_mean(name, CATALOGUE) or f"for example quantities=[{next(iter(CATALOGUE))}]",
        )
    return CATALOGUE[name]


def source_of(name: str, config_dir: str | None) -> str:
    """Return the hash of the file of a quantity of the user's own; none for the package's."""
    return source(name, config_dir) if is_own(name) else ""


def _guarded(own: Quantity, name: str) -> Quantity:
    """Return a user's quantity whose functions fail as UserErrors that name it."""

    def guard(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with guarded(KEY, name):
                return function(*arguments)

        return run

    return replace(
        own,
        measure=guard(own.measured),
        settings=guard(own.settings),
        check=guard(own.check),
        operations=guard(own.operations),
        serves=guard(own.serves),
    )


def _checked(name: str, found: object) -> Quantity:
    if not isinstance(found, Quantity):
        raise UserError(
            f"{KEY}: {name} is no quantity",
            got=type(found).__name__,
            allowed="a hessfig.measurements.quantity.Quantity",
            remedy="see docs/extending.md",
        )
    return found
