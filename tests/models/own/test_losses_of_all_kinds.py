"""One loss given by name, as torch's module and as a function: the same numbers, or the same refusal, in every way."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.errors import UserError
from tests.daily import thinned
from tests.double_backward import hessian
from tests.draws import tanh_network

COUNT = 14
MEANS = {
    "name": "cross_entropy",
    "module": nn.CrossEntropyLoss(),
    "function": lambda outputs, targets: F.cross_entropy(outputs, targets),
}
SUMS = {
    "module": nn.CrossEntropyLoss(reduction="sum"),
    "function": lambda outputs, targets: F.cross_entropy(
        outputs, targets, reduction="sum"
    ),
}


class OfAVariance(nn.Module):
    """Minus the logarithm of a normal density whose variance is an output: not convex in the outputs."""

    reduction = "mean"

    def forward(self, outputs, targets):
        return (
            outputs[:, 1] + (outputs[:, 0] - targets) ** 2 * torch.exp(-outputs[:, 1])
        ).mean()


def parts_of_a_problem(outputs=4):
    torch.manual_seed(3)
    network = tanh_network(3, 5, outputs).double()
    return (
        network,
        torch.randn(COUNT, 3, dtype=torch.float64),
        torch.randint(0, 4, (COUNT,)),
    )


def numbers(loss, quantity, **settings):
    problem = hessfig.Problem(*parts_of_a_problem(), loss)
    table = hessfig.measure(
        problem, blocks=["0.weight"], quantities=[quantity], **settings
    )
    return table.set_index(["quantity", "row", "part", "index"])["value"].sort_index()


@pytest.mark.parametrize("kind", thinned(["module", "function"], 2))
@pytest.mark.parametrize(
    "quantity",
    [
        pytest.param("stationarity", marks=pytest.mark.long),
        pytest.param("hessian_distance", marks=pytest.mark.long),
        *("landscape_difference", "landscape_integrals", "approximations"),
    ],
)
def test_a_mean_over_samples_is_one_however_it_is_given(quantity, kind):
    found = numbers(MEANS[kind], quantity)
    known = numbers(MEANS["name"], quantity)
    pd.testing.assert_series_equal(found, known, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize(
    "quantity", ["stationarity", "landscape_difference", "hessian_distance"]
)
def test_a_sum_over_samples_has_no_mean_of_the_first(quantity, kind):
    with pytest.raises(UserError, match="not a mean over samples"):
        numbers(SUMS[kind], quantity)


def test_hessians_of_the_first_samples_are_those_of_their_loss():
    network, inputs, targets = parts_of_a_problem()
    weight = network[0].weight
    found = numbers("cross_entropy", "hessian_distance", estimator="dense")[
        "subset_norm", "0.weight", "H"
    ]
    assert len(found) > 3
    for k, value in found.items():
        truth = hessian(
            lambda k=k: F.cross_entropy(network(inputs[:k]), targets[:k]), [weight]
        )
        assert value == pytest.approx(float(truth.norm()), rel=1e-9)


@pytest.mark.long
def test_the_distance_by_chance_knows_its_error():
    """Over 40 seeds of the test vectors, its standard error is its standard deviation within a factor of 1.6."""
    problem = hessfig.Problem(*parts_of_a_problem(), "cross_entropy")
    found = []
    asked = {"blocks": ["0.weight"], "parts": "H", "quantities": ["hessian_distance"]}
    for seed in range(40):
        table = hessfig.measure(
            problem, **asked, estimator="hutchinson", num_probes=12, seed=seed
        )
        found.append(
            table[
                (table["quantity"] == "hessian_distance_null") & (table["index"] == 4)
            ].iloc[0]
        )
    spread = np.std([row["value"] for row in found], ddof=1)
    error = np.mean([row["error"] for row in found])
    assert 1 / 1.6 < error / spread < 1.6


def test_a_module_that_is_not_convex_has_no_split():
    """As a module and as a function: nothing but the test tells whether a loss of the user's is convex."""
    network, inputs, _ = parts_of_a_problem(2)
    of_variance = OfAVariance()
    for loss in (of_variance, lambda outputs, targets: of_variance(outputs, targets)):
        problem = hessfig.Problem(network, inputs, inputs[:, 0], loss)
        assert set(hessfig.measure(problem, blocks=["0.weight"])["part"]) == {"H"}
        with pytest.raises(UserError, match="not convex"):
            problem.operator("all", "H_o")


def test_jacobian_norms_of_unequal_batches_are_those_of_one():
    network, inputs, targets = parts_of_a_problem()
    whole = hessfig.Problem(network, inputs, targets)
    parts = hessfig.Problem(
        network, [inputs[:4], inputs[4:]], [targets[:4], targets[4:]]
    )
    one, two = (
        hessfig.measure(
            problem,
            blocks=["0.weight"],
            quantities=["jacobian_norm"],
            estimator="dense",
        )["value"][0]
        for problem in (whole, parts)
    )
    assert two == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("name", ["all", "all@2", "each"])
def test_names_that_blocks_have_already_are_refused(name):
    network = nn.Linear(3, 4)
    network.register_parameter(name.partition("@")[0], nn.Parameter(torch.zeros(2)))
    with pytest.raises(UserError, match="is taken"):
        hessfig.Problem(network, torch.ones(2, 3), torch.tensor([0, 1])).operator(
            "weight"
        )
    with pytest.raises(UserError, match="is taken"):
        hessfig.measure(
            hessfig.Problem(*parts_of_a_problem(), weights={name: "0.weight"})
        )
