"""The quantities: one row each with where its numbers are made, and those of the user's own files."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from hessfig import terms
from hessfig.config.enums import Heading, Ray
from hessfig.config.schema import Config
from hessfig.config.user_code import find, guarded, is_own, source
from hessfig.errors import UserError, did_you_mean
from hessfig.measurements import approximable
from hessfig.measurements import requirements as need
from hessfig.measurements import settings_and_costs as of
from hessfig.measurements.quantity import Quantity
from hessfig.terms import Approximation, Optimiser, StepNorm

KEY = "quantities"
_NORMS, _TRACES = "hessfig.measurements.block_norms", "hessfig.measurements.traces"
_EIGENVALUES, _SAMPLES = "hessfig.measurements.eigenvalues", "hessfig.measurements.sample_hessians"
_STATES, _STABILITY = "hessfig.measurements.training_dynamics", "hessfig.measurements.stability"
_COMPRESSION, _DIRECTIONS = "hessfig.measurements.compression", "hessfig.measurements.directions"
_LANDSCAPE, _MOMENTS = "hessfig.measurements.landscape", "hessfig.measurements.moments"
_OF_APPROXIMATIONS = tuple(f"{name}_{number}" for name in Approximation for number in terms.NUMBERS_OF_APPROXIMATIONS)
_WHOLE_DIRECTIONS = (
    *(f"{one}_direction" for one in Heading if one not in (Heading.update, Heading.singular)),
    *(f"{rule}_update" for rule in Optimiser),
)
_OF_PARTS = ("curvature", "product", "cosine")
_OF_DIRECTIONS = (
    *(*_OF_PARTS, "within_weights", "across_weights", "within_layers", "across_layers"),
    *("slope", "length"),
)
_ALONG = (
    *(f"{name}_{number}" for name in _WHOLE_DIRECTIONS for number in _OF_DIRECTIONS),
    *(f"singular_direction_{number}" for number in (*_OF_PARTS, "value")),
    *("singular_decay", "curvature_exponent", "curvature_decay", "curvature_positive"),
)


def _walking(config: Config) -> bool:
    """Return that a quantity leaves the weights, whatever the settings."""
    return True


_of_blocks = partial(Quantity, serves=attrgetter("is_diagonal"))
_ROWS = (
    Quantity("frobenius", _NORMS, of.norm_settings, need.check_norms, of.norm_operations, knows_decay=True),
    Quantity("hessian", _TRACES, of.hessian_settings, need.check_hessian, of.hessian_operations),
    _of_blocks(
        "trace",
        _TRACES,
        of.trace_settings,
        need.check_trace,
        of.norm_operations,
        needs=(need.GIVES_TRACES,),
        knows_decay=True,
    ),
    _of_blocks(
        "density",
        _EIGENVALUES,
        of.reads(*of.OF_BLOCKS, spectrum=("steps", "num_probes", "probes")),
        operations=of.density_operations,
        gives=("density_mean", "density_second_moment", "density_quantile"),
        knows_decay=True,
        holds="spectrum.steps",
    ),
    *(
        _of_blocks(
            f"{end}_eigenvalue",
            _EIGENVALUES,
            of.reads(*of.OF_BLOCKS, spectrum=("k", "tolerance", "steps")),
            need.check_count,
            of.extreme_operations,
            knows_decay=True,
        )
        for end in ("largest", "smallest")
    ),
    _of_blocks(
        "spectrum",
        _EIGENVALUES,
        of.reads(*of.OF_BLOCKS, spectrum=("k", "cut")),
        need.check_spectrum,
        of.dense_operations,
        gives=(
            *("largest_eigenvalue", "smallest_eigenvalue", "share_negative", "effective_rank"),
            *("condition_number", "rank", "eigenvalue_quantile"),
        ),
        version=2,  # since 2, condition_number and effective_rank are those of indefinite blocks too
        knows_decay=True,
        may_be_undefined=("condition_number",),
    ),
    Quantity(
        "accuracy",
        _STATES,
        of.reads("size"),
        needs=(need.EXAMPLES,),
        gives=("accuracy", "cascade_accuracy"),
        knows_decay=True,
    ),
    Quantity("batch_sharpness", _STABILITY, of.reads("training", "num_probes"), needs=(need.EXAMPLES,)),
    Quantity(
        "critical_step",
        _STABILITY,
        of.reads("training"),
        needs=need.OF_A_STEP,
        gives=("critical_step", "critical_sharpness"),
        needs_optimiser="any",
        walks=_walking,
    ),
    Quantity("gradient_covariance", _STATES, gives=("gradient_covariance", "gradient_covariance_eigenvalue")),
    Quantity("gradient_norm", _STATES, of.reads("blocks"), order=1),
    Quantity("loss", _STATES, order=0),
    Quantity(
        "held_out_loss",
        _STATES,
        of.reads("size"),
        needs=(need.EXAMPLES,),
        gives=("held_out_loss", "uniform_loss", "unigram_loss"),
    ),
    Quantity(
        "preconditioned_eigenvalue",
        _STABILITY,
        of.reads("training", *of.SCALED),
        needs=(need.PRECONDITIONER,),
        needs_optimiser="given",
    ),
    Quantity("adaptive_sharpness", _STABILITY, of.reads(*of.SCALED)),
    _of_blocks("jacobian_norm", _MOMENTS, of.probe_settings, needs=(need.FOR_JACOBIANS,), knows_decay=True),
    *(Quantity(f"moment_{order}", _MOMENTS, check=need.check_moments, knows_decay=True) for order in (1, 2, 3)),
    Quantity("zero_share", _MOMENTS, of.dense_settings, need.check_dense),
    Quantity("noise_scale", _STATES),
    Quantity(
        "predicted_decrease",
        _STABILITY,
        of.reads("training"),
        needs=(need.EXAMPLES, need.NEXT_UPDATE),
        gives=("predicted_decrease", "true_decrease", "decrease_ratio"),
        walks=_walking,
    ),
    _of_blocks("num_parameters", _STATES, of.reads("blocks"), of_loss=False),
    Quantity("residual_norm", _STATES, check=partial(need.check_layers, "residual_norm"), knows_decay=True),
    Quantity("score_spread", _STATES, needs=(need.SCORES,), gives=("score_spread", "pattern_spread"), knows_decay=True),
    Quantity("sink_mass", _STATES, needs=(need.SCORES,), gives=("sink_mass", "key_mass")),
    Quantity(
        "stability_threshold",
        _STABILITY,
        of.reads("training"),
        needs=(need.EXAMPLES, need.FORMULA, need.OWN_RATE),
        gives=("stability_threshold", "learning_rate"),
        of_loss=False,
        needs_optimiser="given",
    ),
    Quantity(
        "training_cost",
        _STATES,
        of.reads("training"),
        needs=(need.EXAMPLES,),
        gives=("training_cost", "hessian_products", "looks", "update_seconds", "look_seconds"),
        of_loss=False,
    ),
    Quantity("weight_norm", _STATES, of.reads("blocks"), order=0, of_loss=False, knows_decay=True),
    Quantity(
        "hessian_distance",
        _SAMPLES,
        of.distance_settings,
        need.check_distance,
        gives=(
            *("hessian_distance", "hessian_distance_null", "subset_norm"),
            *("subset_largest_eigenvalue", "subset_smallest_eigenvalue", "subset_condition_number"),
        ),
        may_be_undefined=("subset_condition_number",),
    ),
    Quantity(
        "landscape_difference",
        _LANDSCAPE,
        of.reads(landscape=(*of.SAMPLES, "distance", "direction", "curvatures")),
        need.check_samples,
        gives=(
            *("landscape_difference", "landscape_rms", "landscape_prediction", "landscape_null", "landscape_bound"),
            *("largest_loss", "largest_curvature", "directional_curvature"),
            *("prediction_correlation", "prediction_slope"),
        ),
        may_be_undefined=("prediction_correlation", "prediction_slope"),
        walks=lambda config: config.landscape.distance is not None,
    ),
    _of_blocks(
        "approximations",
        "hessfig.measurements.approximations",
        approximable.approximation_settings,
        approximable.check_approximations,
        needs=(need.MORE_THAN_NORMS,),
        gives=_OF_APPROXIMATIONS,
        version=2,  # since 2, K-FAC's inputs are those at all positions, and shared keys have their own heads
        may_be_undefined=_OF_APPROXIMATIONS,
    ),
    _of_blocks(
        "pruning",
        _COMPRESSION,
        of.reads("blocks", "products", compression=("damping", "shares")),
        need.check_dense,
        gives=terms.OF_PRUNING,
        version=2,  # since 2, K-FAC as in approximations, no rounding to float32, and ties where weights change nothing
        walks=_walking,
    ),
    _of_blocks(
        "quantisation",
        _COMPRESSION,
        of.reads("blocks", "products", compression=("damping", "bits")),
        need.check_dense,
        gives=terms.OF_QUANTISATION,
        version=2,  # since 2, K-FAC is that of approximations, and GPTQ has the inputs at all positions
        walks=_walking,
    ),
    _of_blocks(
        "rounding",
        _COMPRESSION,
        of.reads("blocks", "products", compression=("bits",)),
        need.check_dense,
        gives=(*terms.ROUNDED, *(f"{name}_rank_correlation" for name in terms.OF_ROUNDING)),
        may_be_undefined=tuple(f"{name}_rank_correlation" for name in terms.OF_ROUNDING),
        walks=_walking,
    ),
    _of_blocks(
        "influence",
        f"{_DIRECTIONS}.influence",
        of.reads(
            *("blocks", "products", "training", "size"),
            **{"compression": ("damping",), "approximation": ("subsets", "left_out")},
        ),
        need.check_dense,
        needs=(need.EXAMPLES, need.FIXED_SET),
        gives=("influence_spread", *terms.OF_INFLUENCE),
        may_be_undefined=terms.OF_INFLUENCE,
        walks=_walking,
    ),
    Quantity(
        "landscape_integrals",
        _LANDSCAPE,
        of.reads(landscape=(*of.SAMPLES, "draws", "spread")),
        need.check_samples,
        gives=("delta_1", "delta_2", "delta_2_null"),
        walks=_walking,
    ),
    Quantity(
        "landscape_subspace",
        f"{_DIRECTIONS}.top_subspace",
        of.reads(landscape=("samples", "draws", "spread", "dimensions"), spectrum=("tolerance", "steps")),
        need.check_subspace,
        gives=(
            *("landscape_start", "landscape_full", "landscape_top", "landscape_top_share", "landscape_random_share"),
            *(f"landscape_{name}_quadratic" for name in ("full", "top", "random")),
        ),
        may_be_undefined=("landscape_top_share", "landscape_random_share"),
        walks=_walking,
    ),
    Quantity(
        "stationarity",
        _LANDSCAPE,
        of.reads(landscape=of.SAMPLES),
        need.check_samples,
        gives=("stationarity", "stationarity_rms", "stationarity_expected", "stationarity_null"),
    ),
    Quantity(
        "slices",
        f"{_DIRECTIONS}.slices",
        of.reads(
            "products",
            directions=("along", "plane", "reach", "points", "departure"),
            spectrum=("tolerance", "steps", "cut"),
        ),
        need.check_slices,
        gives=(
            *(f"{ray}_ray_{number}" for ray in Ray for number in ("slope", "curvature", "departure")),
            *("convex_directions", "flat_directions", "concave_directions"),
        ),
        knows_decay=True,
        may_be_undefined=tuple(f"{ray}_ray_departure" for ray in Ray),
        walks=_walking,
    ),
    Quantity(
        "critical_points",
        f"{_DIRECTIONS}.walks",
        of.reads("products", directions=("evaluations", "tolerance"), spectrum=("cut",)),
        need.check_critical,
        gives=(
            *("critical_gradient", "critical_loss", "critical_index", "critical_flat"),
            *("critical_distance", "critical_start"),
        ),
        knows_decay=True,
        walks=_walking,
    ),
    Quantity(
        "descent",
        f"{_DIRECTIONS}.walks",
        of.reads("products", directions=("rate", "steps", "departure"), spectrum=("tolerance", "steps")),
        gives=("descent_horizon", "descent_rate", "descent_run_curvature", "descent_line_curvature"),
        knows_decay=True,
        may_be_undefined=("descent_horizon",),
        walks=_walking,
    ),
    _of_blocks(
        "along",
        f"{_DIRECTIONS}.along",
        of.reads(
            *(*of.OF_BLOCKS, "training"), directions=("named", "rules", "gradients"), spectrum=("tolerance", "steps")
        ),
        need.check_rules,
        gives=_ALONG,
        version=2,  # since 2, entries of a gradient that are rounding have no sign
        needs_optimiser="any",
        may_be_undefined=_ALONG,
    ),
    Quantity(
        "norm_sharpness",
        f"{_DIRECTIONS}.norm_sharpness",
        of.reads("training", directions=("starts",), spectrum=("tolerance", "steps")),
        gives=(
            *(f"{norm}_{number}" for norm in StepNorm for number in ("sharpness", "steepest_curvature")),
            "sharpness_edge",
        ),
        version=2,  # since 2, searches go on until they are stationary, and state no error
        needs_optimiser="any",
    ),
)
CATALOGUE = {row.name: row for row in _ROWS}
MAY_BE_UNDEFINED = frozenset(name for row in _ROWS for name in row.may_be_undefined)


def quantities() -> list[str]:
    """Return the names of the package's quantities."""
    return list(CATALOGUE)


def quantity(name: str, config_dir: str | None = None) -> Quantity:
    """Return the quantity called `name`, or that of the user's own code (FILE.py:NAME).

    Raises UserError when there is none.
    """
    if is_own(name):
        return _guarded(_checked(name, find(KEY, name, config_dir)), name)
    if name not in CATALOGUE:
        raise UserError(
            f"{KEY}: there is no such quantity",
            got=name,
            allowed=f"{', '.join(CATALOGUE)}, or FILE.py:NAME of your own",
            remedy=did_you_mean(name, CATALOGUE) or f"for example quantities=[{next(iter(CATALOGUE))}]",
        )
    return CATALOGUE[name]


def walks(name: str, config: Config) -> bool:
    """Return whether a quantity leaves the weights; one of the user's own may."""
    return is_own(name) or quantity(name).walks(config)


def source_of(name: str, config_dir: str | None) -> str:
    """Return the hash of the file of a quantity of the user's own; none for the package's."""
    return source(name, config_dir) if is_own(name) else ""


def check_decay(config: Config) -> None:
    """Raise UserError for a quantity that does not know what task.weight_decay adds to the loss."""
    for name in config.quantities:
        if config.task.weight_decay and not quantity(name, config.config_dir).knows_decay:
            raise UserError(
                f"task.weight_decay: {name} is measured without it",
                got=f"quantities=[{name}], task.weight_decay={config.task.weight_decay}",
                allowed=", ".join(row.name for row in _ROWS if row.knows_decay),
                remedy=f"leave {name} or task.weight_decay out",
            )


def _guarded(own: Quantity, name: str) -> Quantity:
    """Return a user's quantity whose functions fail as UserErrors that name it."""

    def guard(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with guarded(KEY, name):
                return function(*arguments)

        return run

    functions: dict[str, Any] = {
        name: guard(getattr(own, name)) for name in ("settings", "check", "operations", "serves")
    }
    return replace(own, measure=guard(own.measured), **functions)


def _checked(name: str, found: object) -> Quantity:
    if not isinstance(found, Quantity):
        raise UserError(
            f"{KEY}: {name} is no quantity",
            got=type(found).__name__,
            allowed="a hessfig.measurements.quantity.Quantity",
            remedy="see docs/extending.md",
        )
    return found
