"""The linearised network agrees with curvlinops to rounding, for every block of random architectures."""

import weakref

import pytest
import torch

from hessfig.config.enums import Data, Kind, Loss, QueryKey
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.column import multiplied
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.blocks import matrices_of
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.terms import Part
from tests.toys import PAPER, toy_problem

SMALL = TaskConfig(digits=1, batch_size=2)


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
