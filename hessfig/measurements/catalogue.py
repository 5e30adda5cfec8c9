"""The catalogue of quantities: one row per quantity with the function that measures it, and users' own quantities.

With A a part of a block, w all parameters, g gradient and H Hessian of the loss L:

- frobenius: ||A||_F; trace: tr A of a diagonal block; hessian: H as an array;
- spectrum: all eigenvalues of a diagonal block, with rank, condition number and
  quantiles; largest_eigenvalue, smallest_eigenvalue: the outermost ones by Lanczos;
  density: tr A / n, tr A^2 / n and quantiles by Lanczos quadrature;
- approximations: ||B - A|| / ||B|| of an approximation A of a block B, and their cosine;
- jacobian_norm: ||dF/dw||_F; moment_n: ||M_n||_F of attention; zero_share: the share of
  zeros in A;
- loss: L; held_out_loss: L on examples that no training sees; accuracy: shares of right
  answers; gradient_norm: |g|; weight_norm: |w|; num_parameters: entries of w;
- residual_norm: mean |h| of the stream; score_spread: standard deviations of scores and
  mixing weights; sink_mass: the weight of the first key;
- gradient_covariance: tr C and the largest eigenvalue of C, the covariance of gradients
  of examples; noise_scale: tr C / |g|^2, without bias;
- batch_sharpness: g.H_B g / |g|^2 over mini-batches B; critical_step: the step at which
  the loss along the next update is back at its start; predicted_decrease: that of the
  quadratic model, and the true one; stability_threshold: 2 / eta for gradient descent;
- preconditioned_eigenvalue: the largest eigenvalue of P^-1 H; adaptive_sharpness: of |W|
  H |W|; training_cost: seconds and products of the training so far.

The formulas are in the modules that the rows name. A row says by module name where its
function is, so that a plan reads the catalogue without torch. Adding a quantity is adding
a row (see hessfig.measurements.quantity); studies bring rows of their own, which
`registry` lists.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from hessfig import registry
from hessfig.config.schema import Config
from hessfig.config.user.user_code import code_hash, find, guarded, is_own
from hessfig.errors import UserError, did_you_mean
from hessfig.measurements import approximable
from hessfig.measurements import requirements as need
from hessfig.measurements import settings_and_costs as of
from hessfig.measurements.quantity import Measured, Quantity, Request, Row
from hessfig.record import NUMBER
from hessfig.row_facts import OF_APPROXIMATIONS

KEY = "quantities"
_NORMS, _TRACES = "hessfig.measurements.block_norms", "hessfig.measurements.traces"
_EIGENVALUES = "hessfig.measurements.eigenvalues"
_MOMENTS = "hessfig.measurements.moments"
_STATES = "hessfig.measurements.training_dynamics"
_STABILITY = "hessfig.measurements.stability"


_of_blocks = partial(Quantity, serves=attrgetter("is_diagonal"))
_ROWS = (
    Quantity(
        "frobenius",
        _NORMS,
        of.frobenius_settings,
        need.check_norms,
        of.norm_operations,
        knows_decay=True,
    ),
    Quantity(
        "hessian",
        _TRACES,
        of.hessian_settings,
        need.check_hessian,
        of.hessian_operations,
    ),
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
            of.extreme_settings,
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
            *(
                "largest_eigenvalue",
                "smallest_eigenvalue",
                "share_negative",
                "effective_rank",
            ),
            *("condition_number", "rank", "eigenvalue_quantile"),
        ),
        version=2,  # since 2, condition_number and effective_rank are those of indefinite blocks too
        knows_decay=True,
    ),
    Quantity(
        "accuracy",
        _STATES,
        of.reads("size"),
        needs=(need.EXAMPLES,),
        gives=("accuracy", "cascade_accuracy"),
        knows_decay=True,
    ),
    Quantity(
        "batch_sharpness",
        _STABILITY,
        of.reads("training", "num_probes"),
        needs=(need.EXAMPLES,),
    ),
    Quantity(
        "critical_step",
        _STABILITY,
        of.reads("training"),
        needs=need.OF_A_STEP,
        gives=("critical_step", "critical_sharpness"),
        needs_optimiser="any",
        walks=need.leaves_the_weights,
    ),
    Quantity(
        "gradient_covariance",
        _STATES,
        gives=("gradient_covariance", "gradient_covariance_eigenvalue"),
    ),
    Quantity("gradient_norm", _STATES, of.reads("blocks"), order=1),
    Quantity("loss", _STATES, order=0),
    Quantity(
        "held_out_loss",
        _STATES,
        of.reads("size"),
        needs=(need.EXAMPLES,),
        gives=("held_out_loss", "uniform_loss", "unigram_loss", "bigram_loss"),
    ),
    Quantity(
        "preconditioned_eigenvalue",
        _STABILITY,
        of.reads("training", *of.SCALED),
        needs=(need.PRECONDITIONER,),
        needs_optimiser="given",
    ),
    Quantity("adaptive_sharpness", _STABILITY, of.reads(*of.SCALED)),
    _of_blocks(
        "jacobian_norm",
        _MOMENTS,
        of.probe_settings,
        needs=(need.FOR_JACOBIANS,),
        knows_decay=True,
    ),
    *(
        Quantity(
            f"moment_{order}", _MOMENTS, check=need.check_moments, knows_decay=True
        )
        for order in (1, 2, 3)
    ),
    Quantity("zero_share", _MOMENTS, of.dense_settings, need.check_dense),
    Quantity("noise_scale", _STATES),
    Quantity(
        "predicted_decrease",
        _STABILITY,
        of.reads("training"),
        needs=(need.EXAMPLES, need.NEXT_UPDATE),
        gives=("predicted_decrease", "true_decrease", "decrease_ratio"),
        walks=need.leaves_the_weights,
    ),
    _of_blocks("num_parameters", _STATES, of.reads("blocks"), of_loss=False),
    Quantity(
        "residual_norm",
        _STATES,
        check=partial(need.check_layers, "residual_norm"),
        knows_decay=True,
    ),
    Quantity(
        "score_spread",
        _STATES,
        needs=(need.SCORES,),
        gives=("score_spread", "pattern_spread"),
        knows_decay=True,
    ),
    Quantity(
        "sink_mass", _STATES, needs=(need.SCORES,), gives=("sink_mass", "key_mass")
    ),
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
        gives=(
            "training_cost",
            "hessian_products",
            "looks",
            "update_seconds",
            "look_seconds",
        ),
        of_loss=False,
    ),
    Quantity(
        "weight_norm",
        _STATES,
        of.reads("blocks"),
        order=0,
        of_loss=False,
        knows_decay=True,
    ),
    _of_blocks(
        "approximations",
        "hessfig.measurements.approximations",
        approximable.approximation_settings,
        approximable.check_approximations,
        needs=(need.MORE_THAN_NORMS,),
        gives=OF_APPROXIMATIONS,
        version=2,  # since 2, K-FAC's inputs are those at all positions, and shared keys have their own heads
        counts_inputs=True,
    ),
)
CORE = {row.name: row for row in _ROWS}
CATALOGUE = dict(CORE)
for _module in registry.modules_of("quantities"):
    CATALOGUE |= {row.name: row for row in _module.QUANTITIES}


def quantities() -> list[str]:
    """Return the names of the package's quantities."""
    return list(CATALOGUE)


def quantity(name: str, config_dir: str | None = None) -> Quantity:
    """Return the quantity `name`, of the package or of the user's own code (FILE.py:NAME).

    Raises UserError when there is none.
    """
    if is_own(name):
        return _guarded(_checked(name, find(KEY, name, config_dir)), name)
    if name not in CATALOGUE:
        raise UserError(
            f"{KEY}: there is no such quantity",
            got=name,
            allowed=f"{', '.join(CATALOGUE)}, or FILE.py:NAME of your own",
            remedy=_remedy(name),
        )
    return CATALOGUE[name]


def _remedy(name: str) -> str:
    """Return what to ask for in place of an unknown quantity: the one that has rows of this name, or a close name."""
    for measured, facts in CATALOGUE.items():
        if name in facts.rows:
            return f"quantities=[{measured}], which has rows of this name"
    example = f"for example quantities=[{next(iter(CATALOGUE))}]"
    return did_you_mean(name, CATALOGUE) or example


def measured_once(config: Config) -> Config:
    """Return the settings without quantities whose rows are among those of another one that is requested.

    Examples
    --------
    >>> measured_once(Config(quantities=["spectrum", "largest_eigenvalue"])).quantities
    ['spectrum']
    """
    rows = {}
    for name in config.quantities:
        if not is_own(name):
            rows[name] = {*quantity(name).rows}
    kept = []
    for name in config.quantities:
        is_covered = name in rows and any(rows[name] < other for other in rows.values())
        if not is_covered:
            kept.append(name)
    if kept == config.quantities:
        return config
    return replace(config, quantities=kept)


def undefined_rows(names: Iterable[str], config_dir: str | None = None) -> set[str]:
    """Return the names of rows that may correctly be undefined, for these quantities."""
    facts = registry.row_facts()
    undefined = set()
    for name in names:
        requested = quantity(name, config_dir)
        undefined |= {*requested.may_be_undefined}
        for row in requested.rows:
            if row in facts and facts[row].may_be_undefined:
                undefined.add(row)
    return undefined


def walks(name: str, config: Config) -> bool:
    """Return whether a quantity evaluates the loss away from the weights; a user's own quantity may."""
    return is_own(name) or quantity(name).walks(config)


def source_of_quantity(name: str, config_dir: str | None) -> str:
    """Return the hash of the code of a user's own quantity; empty for the package's."""
    if is_own(name):
        return code_hash(name, config_dir)
    return ""


def check_decay(config: Config) -> None:
    """Raise UserError for a quantity that ignores the loss of task.weight_decay, decay / 2 |w|^2.

    It adds `decay` times the identity to the diagonal blocks of H and H_f, `decay` w to the
    gradient, and nothing to H_o.
    """
    decay = config.task.weight_decay
    if not decay:
        return
    for name in config.quantities:
        if not quantity(name, config.config_dir).knows_decay:
            knowing = [row.name for row in CATALOGUE.values() if row.knows_decay]
            raise UserError(
                f"task.weight_decay: {name} is measured without it",
                got=f"quantities=[{name}], task.weight_decay={decay}",
                allowed=", ".join(knowing),
                remedy=f"leave {name} or task.weight_decay out",
            )


def _guarded(own: Quantity, name: str) -> Quantity:
    """Return a user's quantity whose functions raise UserErrors that name the quantity.

    Its rows are checked as well: parts, and numbers that occur twice.
    """

    def guard(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with guarded(KEY, name):
                return function(*arguments)

        return run

    def measured(problem: Any, request: Request) -> Measured:
        result = own.measured(problem, request)
        _check_parts(own, name, result.rows)
        _check_apart(name, result.rows)
        return result

    return replace(
        own,
        measure=guard(measured),
        settings=guard(own.settings),
        check=guard(own.check),
        operations=guard(own.operations),
        serves=guard(own.serves),
    )


def _check_parts(own: Quantity, name: str, rows: Sequence[Row]) -> None:
    """Raise UserError for rows of a block without a part, unless the quantity declares has_part=False."""
    if own.has_part and any(row["row"] and not row["part"] for row in rows):
        raise UserError(
            f"{KEY}: {name} gives rows of a block without a part",
            got="part=''",
            allowed="rows of H, H_o or H_f, or a quantity of weights",
            remedy="Quantity(..., has_part=False)",
        )


def _check_apart(name: str, rows: Sequence[Row]) -> None:
    """Raise UserError for two rows that describe the same number: no reader could tell which one counts."""
    seen = set()
    for row in rows:
        label = tuple(str(row[column]) for column in NUMBER if column in row)
        if label in seen:
            words = [word for word in label if word not in ("", "0", "None")]
            raise UserError(
                f"{KEY}: {name} gives two rows for one number",
                got=", ".join(words),
                allowed="rows that differ in quantity, block, part or index",
                remedy="number them: row | {'index': k}, or give them names of their own (Quantity(..., gives=...))",
            )
        seen.add(label)


def _checked(name: str, value: object) -> Quantity:
    """Return what a name of the user's own stands for. Raises UserError if it is not a Quantity."""
    if not isinstance(value, Quantity):
        raise UserError(
            f"{KEY}: {name} is not a quantity",
            got=type(value).__name__,
            allowed="a hessfig.measurements.quantity.Quantity",
            remedy="see docs/extending.md",
        )
    return value
