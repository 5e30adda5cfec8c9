"""Checks which approximations exist for a block, and lists the settings that enter their keys; uses no tensors.

What an approximation needs (`Approximation.facts.needs`): the weight of a linear map (`linear`), of one matrix, of
one with heads (`heads`), the second moments of a training (`moments`), the blocks of the
whole network (`whole`), or nothing (`any`).
"""

from collections.abc import Sequence
from typing import Any

from hessfig.config.enums import Method, State
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.measurements.requirements import check_dense
from hessfig.measurements.settings_and_costs import (
    dense_settings,
    diagonal_blocks,
    reads,
)
from hessfig.models.blocks import matrices_of
from hessfig.terms import Approximation, Block, Group, Matrix, Need
from hessfig.weights import Layout, Weight

MOST_DENSE = 2048  # parameters of a block that is held as a matrix by estimator=auto
FEWEST = 4  # probes: products of pairs of them have a jackknife's error
_HEADED = (Matrix.W_Q, Matrix.W_K, Matrix.W_QK, Matrix.W_V, Matrix.W_O)
_TABLES = (Matrix.W_E, Matrix.W_pos)


def approximation_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return blocks, parts and products, the names and rank, the probes, and the size of the mini-batches.

    Mini-batches enter because empirical Fisher matrices are of the gradients of samples of a
    batch; full-batch training has none.
    """
    estimator = config.estimator
    read: dict[str, Any] = {
        "method": estimator.method.value,
        "products": estimator.products.value,
    }
    if estimator.method != Method.dense:
        read["num_probes"] = estimator.num_probes
    batch_size = None
    if not config.training.optimiser.facts.is_full_batch:
        batch_size = config.training.batch_size
    return {
        **dense_settings(config, layout),
        "estimator": read,
        **reads("blocks")(config, layout),
        "approximation": {
            "names": sorted(chosen_approximations(config)),
            "rank": config.approximation.rank,
        },
        "batch_size": batch_size,
    }


def chosen_approximations(config: Config) -> list[Approximation]:
    """Return the requested approximations; all of them if none is named."""
    return config.approximation.names or list(Approximation)


def check_approximations(config: Config, layout: Layout) -> None:
    """Raise UserError for an approximation by name that a block cannot have, for too few probes or too large blocks.

    Fewer than FEWEST probes leave no error: the sum over pairs of different probes without
    one of them divides by (K - 1) (K - 2), and the jackknife compares several such sums.
    """
    count = config.estimator.num_probes
    if config.estimator.method == Method.dense:
        check_dense(config, layout)
    elif count < FEWEST:
        raise UserError(
            "estimator.num_probes: too few for the errors of approximations",
            got=count,
            allowed=f"a whole number >= {FEWEST}",
            remedy="estimator.num_probes=20",
        )
    for name in config.approximation.names:
        for block in diagonal_blocks(config, layout):
            why = lacking(name, block, config, layout)
            if why:
                raise unavailable_approximation(name, block, why)


def unavailable_approximation(name: Approximation, block: Block, why: str) -> UserError:
    """Return the error for an approximation that does not exist for a block."""
    return UserError(
        f"approximation.names: {name} is not defined here: {why}",
        got=f"{name} of block {block}",
        allowed="approximations that every block of the run can have; none named: all that each can have",
        remedy=f"leave {name} or {block.col} out, or approximation.names=[]",
    )


def lacking(name: Approximation, block: Block, config: Config, layout: Layout) -> str:
    """Return why an approximation does not exist for a block, by names and settings; empty if it does.

    Tensors may tell more: see hessfig.measurements.approximations.
    """
    needs = name.facts.needs
    side = layout.side(block.layer, str(block.col))
    if needs == Need.whole:
        if block.col == Group.all:
            return ""
        return "it takes the blocks of the whole network (blocks=[all]) apart"
    if needs == Need.moments:
        return _without_moments(config)
    if needs == Need.any:
        return ""
    if needs == Need.linear and _may_be_map(side):
        return _of_weight(name, side[0], config)
    if len(side) > 1 or block.col in list(Group) or not side[0].is_main:
        return "it is of the weight of one matrix"
    return _of_weight(name, side[0], config)


def _may_be_map(side: Sequence[Weight]) -> bool:
    """Whether weights may be a linear map's weight, its bias or both: parameters of one module that is not a norm.

    K-FAC of both together takes inputs with a further entry of 1.
    """
    modules = {weight.parameter.rpartition(".")[0] for weight in side}
    is_of_norm = any(Group.norms in weight.groups for weight in side)
    return len(modules) == 1 and not is_of_norm


def _of_weight(name: Approximation, weight: Weight, config: Config) -> str:
    """Return why the weight of one matrix does not have an approximation; empty if it does."""
    needs = name.facts.needs
    if needs == Need.linear and weight.name in _TABLES:
        return f"it is of a linear map's weight, and {weight.name} is a table of embeddings"
    with_heads = {*_HEADED} & {*matrices_of(config.model)}
    if needs == Need.heads and weight.name not in with_heads:
        return f"{weight.name} is not cut into heads ({', '.join(_HEADED)} of the package's transformers are)"
    return ""


def _without_moments(config: Config) -> str:
    """Return why there are no second moments; empty for a training with adam or adamw."""
    training = config.training.optimiser
    if config.state.kind == State.trained and training.facts.is_adaptive:
        return ""
    return (
        "the second moments are those of a training with adam or adamw (state=trained), not of "
        f"state={config.state.kind} with training.optimiser={training}; adam_expected needs none"
    )
