"""Facts about the rows of the core's quantities, once for the wing that writes tables and the wing that reads them."""

from dataclasses import dataclass

from hessfig.record import FROBENIUS
from hessfig.terms import NUMBERS_OF_APPROXIMATIONS, Approximation


@dataclass(frozen=True)
class RowFacts:
    """Facts about the rows of one quantity in a table.

    Attributes
    ----------
    label : str
        The quantity in words, for figures and captions; empty where its name with
        spaces says enough.
    has_part : bool
        Whether the rows of a block are of a part of the Hessian. Rows of a weight or of
        a direction are not.
    may_be_undefined : bool
        Whether a value that is not finite can be correct (of a zero block, of too few
        samples).
    """

    label: str = ""
    has_part: bool = True
    may_be_undefined: bool = False


OF_APPROXIMATIONS = tuple(
    f"{name}_{number}" for name in Approximation for number in NUMBERS_OF_APPROXIMATIONS
)
_PLAIN = (
    *(
        "hessian",
        "trace",
        "density_mean",
        "density_second_moment",
        "density_quantile",
        "eigenvalue_quantile",
        "rank",
    ),
    *(
        "largest_eigenvalue",
        "smallest_eigenvalue",
        "share_negative",
        "effective_rank",
        "loss",
        "held_out_loss",
    ),
    *(
        "uniform_loss",
        "unigram_loss",
        "bigram_loss",
        "accuracy",
        "cascade_accuracy",
        "batch_sharpness",
        "critical_step",
    ),
    *(
        "critical_sharpness",
        "gradient_covariance",
        "gradient_covariance_eigenvalue",
        "preconditioned_eigenvalue",
    ),
    *(
        "adaptive_sharpness",
        "moment_1",
        "moment_2",
        "moment_3",
        "zero_share",
        "noise_scale",
        "predicted_decrease",
    ),
    *(
        "true_decrease",
        "decrease_ratio",
        "residual_norm",
        "score_spread",
        "pattern_spread",
        "stability_threshold",
    ),
    *(
        "learning_rate",
        "training_cost",
        "hessian_products",
        "looks",
        "update_seconds",
        "look_seconds",
    ),
)
CORE_ROWS = {
    **dict.fromkeys(_PLAIN, RowFacts()),
    FROBENIUS: RowFacts("block norm"),
    "condition_number": RowFacts(may_be_undefined=True),
    "gradient_norm": RowFacts("length of the gradient", has_part=False),
    "jacobian_norm": RowFacts("norm of the Jacobian", has_part=False),
    "num_parameters": RowFacts("number of parameters", has_part=False),
    "weight_norm": RowFacts(has_part=False),
    "sink_mass": RowFacts("attention on the sink"),
    "key_mass": RowFacts("attention on a key"),
    **dict.fromkeys(OF_APPROXIMATIONS, RowFacts(may_be_undefined=True)),
}
