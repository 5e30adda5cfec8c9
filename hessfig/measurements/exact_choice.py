"""The choices of `estimator=auto` by cost: exact norms of the last layer or probes, turned probes or plain ones.

Both choices compare counted operations (`hessfig.models.exact.costs`), not clocks, so
that a cell has the same key on every machine.
"""

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
# An exact norm has no error: it may take this many times as long as its probes.
WORTH = 1.5
# Probes of the published recipe, with which exact norms are compared at least.
FEWEST = 20
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
    r"""Return the blocks of the last layer that `auto` probes, because their exact norms would take too long.

    The exact norms of a cell share their derivatives behind the attention, and the blocks of
    a column their probes. So all blocks are exact if, with K = max(num_probes, FEWEST),

    .. math:: \text{shared} + \sum_{\text{blocks}} \text{own} \;\le\;
              \text{WORTH} \Big( \text{setup} + \sum_{\text{columns}} K \cdot \text{probe} \Big)

    in seconds (models.exact.costs). Otherwise the block with the largest own / (K probe) is
    probed, and the rest are compared again. K is not what pilots choose, so that pilots and
    cells of a sweep decide alike.

    Returns
    -------
    frozenset of Block
        Empty for estimator.rules before version 0.5, which had no such comparison.

    Examples
    --------
    One layer at the size of the paper: W_V is exact without norms, and takes probes with
    LayerNorm, where each item has a d x d matrix of second derivatives.

    >>> from hessfig.terms import Norm
    >>> block = Block(1, "W_V", "W_V")
    >>> for norm in (Norm.none, Norm.pre):
    ...     settings = ModelConfig(norm=norm), TaskConfig(), EstimatorConfig(), [block], [Part.H]
    ...     print(len(expensive_blocks(*settings, DType.float64)))
    0
    1
    """
    compared = [part for part in parts if part not in AT_SCORES]
    if estimator.rules < BY_COST or not compared:
        return frozenset()
    sizes = Sizes.of(model, task)
    count = max(estimator.num_probes, FEWEST)
    rate = _rate(dtype)
    kept = []
    own = {}
    probed = {}
    for block in dict.fromkeys(blocks):
        if _is_of_last_layer(model, block, compared):
            kept.append(block)
            own[block] = own_cost(sizes, block, compared).seconds(ITEMS_FLOPS)
            probed[block] = count * probe_cost(sizes, block, compared).seconds(rate)
    expensive = []
    while kept:
        columns = {}
        # One set of probes serves a column: that of the most expensive of its blocks.
        for block in sorted(kept, key=probed.__getitem__):
            columns[block.layer, block.col] = probed[block]
        shared = shared_cost(sizes, kept, compared).seconds(ITEMS_FLOPS)
        setup = setup_cost(sizes).seconds(PROBES_FLOPS)
        by_formula = shared + sum(own[block] for block in kept)
        if by_formula <= WORTH * (setup + sum(columns.values())):
            break
        dearest = max(kept, key=lambda block: own[block] / probed[block])
        expensive.append(dearest)
        kept.remove(dearest)
    return frozenset(expensive)


def is_turned(
    model: ModelConfig,
    task: TaskConfig,
    estimator: EstimatorConfig,
    block: Block,
    entries: int,
    dtype: DType,
) -> bool:
    r"""Whether `auto` turns the probes of an (a, b) weight of a b `entries` into the axes of its diagonal `block`.

    Turning takes 2 a b (a + b) operations for each of K probes and for both sides of each of
    the SKETCHES, and the axes EIGENVECTORS (a^3 + b^3). With WORTH = 1.5, probes are turned if

    .. math:: (K + \text{SKETCHES}) \, 2 a b (a + b) + \text{EIGENVECTORS} \, (a^3 + b^3)

    takes at most half the time of K products, so that K products with turning take at most
    WORTH times K products.
    """
    if estimator.rules < BY_COST or not is_counted(model):
        return True
    rows = entries // model.d_model
    cols = model.d_model
    count = max(estimator.num_probes, FEWEST)
    of_turning = (count + SKETCHES) * 2 * rows * cols * (rows + cols)
    of_axes = EIGENVECTORS * (rows**3 + cols**3)
    turning = Cost(flops=of_turning + of_axes)
    probe = probe_cost(Sizes.of(model, task), block, {Part.H})
    products = count * probe.seconds(_rate(dtype))
    return turning.seconds(PROBES_FLOPS) <= (WORTH - 1) * products


def _rate(dtype: DType) -> float:
    """Return the operations of probes per second: twice as many in float32.

    Vectors in float32 take half the memory, which is what bounds products.
    """
    if dtype == DType.float32:
        return 2 * PROBES_FLOPS
    return PROBES_FLOPS


def _is_of_last_layer(
    model: ModelConfig, block: Block, parts: Collection[Part]
) -> bool:
    """Whether every part has a cheap exact norm by the route of the last layer."""
    for part in parts:
        found = exactness(model, block, part)
        if found.level != Level.cheap or found.route != Route.last_layer:
            return False
    return True
