"""The quantities: one row each with where its numbers are made, and those of the user's own files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hessfig.config.user_code import find, guarded, is_own, source
from hessfig.errors import UserError, did_you_mean
from hessfig.measurements import approximable
from hessfig.measurements import quantity as names
from hessfig.measurements import requirements as need
from hessfig.measurements import settings_and_costs as of
from hessfig.measurements.directions.asked import QUANTITIES
from hessfig.measurements.quantity import Quantity
from hessfig.terms import NUMBERS_OF_APPROXIMATIONS, OF_PRUNING, OF_QUANTISATION, Approximation

KEY = "quantities"
_NORMS, _TRACES = "hessfig.measurements.block_norms", "hessfig.measurements.traces"
_EIGENVALUES, _SAMPLES = "hessfig.measurements.eigenvalues", "hessfig.measurements.sample_hessians"
_STATES, _STABILITY = "hessfig.measurements.training_dynamics", "hessfig.measurements.stability"
_COMPRESSION = "hessfig.measurements.compression"
_LANDSCAPE, _MOMENTS = "hessfig.measurements.landscape", "hessfig.measurements.moments"
_ROWS = (
    Quantity("frobenius", _NORMS, settings=of.norm_settings, check=need.check_norms, operations=of.norm_operations),
    Quantity(
        "hessian", _TRACES, settings=of.hessian_settings, check=need.check_hessian, operations=of.hessian_operations
    ),
    Quantity(
        "trace",
        _TRACES,
        settings=of.trace_settings,
        check=need.check_trace,
        operations=of.norm_operations,
        serves=need.is_diagonal,
    ),
    Quantity(
        "density",
        _EIGENVALUES,
        settings=of.spectrum_settings("steps", "num_probes", "probes"),
        operations=of.density_operations,
        serves=need.is_diagonal,
        gives=("density_mean", "density_second_moment", "density_quantile"),
    ),
    *(
        Quantity(
            f"{end}_eigenvalue",
            _EIGENVALUES,
            settings=of.spectrum_settings("k", "tolerance", "steps"),
            check=need.check_count,
            operations=of.extreme_operations,
            serves=need.is_diagonal,
        )
        for end in ("largest", "smallest")
    ),
    Quantity(
        "spectrum",
        _EIGENVALUES,
        settings=of.spectrum_settings("k", "cut"),
        check=need.check_spectrum,
        operations=of.dense_operations,
        serves=need.is_diagonal,
        gives=(
            *("largest_eigenvalue", "smallest_eigenvalue", "share_negative", "effective_rank"),
            *("condition_number", "rank", "eigenvalue_quantile"),
        ),
        version=2,  # since 2, condition_number and effective_rank are those of indefinite blocks too
    ),
    Quantity(
        "accuracy",
        _STATES,
        settings=of.accuracy_settings,
        check=partial(need.check_task, "accuracy"),
        gives=("accuracy", "cascade_accuracy"),
    ),
    Quantity(
        "batch_sharpness", _STABILITY, settings=of.sharpness_settings, check=partial(need.check_task, "batch_sharpness")
    ),
    Quantity(
        "critical_step",
        _STABILITY,
        settings=of.training_settings,
        check=partial(need.check_step, "critical_step"),
        gives=("critical_step", "critical_sharpness"),
    ),
    Quantity("gradient_covariance", _STATES, gives=("gradient_covariance", "gradient_covariance_eigenvalue")),
    Quantity("gradient_norm", _STATES, settings=of.diagonal_settings, order=1),
    Quantity("loss", _STATES, order=0),
    Quantity(
        "held_out_loss",
        _STATES,
        settings=of.accuracy_settings,
        check=partial(need.check_task, "held_out_loss"),
        gives=("held_out_loss", "uniform_loss", "unigram_loss"),
    ),
    Quantity(
        "preconditioned_eigenvalue",
        _STABILITY,
        settings=of.preconditioned_settings,
        check=partial(need.check_preconditioner, "preconditioned_eigenvalue"),
    ),
    Quantity("adaptive_sharpness", _STABILITY, settings=of.scaled_settings),
    Quantity("jacobian_norm", _MOMENTS, settings=of.probe_settings, check=need.check_jacobian, serves=need.is_diagonal),
    *(Quantity(f"moment_{order}", _MOMENTS, check=need.check_moments) for order in (1, 2, 3)),
    Quantity("zero_share", _MOMENTS, settings=of.dense_settings, check=need.check_dense),
    Quantity("noise_scale", _STATES),
    Quantity(
        "predicted_decrease",
        _STABILITY,
        settings=of.training_settings,
        check=partial(need.check_decrease, "predicted_decrease"),
        gives=("predicted_decrease", "true_decrease", "decrease_ratio"),
    ),
    Quantity("num_parameters", _STATES, settings=of.diagonal_settings, serves=need.is_diagonal, of_loss=False),
    Quantity("residual_norm", _STATES, check=partial(need.check_layers, "residual_norm")),
    Quantity(
        "score_spread",
        _STATES,
        check=partial(need.check_attention, "score_spread"),
        gives=("score_spread", "pattern_spread"),
    ),
    Quantity("sink_mass", _STATES, check=partial(need.check_attention, "sink_mass"), gives=("sink_mass", "key_mass")),
    Quantity(
        "stability_threshold",
        _STABILITY,
        settings=of.training_settings,
        check=partial(need.check_rate, "stability_threshold"),
        gives=("stability_threshold", "learning_rate"),
        of_loss=False,
    ),
    Quantity(
        "training_cost",
        _STATES,
        settings=of.training_settings,
        check=partial(need.check_task, "training_cost"),
        gives=("training_cost", "hessian_products", "looks", "update_seconds", "look_seconds"),
        of_loss=False,
    ),
    Quantity("weight_norm", _STATES, settings=of.diagonal_settings, order=0, of_loss=False),
    Quantity(
        "hessian_distance",
        _SAMPLES,
        settings=of.distance_settings,
        check=need.check_distance,
        gives=(
            *("hessian_distance", "hessian_distance_null", "subset_norm"),
            *("subset_largest_eigenvalue", "subset_smallest_eigenvalue", "subset_condition_number"),
        ),
    ),
    Quantity(
        "landscape_difference",
        _LANDSCAPE,
        settings=of.landscape_settings("distance", "direction", "curvatures"),
        check=need.check_samples,
        gives=(
            *("landscape_difference", "landscape_rms", "landscape_prediction", "landscape_null", "landscape_bound"),
            *("largest_loss", "largest_curvature", "directional_curvature"),
            *("prediction_correlation", "prediction_slope"),
        ),
    ),
    Quantity(
        "approximations",
        "hessfig.measurements.approximations",
        settings=approximable.approximation_settings,
        check=approximable.check_approximations,
        serves=need.is_diagonal,
        gives=tuple(f"{name}_{number}" for name in Approximation for number in NUMBERS_OF_APPROXIMATIONS),
        version=2,  # since 2, K-FAC's inputs are those at all positions, and shared keys have their own heads
    ),
    Quantity(
        "pruning",
        f"{_COMPRESSION}.pruning",
        settings=of.compression_settings("damping", "shares"),
        check=need.check_dense,
        serves=need.is_diagonal,
        gives=OF_PRUNING,
        version=2,  # since 2, K-FAC as in approximations, no rounding to float32, and ties where weights change nothing
    ),
    Quantity(
        "quantisation",
        f"{_COMPRESSION}.quantisation",
        settings=of.compression_settings("damping", "bits"),
        check=need.check_dense,
        serves=need.is_diagonal,
        gives=OF_QUANTISATION,
        version=2,  # since 2, K-FAC is that of approximations, and GPTQ has the inputs at all positions
    ),
    Quantity(
        "landscape_integrals",
        _LANDSCAPE,
        settings=of.landscape_settings("draws", "spread"),
        check=need.check_samples,
        gives=("delta_1", "delta_2", "delta_2_null"),
    ),
    Quantity(
        "stationarity",
        _LANDSCAPE,
        settings=of.landscape_settings(),
        check=need.check_samples,
        gives=("stationarity", "stationarity_rms", "stationarity_expected", "stationarity_null"),
    ),
    *QUANTITIES,
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
