"""Costs of exact norms and of probes: predicted operations against counted ones, and the choices made by them."""

from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hessfig.config.enums import DType, Method, Norm
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.curvature import column
from hessfig.measurements.block_norms import Estimator
from hessfig.measurements.exact_choice import WORTH, expensive_blocks, is_turned
from hessfig.measurements.settings_and_costs import (
    dense_bytes,
    frobenius_settings,
    is_cheap,
    norm_bytes,
    norm_operations,
    norm_settings,
)
from hessfig.models.blocks import weight_size
from hessfig.models.exact.costs import (
    COLUMNS_AT_ONCE,
    ITEMS_FLOPS,
    MEMORY_BOUND,
    PROBES_AT_ONCE,
    PROBES_FLOPS,
    Sizes,
    exact_cost,
    probe_cost,
    setup_cost,
)
from hessfig.rng import stream
from hessfig.sweep.measure import compute_cell, draw_problem
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import PARTS, Block, Matrix, Part
from tests.daily import daily, thinned

WEIGHTS = (
    Matrix.W_Q,
    Matrix.W_K,
    Matrix.W_V,
    Matrix.W_O,
    Matrix.W_in,
    Matrix.W_out,
    Matrix.W_U,
)
ATEN = torch.ops.aten
IN_PLACE = {
    ATEN.addmm_: flop_registry[ATEN.addmm],
    ATEN.baddbmm_: flop_registry[ATEN.baddbmm],
}
LINEAR = torch.ops.mkldnn._linear_pointwise


class Counted(TorchDispatchMode):
    """Counts the operations of matrix products, also of those in place and of oneDNN's."""

    flops = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operator, and count it if it multiplies matrices."""
        result = function(*args, **(kwargs or {}))
        name = function._overloadpacket
        counted = IN_PLACE.get(name) or flop_registry.get(name)
        if counted is not None:
            self.flops += counted(*args, **(kwargs or {}), out_val=result)
        if name is LINEAR:
            self.flops += 2 * args[0].numel() * args[1].shape[0]
        return result


def cell(weight, *, heads, norm, layers=1, **estimator):
    """Return the cell of one weight of a network half as wide as the paper's, on a quarter of its batch."""
    model = ModelConfig(n_layers=layers, n_heads=heads, norm=norm, d_model=64)
    config = Config(
        model=model,
        task=TaskConfig(batch_size=16),
        estimator=EstimatorConfig(**estimator),
        blocks=[weight],
    )
    return Cell(Variant("", config), 0.5, 0)


def counted(one):
    """Return the operations of the norms of the last layer of a cell."""
    estimator = Estimator(draw_problem(one), one.config.model, one.config.estimator)
    last = one.variant.blocks[-1]
    with Counted() as count:
        estimator.column_norms(
            last.layer, last.col, [last], PARTS, generator=stream(0, "costs")
        )
    return count.flops


@pytest.mark.parametrize(
    ("heads", "norm"),
    daily(
        [(1, Norm.none), (4, Norm.none), (1, Norm.pre), (4, Norm.post)], (4, Norm.post)
    ),
)
@pytest.mark.parametrize("weight", thinned(WEIGHTS, 2))
def test_predicted_operations_are_those_taken(weight, heads, norm):
    exact = cell(weight, heads=heads, norm=norm, method=Method.exact)
    model, task, [block] = exact.config.model, exact.config.task, exact.variant.blocks
    assert exact_cost(model, task, block, PARTS).flops == pytest.approx(
        counted(exact), rel=0.3
    )
    probed = cell(
        weight, heads=heads, norm=norm, method=Method.hutchinson, num_probes=10
    )
    sizes = Sizes.of(model, task)
    predicted = setup_cost(sizes).flops + 10 * probe_cost(sizes, block, PARTS).flops
    assert predicted == pytest.approx(counted(probed), rel=0.3)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("norm", [Norm.none, Norm.pre, Norm.post])
def test_predicted_operations_of_lower_layers(layers, norm):
    one = cell(
        "W_Q", heads=2, norm=norm, layers=layers, method=Method.hutchinson, num_probes=5
    )
    first = one.variant.blocks[0]
    sizes = Sizes.of(one.config.model, one.config.task)
    estimator = Estimator(draw_problem(one), one.config.model, one.config.estimator)
    with Counted() as count:
        estimator.column_norms(
            1, first.col, [first], PARTS, generator=stream(0, "costs")
        )
    predicted = setup_cost(sizes).flops + 5 * probe_cost(sizes, first, PARTS).flops
    assert predicted == pytest.approx(count.flops, rel=0.3)


GRID = list(
    product(
        (1, 2, 4, 8, 16), (1, 2, 3), (Norm.none, Norm.pre, Norm.post), (16, 64, 256)
    )
)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_choice_takes_at_most_twice_the_faster_of_both(weight):
    """In predicted seconds, which are within a factor of two of those taken (docs/performance.md)."""
    chosen = set()
    for heads, layers, norm, batch in GRID:
        model = ModelConfig(n_layers=layers, n_heads=heads, norm=norm)
        task = TaskConfig(batch_size=batch)
        block = Block(0 if weight == Matrix.W_U else layers, weight, weight)
        estimator = EstimatorConfig()
        sizes = Sizes.of(model, task)
        each = probe_cost(Sizes.of(model, task), block, PARTS)
        exact = exact_cost(model, task, block, PARTS).seconds(ITEMS_FLOPS)
        probes = (setup_cost(sizes).seconds(PROBES_FLOPS)) + 20 * each.seconds(
            PROBES_FLOPS
        )
        expensive = expensive_blocks(
            model, task, estimator, [block], PARTS, DType.float64
        )
        is_probed = not is_cheap(model, block, Part.H, expensive)
        taken = probes * WORTH if is_probed else exact
        assert taken <= 2 * min(exact, probes), (heads, layers, norm, batch)
        chosen.add(is_probed)
    assert chosen == {True, False} or weight == Matrix.W_U


def test_keys_with_several_heads_are_probed_and_their_key_says_so():
    one = cell("W_K", heads=16, norm=Norm.none)
    variant = one.variant
    assert frobenius_settings(one.config, variant.layout)["estimator"].pop(
        "probed"
    ) == [[1, 1, "W_K", "W_K"]]
    single = cell("W_K", heads=1, norm=Norm.none)
    assert (
        "probed"
        not in frobenius_settings(single.config, single.variant.layout)["estimator"]
    )
    first = cell("W_K", heads=16, norm=Norm.none, rules=1)
    assert frobenius_settings(first.config, variant.layout) == norm_settings(
        first.config, variant.layout
    )
    assert one.key != first.key
    assert {row["num_probes"] for row in compute_cell(one).rows} == {20}


def test_an_expensive_weight_leaves_the_others_exact():
    model = ModelConfig(n_heads=8)
    task = TaskConfig()
    blocks = [Block(1, weight, weight) for weight in (Matrix.W_Q, Matrix.W_K)]
    found = expensive_blocks(
        model, task, EstimatorConfig(), blocks, PARTS, DType.float64
    )
    assert found == {blocks[1]}


def test_probes_are_turned_where_that_is_a_small_part_of_their_products():
    model = ModelConfig()
    estimator = EstimatorConfig()
    for batch, weight, expected in (
        (64, Matrix.W_V, True),
        (16, Matrix.W_in, False),
        (256, Matrix.W_in, True),
    ):
        task = TaskConfig(batch_size=batch)
        block = Block(1, weight, weight)
        entries = weight_size(weight, model, task)
        assert (
            is_turned(model, task, estimator, block, entries, DType.float64) == expected
        )
    one = cell("W_in", heads=1, norm=Norm.pre)
    assert frobenius_settings(one.config, one.variant.layout)["estimator"]["plain"] == [
        [1, 1, "W_in", "W_in"]
    ]


@pytest.mark.parametrize("layers", daily([1, 3], 1))
@pytest.mark.parametrize("weight", ["W_U", "W_Q"])
def test_predicted_operations_of_a_whole_cell_include_the_network(weight, layers):
    """The probes of W_U take a fiftieth of a cell; the network's evaluations are the rest."""
    one = cell(weight, heads=2, norm=Norm.none, layers=layers, method=Method.hutchinson)
    config = one.config
    layout = one.variant.layout
    with Counted() as count:
        compute_cell(one)
    assert norm_operations(config, layout) == pytest.approx(count.flops, rel=0.3)


def test_memory_of_turned_probes_counts_the_sketches_that_are_multiplied_together():
    """With tangents of more than a fifth of MEMORY_BOUND, plain probes go in smaller chunks than sketches."""
    model = ModelConfig(n_layers=3, n_heads=2, norm=Norm.post, d_model=128)
    task = TaskConfig(digits=5, batch_size=256)
    size = {}
    for method in (Method.auto, Method.hutchinson):
        estimator = EstimatorConfig(method=method)
        config = Config(model=model, task=task, estimator=estimator, blocks=["W_Q"])
        size[method] = norm_bytes(config, Variant("", config).layout)
    assert size[Method.hutchinson] < 1.1 * 2**30
    assert size[Method.auto] > 1.5 * size[Method.hutchinson]


def test_memory_of_dense_columns_counts_the_unit_vectors_that_are_multiplied_together():
    model = ModelConfig(n_layers=1, n_heads=4, d_model=32)
    size = {}
    for method in (Method.dense, Method.hutchinson):
        estimator = EstimatorConfig(method=method)
        config = Config(model=model, estimator=estimator, blocks=["W_Q"])
        size[method] = norm_bytes(config, Variant("", config).layout)
    probes = COLUMNS_AT_ONCE / PROBES_AT_ONCE
    assert 0.5 * probes < size[Method.dense] / size[Method.hutchinson] <= probes


@pytest.mark.parametrize(
    ("parts", "blocks", "matrices"),
    [
        (["H_o"], ["W_Q"], 2),  # and the unit vectors
        (["H"], ["W_Q"], 4),  # the sum of two others
        (["H", "H_o", "H_f"], ["W_Q"], 4),
        (["H_o"], ["W_Q", ["W_K", "W_Q"]], 3),
    ],
)
def test_dense_blocks_hold_unit_vectors_and_all_rows_of_every_part(
    parts, blocks, matrices
):
    model = ModelConfig(d_model=8)
    config = Config(model=model, blocks=blocks, parts=[Part(part) for part in parts])
    layout = Variant("", config).layout
    assert dense_bytes(config, layout) == matrices * 8 * 64**2
    config = Config(model=model, blocks=blocks, parts=config.parts, dtype=DType.float32)
    assert dense_bytes(config, layout) == matrices * 4 * 64**2


def test_costs_know_how_many_vectors_are_multiplied_together():
    """They stand twice, because settings are checked without torch."""
    assert (PROBES_AT_ONCE, COLUMNS_AT_ONCE, MEMORY_BOUND) == (
        column.PROBES_AT_ONCE,
        column.COLUMNS_AT_ONCE,
        column.MEMORY_BOUND,
    )
