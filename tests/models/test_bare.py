"""The linear MLP and the bare self-attention layer, by hand."""

import pytest
from torch.testing import assert_close

from hessfig.config.enums import Kind, QueryKey
from hessfig.config.science import ModelConfig
from tests.toys import toy_problem


def outputs(objective):
    network = objective.network
    batch = objective.batch
    return network.from_hidden(network.hidden(batch.inputs, 0), 0, batch.scored)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_linear_mlp_is_a_product_of_matrices(depth):
    problem = toy_problem(ModelConfig(kind=Kind.linear_mlp, d_model=4, n_layers=2))
    network = problem.network
    batch = problem.batch
    expected = (
        network.tok_embed.weight[batch.inputs]
        @ network.layers[0].weight.T
        @ network.layers[1].weight.T
    )
    found = network.from_hidden(
        network.hidden(batch.inputs, depth), depth, batch.scored
    )
    assert_close(found, expected[:, batch.scored])


def test_a_single_matrix_takes_the_place_of_two():
    model = ModelConfig(kind=Kind.self_attention, d_model=4)
    pair = toy_problem(model)
    single = toy_problem(
        ModelConfig(kind=Kind.self_attention, d_model=4, query_key=QueryKey.single)
    )
    single.network.v.weight.copy_(pair.network.v.weight)
    single.network.q.weight.copy_(pair.network.k.weight.T @ pair.network.q.weight)
    assert_close(outputs(single), outputs(pair))
