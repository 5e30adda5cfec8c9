"""Structural zeros: exactly zero where the structure says so, and nowhere else, over random architectures."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hessfig.config.enums import Kind, Norm, QueryKey
from hessfig.config.science import ModelConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.problem import rademacher
from hessfig.models.blocks import is_structural_zero, matrices_of
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.rng import stream
from hessfig.terms import Block, Matrix, Part
from tests.toys import ARCHITECTURES, PAPER, toy_problem, toy_task

transformers = st.builds(
    ModelConfig,
    n_layers=st.integers(1, 3),
    n_heads=st.integers(1, 2),
    d_model=st.just(4),
    d_head=st.integers(2, 3),
    d_mlp=st.just(7),
    attention=st.sampled_from(PAPER.attentions),
    attention_skip=st.booleans(),
    norm=st.sampled_from(PAPER.norms),
    mlp=st.sampled_from(PAPER.mlps),
    query_key=st.sampled_from(QueryKey),
).filter(lambda model: model.attention_skip or model.norm != Norm.post)
bare = st.builds(
    ModelConfig,
    kind=st.just(Kind.self_attention),
    d_model=st.just(4),
    n_heads=st.integers(1, 2),
    attention=st.sampled_from(PAPER.attentions),
    query_key=st.sampled_from(QueryKey),
)


def functional_product(network, layer, matrix):
    column = network.column(layer, matrix, [matrix])
    probes = rademacher(
        column.dim, 2, generator=stream(0, "probes"), dtype=column.dtype
    )
    return column.split_matmat(probes)[matrix, Part.H_f]


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(transformers | bare)
@example(ModelConfig(kind=Kind.linear_mlp, d_model=4, n_layers=3))
def test_zeros_are_exact_where_promised_and_nowhere_else(model):
    network = LinearisedNetwork(toy_problem(model, toy_task(model, digits=2)), model)
    for layer in range(1, model.n_layers + 1):
        for matrix in matrices_of(model):
            block = Block(layer if matrix.has_layer else 0, matrix, matrix)
            vanishes = not functional_product(network, layer, matrix).any()
            assert is_structural_zero(model, block, Part.H_f) == vanishes, (
                f"{block} of {model}"
            )


@pytest.mark.parametrize(
    ("name", "matrix"),
    [("softmax", "W_V"), ("softmax", "W_out"), ("linear", "W_Q"), ("linear mlp", "W")],
)
def test_curvlinops_sees_the_same_exact_zeros(name, matrix):
    operator = ColumnOperator(
        toy_problem(ARCHITECTURES[name]), 1, Matrix(matrix), [Matrix(matrix)]
    )
    probes = rademacher(
        operator.dim, 3, generator=stream(0, "probes"), dtype=operator.dtype
    )
    assert not operator.split_matmat(probes)[Matrix(matrix), Part.H_f].any()


def test_only_the_functional_part_of_diagonal_blocks_is_ever_promised():
    model = ARCHITECTURES["softmax"]
    value = Matrix.W_V
    assert is_structural_zero(model, Block(1, value, value), Part.H_f)
    assert not is_structural_zero(model, Block(1, value, value), Part.H_o)
    assert not is_structural_zero(model, Block(1, value, value), Part.H)
    assert not is_structural_zero(model, Block(1, value, Matrix.W_Q), Part.H_f)
