"""The choices of `estimator=auto` by cost: exact norms of the last layer or probes, turned probes or plain ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hessfig.config.enums import DType
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.models.exact.costs import (
    ITEMS_FLOPS,
    PROBES_FLOPS,
    Cost,
    Sizes,
    own_cost,
    probe_cost,
    setup_cost,
    shared_cost,
)
from hessfig.models.exact.support import Level, Route, exactness, is_counted
from hessfig.terms import AT_SCORES, Block, Part

BY_COST = 2  # estimator.rules since version 0.5
WORTH = (
    1.5  # an exact norm has no error: it may take this many times as long as its probes
)
FEWEST = (
    20  # probes of the published recipe, with which exact norms are compared at least
)
# Products that the axes are taken from; operations of LAPACK's syevd over n^3.
SKETCHES, EIGENVECTORS = (10, 15)


def expensive_blocks(
    model: ModelConfig,
    task: TaskConfig,
    estimator: EstimatorConfig,
    blocks: Sequence[Block],
    parts: Sequence[Part],
    dtype: DType,
) -> frozenset[Block]:
    """Return the blocks of the last layer that `auto` probes, because their exact norms would take too long.

    The exact norms of a cell share their derivatives behind the attention, and the
    blocks of a column their probes. So all blocks are exact if

        shared + sum_blocks own  <=  WORTH (setup + sum_columns K probe),    K = max(num_probes, FEWEST)

    in seconds (models.exact.costs). Otherwise the block with the largest own / (K
    probe) is probed, and the rest are compared again. K is not what pilots choose, so
    that pilots and cells of a sweep decide alike.
    """
    asked = [part for part in parts if part not in AT_SCORES]
    if estimator.rules < BY_COST or not asked:
        return frozenset()
    kept = [
        block
        for block in dict.fromkeys(blocks)
        if _is_of_last_layer(model, block, asked)
    ]
    sizes, count = Sizes.of(model, task), max(estimator.num_probes, FEWEST)
    own = {block: own_cost(sizes, block, asked).seconds(ITEMS_FLOPS) for block in kept}
    probed = {
        block: count * probe_cost(sizes, block, asked).seconds(_rate(dtype))
        for block in kept
    }
    expensive = []
    while kept:
        columns = {
            (block.layer, block.col): probed[block]
            for block in sorted(kept, key=probed.__getitem__)
        }
        shared = shared_cost(sizes, kept, asked).seconds(ITEMS_FLOPS)
        setup = setup_cost(sizes).seconds(PROBES_FLOPS)
        if shared + sum(own[block] for block in kept) <= WORTH * (
            setup + sum(columns.values())
        ):
            break
        expensive.append(max(kept, key=lambda block: own[block] / probed[block]))
        kept.remove(expensive[-1])
    return frozenset(expensive)


def is_turned(
    model: ModelConfig,
    task: TaskConfig,
    estimator: EstimatorConfig,
    block: Block,
    entries: int,
    dtype: DType,
) -> bool:
    """Whether `auto` turns the probes of a weight matrix (a, b) of a b `entries` into the axes of its diagonal `block`.

    Turning takes 2 a b (a + b) operations for each of K probes and for both sides of
    each sketch, and the axes EIGENVECTORS (a^3 + b^3). They are turned if K products
    with turning take at most WORTH times K products.
    """
    if estimator.rules < BY_COST or not is_counted(model):
        return True
    rows, cols = entries // model.d_model, model.d_model
    count, rate = max(estimator.num_probes, FEWEST), _rate(dtype)
    turning = Cost(
        flops=(count + SKETCHES) * 2 * rows * cols * (rows + cols)
        + EIGENVECTORS * (rows**3 + cols**3)
    )
    products = count * probe_cost(Sizes.of(model, task), block, {Part.H}).seconds(rate)
    return turning.seconds(PROBES_FLOPS) <= (WORTH - 1) * products


def _rate(dtype: DType) -> float:
    return PROBES_FLOPS * (2 if dtype == DType.float32 else 1)


def _is_of_last_layer(
    model: ModelConfig, block: Block, parts: Collection[Part]
) -> bool:
    verdicts = [exactness(model, block, part) for part in parts]
    return all(
        verdict.level == Level.cheap and verdict.route == Route.last_layer
        for verdict in verdicts
    )
