"""Layouts: from names to tensors, and every parameter once."""

from dataclasses import replace

import pytest

from hessfig.config.schema import Config
from hessfig.models.blocks import blocks_of, matrices_of, weight_size
from hessfig.models.kinds.transformer import layout
from hessfig.terms import Block, Matrix
from tests.daily import thinned
from tests.toys import ARCHITECTURES, toy_problem, toy_task


@pytest.mark.parametrize("name", thinned(ARCHITECTURES, 2))
def test_every_weight_of_every_layer_is_found_and_has_the_size_the_plan_assumes(name):
    model = ARCHITECTURES[name]
    problem = toy_problem(ARCHITECTURES[name])
    for layer in range(1, model.n_layers + 1):
        for matrix in matrices_of(model):
            if matrix != Matrix.W:
                assert problem.weight(layer, matrix).numel() == weight_size(
                    matrix, model, toy_task(model)
                )


def test_layers_count_from_one_and_shared_weights_have_none():
    problem = toy_problem(ARCHITECTURES["two layers"])
    network = problem.network
    assert problem.weight(2, Matrix.W_V) is network.layers[1].attn.v.weight
    assert (
        problem.weight(0, Matrix.W_U)
        is problem.weight(2, Matrix.W_U)
        is network.head.weight
    )


def test_a_layer_the_model_has_not_is_an_error():
    with pytest.raises(KeyError, match="no weight W_Q in layer 6"):
        toy_problem(ARCHITECTURES["softmax"]).weight(6, Matrix.W_Q)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_layout_names_every_parameter_of_the_network_once(name):
    problem = toy_problem(ARCHITECTURES[name])
    held = {}
    for path, parameter in problem.network.named_parameters():
        held[path] = parameter.numel()
    assert {weight.parameter: weight.size for weight in problem.layout.weights} == held
    assert len(problem.layout.weights) == len(held)


@pytest.mark.long
def test_plans_of_thousands_of_layers_are_made_layer_by_layer():
    """Work that grew with the square of the number of layers took hours at three thousand."""
    model = replace(ARCHITECTURES["softmax"], n_layers=1000)
    blocks = blocks_of("each", layout(Config(model=model)), model)
    assert len(blocks) == 3 + 6 * 1000
    assert blocks[-1] == Block(1000, "W_out", "W_out")
