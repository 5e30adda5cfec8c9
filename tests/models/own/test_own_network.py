"""Functions of users at their edges: rows and groups, networks that return their loss, batch statistics, refusals."""

import copy

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.errors import UserError
from tests.daily import thinned
from tests.double_backward import hessian
from tests.draws import tanh_network

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)).double()
Y = torch.arange(12) % 3


def network():
    torch.manual_seed(0)
    return tanh_network(4, 6, 3).double()


def measured(problem, part="H", name="all"):
    table = hessfig.measure(problem, blocks=[name], parts=part, estimator="dense")
    return float(table["value"].iloc[0])


def truth(loss, model):
    return hessian(loss, list(model.parameters()))


def rows(*numbers):
    """The entries of some rows of the first weight among all entries of the network."""
    return [4 * row + at for row in numbers for at in range(4)]


GROUPS = {
    "a list of rows": (("0.weight", [0, 2, 3]), rows(0, 2, 3)),
    "an array of rows, from the end too": (
        ("0.weight", numpy.array([5, -5])),
        rows(5, 1),
    ),
    "a range": (("0.weight", range(0, 6, 2)), rows(0, 2, 4)),
    "a tensor of rows": (("0.weight", torch.tensor([2])), rows(2)),
    "entries of a bias": (("0.bias", [0, 5]), [24, 29]),
    "a tuple of two": (("0.weight", "0.bias"), [*range(30)]),
    "a tuple of three": (
        ("0.bias", "0.weight", ("2.weight", numpy.s_[0])),
        [*range(24, 30), *range(24), *range(30, 36)],
    ),
    "a tuple of rows": ((("0.weight", [1]), ("0.bias", [1])), [*rows(1), 25]),
    "a list with rows": (
        ["0.bias", ("0.weight", [4, 1])],
        [*range(24, 30), *rows(4, 1)],
    ),
}


@pytest.mark.parametrize("kind", thinned(GROUPS, 2))
def test_groups_and_rows_are_parts_of_the_dense_hessian(kind):
    spec, at = GROUPS[kind]
    model = network()
    problem = hessfig.Problem(model, X, Y, weights={"part": spec})
    dense = truth(lambda: F.cross_entropy(model(X), Y), model)[at][:, at]
    assert measured(problem, name="part") == pytest.approx(
        float(dense.norm()), rel=1e-10
    )
    found = torch.as_tensor(problem.operator("part").dense())
    assert torch.linalg.eigvalsh(found) == pytest.approx(
        torch.linalg.eigvalsh(dense), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (("0.weight", [1, 1]), "the group part contains entries twice"),
        (("0.weight", [6]), "slice of part is not one of its"),
        (("0.weight", [True, False]), "slice of part is not one of its"),
        (("0.weight", []), "the group part is empty"),
        (
            ("0.weight", "2.wieght"),
            "no parameter '2.wieght'(.|\n)*did you mean '2.weight'",
        ),
    ],
)
def test_groups_that_are_none_are_refused(spec, words):
    with pytest.raises(UserError, match=words):
        hessfig.measure(hessfig.Problem(network(), X, Y, weights={"part": spec}))


class Lossy(nn.Module):
    """A network that returns its loss, a tensor of shape ()."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x, labels=None):
        outputs = self.inner(x)
        return (
            outputs.square().mean()
            if labels is None
            else F.cross_entropy(outputs, labels)
        )


LOSSY = {
    "one input": (
        lambda m: hessfig.Problem(m, X, Y, loss=lambda f, y: f),
        lambda m: m(X),
    ),
    "a function of it": (
        lambda m: hessfig.Problem(m, X, Y, loss=lambda f, y: (f - 1) ** 2),
        lambda m: (m(X) - 1) ** 2,
    ),
    "inputs and targets": (
        lambda m: hessfig.Problem(m, (X, Y), Y, loss=lambda f, y: f),
        lambda m: m(X, Y),
    ),
    "labels": (lambda m: hessfig.Problem(m, {"x": X, "labels": Y}), lambda m: m(X, Y)),
    "labels and a loss": (
        lambda m: hessfig.Problem(m, {"x": X, "labels": Y}, loss=lambda f, y: f),
        lambda m: m(X, Y),
    ),
}


@pytest.mark.parametrize("kind", thinned(LOSSY, 2))
def test_a_network_may_return_its_loss_as_a_number(kind):
    made, loss = LOSSY[kind]
    model = Lossy()
    dense = truth(lambda: loss(model), model)
    assert measured(made(model)) == pytest.approx(float(dense.norm()), rel=1e-10)
    assert torch.allclose(
        torch.as_tensor(made(model).operator("all").dense()), dense, atol=1e-12
    )


def test_the_parts_of_a_function_of_one_number():
    """H_o of (f - 1)^2 is 2 g g^T, with g the gradient of f."""
    model = Lossy()
    problem = LOSSY["a function of it"][0](model)
    slope = torch.cat(
        [
            one.flatten()
            for one in torch.autograd.grad(model(X), list(model.parameters()))
        ]
    )
    assert measured(problem, "H_o") == pytest.approx(
        2 * float(slope.square().sum()), rel=1e-10
    )


def test_a_number_without_a_loss_is_refused_with_a_remedy_that_works():
    with pytest.raises(UserError, match="the network returns one number") as refused:
        hessfig.measure(hessfig.Problem(Lossy(), X, Y))
    loss = eval(refused.value.remedy.partition("; or ")[0].partition("loss=")[2])
    assert measured(hessfig.Problem(Lossy(), X, Y, loss=loss)) > 0


def test_batch_norms_in_training_mode_are_refused_with_a_remedy_for_both_kinds_of_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)
    ).double()
    with pytest.raises(
        UserError,
        match=r"training mode(.|\n)*running_mean and running_var of each batch norm to None",
    ):
        hessfig.measure(hessfig.Problem(model, X, Y))
    trained = copy.deepcopy(model)
    # Of the statistics of the batch.
    dense = truth(lambda: F.cross_entropy(trained(X), Y), trained)
    own = copy.deepcopy(model)
    own[1].running_mean = own[1].running_var = None
    assert measured(hessfig.Problem(own.eval(), X, Y)) == pytest.approx(
        float(dense.norm()), rel=1e-9
    )
    plain = copy.deepcopy(model).eval()
    dense = truth(lambda: F.cross_entropy(plain(X), Y), plain)
    assert measured(hessfig.Problem(plain, X, Y)) == pytest.approx(
        float(dense.norm()), rel=1e-9
    )


def test_dropout_alone_is_told_nothing_of_batch_norms():
    with pytest.raises(UserError, match="training mode") as refused:
        hessfig.measure(
            hessfig.Problem(nn.Sequential(nn.Dropout(0.5), network()), X, Y)
        )
    assert refused.value.remedy == "network.eval()"


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_old_weight_norm_is_refused_with_a_remedy_that_works(dtype):
    model = network()
    nn.utils.weight_norm(model[2])
    for ask in (
        lambda: hessfig.measure(hessfig.Problem(model, X, Y), dtype=dtype),
        lambda: hessfig.Problem(model, X, Y).operator("all", dtype=dtype),
    ):
        with pytest.raises(
            UserError,
            match=r"torch\.nn\.utils\.weight_norm(.|\n)*got:     the weight of module '2'\n",
        ) as refused:
            ask()
    outputs = model(X).detach()
    module = model[2]
    for step in refused.value.remedy.partition(", for each")[0].split(", then "):
        eval(step, {"torch": torch, "module": module})
    assert torch.allclose(model(X), outputs)
    plain = torch.linalg.eigvalsh(
        truth(lambda: F.cross_entropy(written_out(model, X), Y), model)
    )
    assert measured(hessfig.Problem(model, X, Y)) == pytest.approx(
        float(plain.norm()), rel=1e-9
    )


def written_out(model, x):
    """Return the outputs with the weight norm of the last layer in elementary operations."""
    size = model[2].parametrizations.weight.original0
    direction = model[2].parametrizations.weight.original1
    weight = size * direction / direction.square().sum(1, keepdim=True).sqrt()
    return torch.tanh(model[0](x)) @ weight.T + model[2].bias


def test_a_random_loss_is_called_random():
    def noisy(outputs, targets):
        return F.cross_entropy(outputs + 0.1 * torch.randn_like(outputs), targets)

    with pytest.raises(UserError, match="the loss is random") as refused:
        hessfig.measure(hessfig.Problem(network(), X, Y, loss=noisy))
    assert "shape" not in str(refused.value)
    noise = 0.1 * torch.randn(12, 3).double()
    model = network()
    problem = hessfig.Problem(
        model, X, Y, loss=lambda f, y: F.cross_entropy(f + noise, y)
    )
    dense = truth(lambda: F.cross_entropy(model(X) + noise, Y), model)
    assert measured(problem) == pytest.approx(float(dense.norm()), rel=1e-10)
