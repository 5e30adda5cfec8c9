"""Refusals of batches, losses and networks lead to compute_loss; arrays and data sets are taken."""

import re

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hessfig
from hessfig.errors import UserError

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.ones(6, 2)


class OwnLoss(nn.Module):
    """Returns its loss of one or two inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(4, 2)

    def forward(self, x, y=None, mask=None):
        return (self.map(x) - (Y if y is None else y)[: len(x)].to(x)).square().mean()


class PairLoss(OwnLoss):
    """Returns its loss of two inputs."""

    def forward(self, x, y):
        return super().forward(x, y)


class Heads(nn.Module):
    """Returns several outputs."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(4, 2)

    def forward(self, x):
        return self.map(x), self.map(2 * x)


REFUSED = {
    "a network that returns its loss": lambda: hessfig.Problem(OwnLoss(), X),
    "a dictionary without labels": lambda: hessfig.Problem(OwnLoss(), {"x": X, "y": Y}),
    "several outputs": lambda: hessfig.Problem(Heads(), X, Y, "mse"),
    "a dictionary of targets": lambda: hessfig.Problem(Heads(), X, {"a": Y}, "mse"),
    "several batches of a loss": lambda: hessfig.Problem(
        OwnLoss(), [{"x": X, "labels": Y}] * 2
    ),
    "a loss of batches": lambda: hessfig.Problem(
        nn.Linear(4, 2), [X, X], [Y, Y], lambda o, y: (o - y).std()
    ),
    "an unknown loss": lambda: hessfig.Problem(nn.Linear(4, 2), X, Y, "hinge"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_lead_to_compute_loss(name):
    given = REFUSED[name]()
    with pytest.raises(UserError) as caught:
        given.operator("all")
    remedy = str(caught.value.remedy)
    assert re.search(
        r"or hessfig\.Problem\(network, .*, compute_loss=lambda network, batch: .*\)",
        remedy,
    ), remedy
    assert "input_ids" not in str(caught.value)


def followed(error, **names):
    """Return the problem that the last remedy of a refusal writes down."""
    call = str(error.remedy).rpartition("; or ")[2]
    return eval(call.removesuffix(", with any function"), {"hessfig": hessfig, **names})


def test_the_remedy_of_a_network_that_returns_its_loss_works_as_it_is():
    for network, batch in (
        (OwnLoss(), X),
        (PairLoss(), (X, Y)),
        (OwnLoss(), {"x": X, "y": Y}),
    ):
        given = hessfig.Problem(network, batch)
        with pytest.raises(UserError) as caught:
            given.operator("all")
        problem = followed(caught.value, network=given.network, batch=batch)
        plain = hessfig.Problem(given.network.map, X, Y, "mse")
        assert torch.allclose(
            problem.operator("all").dense(), plain.operator("all").dense(), rtol=1e-9
        )


class Named(Heads):
    """Returns several outputs in a dictionary."""

    def forward(self, x):
        return dict(zip("ab", super().forward(x), strict=True))


def _of_both(outputs, targets):
    first, second = outputs.values() if isinstance(outputs, dict) else outputs
    return (first - targets).square().mean() + second.exp().mean()


@pytest.mark.parametrize("kind", [Heads, Named])
def test_the_remedy_of_several_outputs_names_the_argument(kind):
    network = kind()
    with pytest.raises(UserError, match="not a tensor of real numbers") as caught:
        hessfig.Problem(network, X, Y, _of_both).operator("all")
    assert "{'x': inputs} as the inputs, and a function loss(outputs, targets)" in str(
        caught.value.remedy
    )
    problem = followed(
        caught.value, network=network, inputs=X, targets=Y, loss=_of_both
    )
    plain = hessfig.Problem(network, {"x": X}, Y, _of_both).operator("all").dense()
    assert torch.allclose(problem.operator("all").dense(), plain, rtol=1e-9)
    one = (
        hessfig.Problem(network, X, Y, "mse", outputs={Heads: 0, Named: "a"}[kind])
        .operator("all")
        .dense()
    )
    assert torch.allclose(
        one,
        hessfig.Problem(network.map, X, Y, "mse").operator("all").dense(),
        rtol=1e-9,
    )


@pytest.mark.parametrize("inputs", [X, {"x": X}])
def test_the_remedy_of_a_dictionary_of_targets_works_as_it_is(inputs):
    given = hessfig.Problem(
        Heads(),
        inputs,
        {"a": Y},
        lambda outputs, targets: _of_both(outputs, targets["a"]),
    )
    with pytest.raises(UserError) as caught:
        given.operator("all")
    problem = followed(
        caught.value,
        network=given.network,
        inputs=inputs,
        targets={"a": Y},
        loss=given.loss,
    )
    plain = (
        hessfig.Problem(given.network, {"x": X}, Y, _of_both).operator("all").dense()
    )
    assert torch.allclose(problem.operator("all").dense(), plain, rtol=1e-9)


class Noisy(nn.Module):
    """Adds noise to its inputs: drawn anew, drawn from a generator made in forward(), or given."""

    def __init__(self, *, is_seeded=False):
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(4, 2)
        self.is_seeded = is_seeded

    def forward(self, x, noise=None):
        generator = torch.Generator().manual_seed(0) if self.is_seeded else None
        return self.map(
            x + (torch.randn(x.shape, generator=generator) if noise is None else noise)
        ).tanh()


def test_both_remedies_of_noise_in_forward_work():
    with pytest.raises(UserError, match="change from call to call") as caught:
        hessfig.Problem(Noisy(), X, Y, "mse").operator("all")
    assert "network(inputs, noise)" in str(caught.value.remedy)
    assert "torch.Generator().manual_seed(0)" in str(caught.value.remedy)
    noise = torch.randn(X.shape, generator=torch.Generator().manual_seed(0))
    as_input = hessfig.Problem(Noisy(), (X, noise), Y, "mse").operator("all").dense()
    drawn = hessfig.Problem(Noisy(is_seeded=True), X, Y, "mse").operator("all").dense()
    summed = (
        hessfig.Problem(nn.Sequential(Noisy().map, nn.Tanh()), X + noise, Y, "mse")
        .operator("all")
        .dense()
    )
    assert torch.allclose(as_input, summed, rtol=1e-6)
    assert torch.allclose(drawn, summed, rtol=1e-6)


def test_arrays_and_data_sets_are_taken():
    network = nn.Linear(4, 2)
    plain = hessfig.Problem(network, X, Y, "mse").operator("all").dense()
    data = TensorDataset(X, Y)
    for given in (
        hessfig.Problem(network, X.numpy(), Y.numpy(), "mse"),
        hessfig.Problem(network, [(X.numpy(), Y.numpy())], loss="mse"),
        hessfig.Problem(network, data, loss="mse"),
        hessfig.Problem(
            network, {"input": numpy.asarray(X), "y": numpy.asarray(Y)}, "y", "mse"
        ),
    ):
        assert torch.allclose(given.operator("all").dense(), plain, rtol=1e-12)


def test_a_wrong_name_of_a_weight_is_another_matter():
    with pytest.raises(UserError) as caught:
        hessfig.Problem(nn.Linear(4, 2), X, Y, "mse", weights={"a": "wieght"}).operator(
            "a"
        )
    assert "compute_loss" not in str(caught.value)


def test_pairs_and_all_have_one_meaning_each():
    problem = hessfig.Problem(nn.Linear(4, 2), X, Y, "mse")
    pairs = hessfig.measure(problem, blocks="pairs", parts="H")[
        ["row", "col"]
    ].values.tolist()
    assert pairs == [["weight", "weight"], ["weight", "bias"], ["bias", "bias"]]
    with pytest.warns(FutureWarning, match=r"blocks=\['all'\]"):
        assert len(hessfig.measure(problem, blocks="all", parts="H")) == 3
    assert len(hessfig.measure(problem, blocks=["all"], parts="H")) == 1
