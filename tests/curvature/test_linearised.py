"""The linearised network agrees with curvlinops to rounding, for every block of random architectures."""

import weakref

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hessfig.config.enums import MLP, Attention, Data, DType, Kind, Loss, Norm, QueryKey
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.column import multiplied
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.blocks import is_structural_zero, matrices_of
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.terms import Block, Part
from tests.toys import PAPER, toy_problem

SMALL = TaskConfig(digits=1, batch_size=2)

transformers = st.builds(
    ModelConfig,
    n_layers=st.integers(1, 2),
    n_heads=st.integers(1, 2),
    d_model=st.just(4),
    d_head=st.integers(2, 3),
    d_mlp=st.just(5),
    attention=st.sampled_from(PAPER.attentions),
    attention_skip=st.just(True),
    norm=st.sampled_from(PAPER.norms),
    mlp=st.sampled_from(PAPER.mlps),
    query_key=st.sampled_from(QueryKey),
    temperature=st.sampled_from([1.0, 1.7]),
)


def assert_same_columns(model, task):
    problem = toy_problem(model, task)
    weights = matrices_of(model)
    tape = LinearisedNetwork(problem, model)
    for layer in range(1, model.n_layers + 1):
        for col in weights:
            oracle = dense_blocks(ColumnOperator(problem, layer, col, weights))
            found = dense_blocks(tape.column(layer, col, weights))
            for key, block in oracle.items():
                scale = max(block.abs().max().item(), 1e-8)
                assert (found[key] - block).abs().max().item() <= 1e-12 * scale, (
                    layer,
                    key,
                    col,
                )


@settings(max_examples=8, derandomize=True, deadline=None)
@given(transformers, st.sampled_from(Loss))
@pytest.mark.long
def test_transformers_agree_with_curvlinops(model, loss):
    task = TaskConfig(digits=1, batch_size=2, loss=loss)
    # Where the softmax saturates, B = diag(p) - p p^T is the rounding of 1 - 1 in every
    # engine.
    problem = toy_problem(model, task)
    assume(float(problem.network(problem.batch.inputs).abs().max()) < 30)
    assert_same_columns(model, task)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.long
def test_chained_linear_attention_agrees(depth):
    model = ModelConfig(
        n_layers=depth,
        d_model=4,
        attention=Attention.linear,
        attention_skip=False,
        mlp=MLP.none,
    )
    assert_same_columns(
        model, TaskConfig(digits=1, batch_size=2, loss=Loss.mse_sum_unshifted)
    )


def test_linear_mlp_agrees():
    assert_same_columns(ModelConfig(kind=Kind.linear_mlp, n_layers=3, d_model=4), SMALL)


@pytest.mark.parametrize("query_key", list(QueryKey))
@pytest.mark.parametrize("attention", PAPER.attentions)
def test_bare_attention_agrees(attention, query_key):
    model = ModelConfig(
        kind=Kind.self_attention, d_model=4, attention=attention, query_key=query_key
    )
    assert_same_columns(
        model, TaskConfig(data=Data.gaussian, digits=1, batch_size=2, loss=Loss.mse)
    )


@settings(max_examples=12, derandomize=True, deadline=None)
@given(transformers)
def test_structural_zeros_are_exact_and_complete(model):
    tape = LinearisedNetwork(toy_problem(model, SMALL), model)
    for layer in range(1, model.n_layers + 1):
        for weight in matrices_of(model):
            functional = dense_blocks(tape.column(layer, weight, [weight]))[
                weight, Part.H_f
            ]
            at = layer if weight.has_layer else 0
            assert is_structural_zero(model, Block(at, weight, weight), Part.H_f) == (
                not functional.any()
            ), (layer, weight)


def test_float32_products_are_close_to_float64():
    model = ModelConfig(n_layers=2, d_model=8, norm=Norm.pre)
    weight = matrices_of(ModelConfig())[2]
    norms = {}
    for dtype in DType:
        problem = toy_problem(model, SMALL, seed=5, dtype=dtype)
        norms[dtype] = dense_blocks(
            LinearisedNetwork(problem, model).column(1, weight, [weight])
        )[weight, Part.H_f].norm()
    assert torch.isclose(norms[DType.float32].double(), norms[DType.float64], rtol=1e-4)


def test_products_lie_in_memory_as_joined_ones_do():
    """Norms depend on the order of sums: products of one piece have the layout of those of several."""
    problem = toy_problem(ModelConfig(d_model=4), SMALL)
    column = LinearisedNetwork(problem, ModelConfig(d_model=4)).column(
        1, "W_V", ["W_V", "W_Q"]
    )
    identity = torch.eye(column.dim, dtype=torch.float64)
    products = column.split_matmat(identity, (Part.H_o, Part.H_f))
    assert not all(product.is_contiguous() for product in products.values())
    whole = multiplied(column, identity)
    for key, product in products.items():
        assert whole[key].is_contiguous(), key
        assert torch.allclose(whole[key], product, rtol=1e-12, atol=1e-15), key


def test_the_product_of_a_chunk_is_written_into_the_result_and_freed():
    """All of them would be as large as the dense block once more."""
    problem = toy_problem(ModelConfig(d_model=4), SMALL)
    column = LinearisedNetwork(problem, ModelConfig(d_model=4)).column(
        1, "W_V", ["W_V"]
    )
    seen = []
    alive = []
    multiply = column.split_matmat

    def noted(vectors, parts):
        alive.append(sum(one() is not None for one in seen))
        products = multiply(vectors, parts)
        seen.extend(map(weakref.ref, products.values()))
        return products

    column.split_matmat = noted
    identity = torch.eye(column.dim, dtype=torch.float64)
    multiplied(column, identity, (Part.H_o, Part.H_f), at_once=3)
    # Those of the last chunk alone.
    assert alive == [0, *[2] * (len(alive) - 1)]
    assert len(alive) > 3
