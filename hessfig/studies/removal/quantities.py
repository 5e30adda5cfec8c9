"""The quantities of this study, and checks that they can be measured with the given settings."""

from functools import partial
from operator import attrgetter

from hessfig.config.enums import State, TrainingData
from hessfig.config.schema import Config
from hessfig.measurements.quantity import Quantity, Requirement
from hessfig.measurements.requirements import EXAMPLES, check_dense, leaves_the_weights
from hessfig.measurements.settings_and_costs import reads
from hessfig.studies.removal.row_names import (
    OF_INFLUENCE,
    OF_PRUNING,
    OF_QUANTISATION,
    RANK_CORRELATIONS,
    ROUNDED,
)


def _sees_all(config: Config) -> bool:
    training = config.training
    whole = (
        training.optimiser.facts.is_full_batch
        or training.batch_size >= config.task.batch_size
    )
    return whole and training.data == TrainingData.fixed


_FIXED_SET = Requirement(
    lambda config: config.state.kind == State.trained and _sees_all(config),
    "samples can be left out of a training only if every update sees all of a fixed set",
    "state={state.kind}, training.data={training.data}, training.batch_size={training.batch_size}",
    "state=trained, training.data=fixed, training.batch_size at least task.batch_size",
    "training.data=fixed training.batch_size={task.batch_size}, or leave {quantity} out",
)
_COMPRESSION = "hessfig.studies.removal.compression"
_of_blocks = partial(
    Quantity,
    serves=attrgetter("is_diagonal"),
    check=check_dense,
    walks=leaves_the_weights,
)
QUANTITIES = (
    _of_blocks(
        "pruning",
        _COMPRESSION,
        reads("blocks", "products", compression=("damping", "shares")),
        gives=OF_PRUNING,
        version=2,  # since 2, K-FAC as in approximations, no rounding to float32, and ties where weights change nothing
        counts_inputs=True,
    ),
    _of_blocks(
        "quantisation",
        _COMPRESSION,
        reads("blocks", "products", compression=("damping", "bits")),
        gives=OF_QUANTISATION,
        version=2,  # since 2, K-FAC is that of approximations, and GPTQ has the inputs at all positions
        counts_inputs=True,
    ),
    _of_blocks(
        "rounding",
        _COMPRESSION,
        reads("blocks", "products", compression=("bits",)),
        gives=(*ROUNDED, *RANK_CORRELATIONS),
        counts_inputs=True,
    ),
    _of_blocks(
        "influence",
        "hessfig.studies.removal.influence",
        reads(
            *("blocks", "products", "training", "size"),
            **{"compression": ("damping",), "approximation": ("subsets", "left_out")},
        ),
        needs=(EXAMPLES, _FIXED_SET),
        gives=("influence_spread", *OF_INFLUENCE),
        counts_inputs=True,
    ),
)
