"""Float32 products are those of the float64 network, even where a float32 network would be another one."""

import pytest
import torch

from hessfig.config.enums import Norm
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.terms import Part
from tests.toys import toy_problem

DEEP = ModelConfig(n_layers=3, d_model=32)
TASK = TaskConfig(digits=2, batch_size=8)


def saturated(model, factor):
    """Return a network of float32 numbers, held in float64, whose attention is one-hot almost everywhere."""
    problem = toy_problem(model, TASK).cast(torch.float32).cast(torch.float64)
    with torch.no_grad():
        problem.network.get_parameter("tok_embed.weight").mul_(factor)
    return problem


def difference(objective, model, columns=("W_Q", "W_V")):
    """Return the largest relative error of float32 products, over layers, weights and parts."""
    narrow = LinearisedNetwork(objective.cast(torch.float32), model)
    wide = LinearisedNetwork(objective, model)
    found = []
    for layer in range(1, model.n_layers + 1):
        for col in columns:
            column = wide.column(layer, col, [col])
            probes = torch.randn(
                column.dim, 4, dtype=torch.float64, generator=seeded(layer)
            )
            exact = column.split_matmat(probes)
            products = narrow.column(layer, col, [col]).split_matmat(probes.float())
            for product in products.values():
                assert product.dtype == torch.float32
            found += [
                off(products[key], value) for key, value in exact.items() if value.any()
            ]
    return max(found)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def off(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("norm", list(Norm))
def test_products_are_right_to_the_rounding_of_float32(norm):
    model = ModelConfig(n_layers=2, d_model=16, norm=norm)
    assert difference(toy_problem(model, TASK), model) < 2e-6


def test_groups_with_norms_and_biases_are_right_too():
    model = ModelConfig(n_layers=1, d_model=8, norm=Norm.pre)
    assert (
        difference(toy_problem(model, TASK), model, ("norms", "biases", "attention"))
        < 2e-6
    )


@pytest.mark.parametrize(("col", "part"), [("W_Q", Part.H_o), ("W_V", Part.H_f)])
def test_saturated_attention_costs_few_digits(col, part):
    """What reaches the first layer is 1 - p of attention weights p near 1, which a float32 network does not have."""
    problem = saturated(DEEP, 30.0)
    rounded = problem.cast(torch.float32)
    probes = torch.randn(32 * 32, 2, dtype=torch.float64, generator=seeded(0))
    exact = (
        LinearisedNetwork(problem, DEEP)
        .column(1, col, [col])
        .split_matmat(probes)[col, part]
    )
    found = (
        LinearisedNetwork(rounded, DEEP)
        .column(1, col, [col])
        .split_matmat(probes.float())[col, part]
    )
    float32 = ColumnOperator(rounded, 1, col, [col]).split_matmat(probes.float())[
        col, part
    ]
    assert exact.norm() < 1e-6
    assert off(found, exact) < 3e-4
    assert off(float32, exact) > 0.3


def test_the_network_is_compared_in_float64():
    """Outputs of a saturated float32 network are others; that is not taken for another forward pass."""
    network = LinearisedNetwork(saturated(DEEP, 300.0).cast(torch.float32), DEEP)
    assert network.problem.dtype == torch.float64
    assert network.dtype == torch.float32
    assert network.holds(1, "W_Q")
