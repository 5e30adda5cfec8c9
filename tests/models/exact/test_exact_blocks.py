"""Exact norms equal the dense float64 block to 1e-10, for every supported block of random architectures."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hessfig.config.enums import (
    MLP,
    Attention,
    DType,
    Kind,
    Loss,
    Norm,
    QueryKey,
    Scored,
    Sink,
)
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.errors import UserError
from hessfig.measurements.block_norms import dense_norms, hutchinson
from hessfig.models.blocks import is_structural_zero, matrices_of
from hessfig.models.exact.exact_blocks import ExactEngine
from hessfig.models.exact.support import Level, check_exact, exactness
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Matrix, Part
from tests.daily import daily
from tests.toys import ARCHITECTURES, PAPER, exact_norms, toy_problem, toy_task

PARTS = list(PARTS)

transformers = st.builds(
    ModelConfig,
    n_layers=st.integers(1, 2),
    n_heads=st.integers(1, 2),
    d_model=st.just(4),
    d_head=st.integers(2, 3),
    d_mlp=st.just(5),
    attention=st.sampled_from(PAPER.attentions),
    norm=st.sampled_from(PAPER.norms),
    mlp=st.sampled_from(PAPER.mlps),
    query_key=st.sampled_from(QueryKey),
    temperature=st.sampled_from([1.0, 1.7]),
)


def assert_exact(objective, model, layer, tolerance=1e-10):
    """Compare every supported block of `layer` with the dense one of curvlinops."""
    engine = ExactEngine(objective, model)
    weights = matrices_of(model)
    for index, col in enumerate(weights):
        rows = weights[index:]
        dense = dense_norms(ColumnOperator(objective, layer, col, rows), PARTS)
        for row in rows:
            block = Block(layer if row.has_layer or col.has_layer else 0, row, col)
            parts = [
                part
                for part in PARTS
                if exactness(model, block, part).level != Level.unsupported
            ]
            for (_, part), norm in engine.column(
                block.layer, col, [row], parts
            ).items():
                oracle = dense[row, part].value
                whole = dense[row, Part.H].value
                assert norm == pytest.approx(
                    oracle, rel=tolerance, abs=1e-13 * whole
                ), (block, part)


@settings(max_examples=8, derandomize=True, deadline=None, phases=[Phase.generate])
@given(transformers, st.sampled_from(Loss), st.sampled_from([0.1, 0.7, 2.0]))
@pytest.mark.long
def test_every_supported_block_of_a_transformer(model, loss, sigma):
    task = toy_task(model, loss=loss, batch_size=2)
    for layer in range(1, model.n_layers + 1):
        assert_exact(toy_problem(model, task, sigma=sigma), model, layer)


SMALL = ModelConfig(d_model=4, d_mlp=5)
CHAIN = replace(SMALL, attention_skip=False, mlp=MLP.none, attention=Attention.linear)
SUNK = replace(SMALL, n_layers=2, n_heads=2, sink=Sink.both, sink_beta=1.5)
DEEP = replace(SMALL, n_layers=3, norm=Norm.pre)
# A network, its layer and its task.
NETWORKS = {
    "pre": (replace(SMALL, norm=Norm.pre, mlp=MLP.gelu), 1, {}),
    "post": (replace(SMALL, norm=Norm.post), 1, {}),
    "no skip, mse": (CHAIN, 1, {"loss": Loss.mse}),
    "no skip, sum": (CHAIN, 1, {"loss": Loss.mse_sum_unshifted}),
    "repeated sequences": (SMALL, 1, {"batch_size": 24}),
    "sink": (SUNK, 2, {}),
    "sink below": (SUNK, 1, {}),
    "sink of a single matrix": (
        replace(SUNK, n_layers=1, query_key=QueryKey.single),
        1,
        {},
    ),
    "sink behind a norm": (replace(SUNK, norm=Norm.pre, mlp=MLP.gelu), 2, {}),
    # Widths that are no multiple of a strip of entries.
    "gelu, 20 wide": (replace(SMALL, d_mlp=20, mlp=MLP.gelu), 1, {}),
    "gelu, 50 wide": (replace(SMALL, d_mlp=50, mlp=MLP.gelu), 1, {}),
    "every position scored": (SMALL, 1, {"scored": Scored.all}),
    "every position of two": (replace(SMALL, n_layers=2), 1, {"scored": Scored.all}),
    "first of three": (DEEP, 1, {}),
    "second of three": (DEEP, 2, {}),
}


@pytest.mark.parametrize("name", daily(NETWORKS, *[*NETWORKS][:10]))
def test_every_supported_block_of(name):
    model, layer, task = NETWORKS[name]
    task = toy_task(model, **{"batch_size": 2, **task})
    assert_exact(toy_problem(model, task), model, layer)


def test_a_block_and_its_transpose_have_one_norm():
    model = ARCHITECTURES["heads"]
    engine = ExactEngine(toy_problem(model), model)
    for row, col in [
        (Matrix.W_V, Matrix.W_Q),
        (Matrix.W_E, Matrix.W_O),
        (Matrix.W_in, Matrix.W_K),
    ]:
        one, other = (
            engine.column(1, *pair, PARTS) for pair in [(col, [row]), (row, [col])]
        )
        assert list(one.values()) == list(other.values())


@pytest.mark.parametrize("query_key", list(QueryKey))
@pytest.mark.parametrize("attention", PAPER.attentions)
def test_bare_attention(attention, query_key):
    model = ModelConfig(
        kind=Kind.self_attention,
        d_model=4,
        n_heads=2,
        attention=attention,
        query_key=query_key,
    )
    assert_exact(toy_problem(model), model, 1)


@pytest.mark.parametrize("loss", list(Loss))
def test_linear_mlp(loss):
    model = ModelConfig(kind=Kind.linear_mlp, d_model=4, n_layers=3)
    for layer in (1, 2, 3):
        assert_exact(toy_problem(model, toy_task(model, loss=loss)), model, layer)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_structural_zeros_are_exactly_zero(name):
    model = ARCHITECTURES[name]
    engine = ExactEngine(toy_problem(model), model)
    for weight in matrices_of(model):
        block = Block(model.n_layers if weight.has_layer else 0, weight, weight)
        if is_structural_zero(model, block, Part.H_f):
            norms = engine.column(block.layer, weight, [weight], PARTS)
            assert norms[weight, Part.H_f] == 0.0
            assert norms[weight, Part.H] == norms[weight, Part.H_o]


def test_a_part_alone_is_the_part_among_all():
    model = ARCHITECTURES["pre"]
    engine = ExactEngine(toy_problem(model), model)
    rows = [Matrix.W_Q, Matrix.W_V]
    together = engine.column(2, Matrix.W_Q, rows, PARTS)
    for part in PARTS:
        assert exact_norms(
            toy_problem(model), 2, Matrix.W_Q, rows, [part], model=model
        ) == {key: norm for key, norm in together.items() if key[1] == part}


def test_float32_problems_are_measured_in_float64():
    model = ARCHITECTURES["heads"]
    task = TaskConfig(digits=1, batch_size=3)
    single = exact_norms(
        toy_problem(model, task, dtype=DType.float32),
        1,
        Matrix.W_Q,
        [Matrix.W_Q],
        PARTS,
        model=model,
    )
    double = exact_norms(
        toy_problem(model, task), 1, Matrix.W_Q, [Matrix.W_Q], PARTS, model=model
    )
    for key, norm in single.items():
        assert norm == pytest.approx(double[key], rel=1e-5)
        assert norm != double[key]


def test_no_exact_functional_part_below_the_last_layer():
    model = ARCHITECTURES["two layers"]
    engine = ExactEngine(toy_problem(model), model)
    assert (
        engine.column(1, Matrix.W_V, [Matrix.W_V], [Part.H_o])[Matrix.W_V, Part.H_o] > 0
    )
    with pytest.raises(
        UserError,
        match=r"no exact H_f of block \(W_V, W_V\) of layer 1(.|\n)*hutchinson",
    ):
        engine.column(1, Matrix.W_V, [Matrix.W_V], [Part.H_o, Part.H_f])


@pytest.mark.parametrize(
    ("changes", "block", "part", "got"),
    [
        ({}, Block(0, "all", "all"), "H_o", r"block \(all, all\) of layer 0"),
        ({}, Block(1, "W_Q", "W_Q"), "H_oT", "part H_oT"),
        ({"tied": True}, Block(1, "W_Q", "W_Q"), "H_oT", "part H_oT"),
        ({"tied": True}, Block(1, "W_Q", "W_Q"), "H_o", "model.tied=True"),
        ({"kind": "mlp"}, Block(1, "W_in", "W_in"), "H_o", "model.kind=mlp"),
        ({"n_layers": 2}, Block(1, "W_V", "W_V"), "H_f", "part H_f of block"),
    ],
)
def test_a_missing_exact_norm_is_refused_by_what_is_not_allowed(
    changes, block, part, got
):
    model = ModelConfig(**changes)
    with pytest.raises(UserError, match=rf"got:     {got}") as refused:
        check_exact(model, [block], [Part(part)])
    assert refused.value.got not in refused.value.allowed.split(", ")


@pytest.mark.slow
@pytest.mark.parametrize("norm", [Norm.none, Norm.pre])
def test_within_hutchinsons_error_at_paper_size(norm):
    model = ModelConfig(norm=norm)
    problem = toy_problem(model, TaskConfig(), sigma=1.0)
    for weight in (Matrix.W_V, Matrix.W_Q):
        exact = exact_norms(problem, 1, weight, [weight], PARTS, model=model)
        column = ColumnOperator(problem, 1, weight, [weight])
        probed = hutchinson(column, PARTS, 40, generator=stream(1, weight.value))
        for key, norm_ in probed.items():
            assert abs(norm_.value - exact[key]) <= 4 * norm_.error, key


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["pre", "heads", "bare"])
def test_gpu_agrees(name):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    model = ARCHITECTURES[name]
    for layer in range(1, model.n_layers + 1):
        rows = [Matrix.W_Q]
        parts = PARTS
        here = exact_norms(
            toy_problem(model), layer, Matrix.W_Q, rows, parts, model=model
        )
        there = exact_norms(
            toy_problem(model).to(torch.device("cuda")),
            layer,
            Matrix.W_Q,
            rows,
            parts,
            model=model,
        )
        for key, value in here.items():
            assert there[key] == pytest.approx(value, rel=1e-10)
