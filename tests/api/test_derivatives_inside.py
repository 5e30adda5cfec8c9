"""Networks that differentiate inside forward() (residuals, forces, inner steps), against double backward."""

import gc
import warnings

import pytest
import torch
from torch import nn

import hessfig
from hessfig.curvature.gradients import is_finite, loss_value
from tests.daily import daily, thinned
from tests.double_backward import hessian


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


class Residual(Body):
    """u'' + u in the first coordinate, by autograd."""

    def forward(self, t):
        t = t.detach().requires_grad_()
        u = self.net(t)
        (first,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), t, create_graph=True)
        return second[:, :1] + u


class Forces(Body):
    """Minus the gradient of the energy; the input itself is told to require a gradient."""

    def forward(self, x):
        x.requires_grad_(True)
        return -torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0][:, :1]


class Functional(Body):
    def forward(self, t):
        def energy(one):
            return self.net(one[None])[0].sum()

        return torch.func.vmap(torch.func.grad(energy))(t)[:, :1] + self.net(t)


class Forward(Body):
    def forward(self, t):
        u, tangent = torch.func.jvp(self.net, (t,), (torch.ones_like(t),))
        return u * tangent


class Penalised(Body):
    """The score of a score model: the gradient under enable_grad, added to the output."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            u = self.net(x)
            slope = torch.autograd.grad(
                u, x, torch.ones_like(u), create_graph=True, retain_graph=True
            )[0]
        return u + slope.square().sum(-1, keepdim=True)


class InnerStep(Body):
    """One step of gradient descent on the network's own last layer before it is used (MAML)."""

    def forward(self, x):
        hidden = self.net[1](self.net[0](x))
        last = self.net[2]
        loss = (last(hidden) - 1).square().mean()
        (slope,) = torch.autograd.grad(loss, [last.weight], create_graph=True)
        return hidden @ (last.weight - 0.1 * slope).T + last.bias


KINDS = [Residual, Forces, Functional, Forward, Penalised, InnerStep]


def problem_of(kind):
    torch.manual_seed(0)
    return hessfig.Problem(
        kind().double(), torch.randn(5, 2).double(), torch.randn(5, 1).double(), "mse"
    )


def truth(problem):
    x = problem.inputs
    y = problem.targets
    return hessian(
        lambda: (problem.network(x.clone()) - y).square().mean(),
        list(problem.network.parameters()),
    )


@pytest.mark.parametrize("kind", thinned(KINDS, 2))
def test_it_is_measured(kind):
    problem = problem_of(kind)
    dense = truth(problem)
    table = hessfig.measure(
        problem,
        blocks=["all"],
        estimator="dense",
        quantities=["frobenius", "trace", "loss"],
    )
    found = {(row.quantity, row.part): row.value for row in table.itertuples()}
    assert found["frobenius", "H"] == pytest.approx(float(dense.norm()), rel=1e-10)
    assert found["trace", "H"] == pytest.approx(float(dense.trace()), rel=1e-9)
    assert found["trace", "H_o"] + found["trace", "H_f"] == pytest.approx(
        found["trace", "H"], rel=1e-9
    )
    loss = float(
        (problem.network(problem.inputs.clone()) - problem.targets)
        .square()
        .mean()
        .detach()
    )
    assert found["loss", ""] == pytest.approx(loss, rel=1e-12)
    assert not problem.inputs.requires_grad


@pytest.mark.parametrize("kind", [Residual, InnerStep])
@pytest.mark.parametrize(
    "quantity",
    [
        "pruning",
        "slices",
        "landscape_difference",
        "jacobian_norm",
        "stationarity",
        "descent",
    ],
)
@pytest.mark.long
def test_quantities_that_walk_or_take_samples_apart(kind, quantity):
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "gradients of single samples under vmap", RuntimeWarning
        )
        try:
            table = hessfig.measure(
                problem_of(kind), blocks=["all"], quantities=[quantity], num_probes=4
            )
        except hessfig.errors.UserError as error:
            told = (
                "forward() differentiates through it",
                "does not run over samples",
                "is also used outside",
            )
            # Its step is on the whole batch.
            meets = kind is InnerStep and "the samples see each other" in str(error)
            assert meets or (
                quantity == "pruning" and any(words in str(error) for words in told)
            )
        else:
            assert len(table)
            assert table["value"].notna().all()


def test_a_batch_of_several_inputs_and_a_loss_inside_the_network():
    class Energy(Body):
        def forward(self, x, labels=None):
            x = x.detach().requires_grad_()
            forces = -torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]
            return {
                "forces": forces,
                **(
                    {}
                    if labels is None
                    else {"loss": (forces - labels).abs().pow(3).sum()}
                ),
            }

    torch.manual_seed(0)
    network = Energy().double()
    x = torch.randn(5, 2).double()
    y = torch.randn(5, 2).double()
    table = hessfig.measure(
        hessfig.Problem(network, {"x": x, "labels": y}),
        blocks=["all"],
        estimator="dense",
    )
    dense = hessian(lambda: network(x, y)["loss"], list(network.parameters()))
    assert list(table["part"]) == ["H"]
    assert table["value"][0] == pytest.approx(float(dense.norm()), rel=1e-9)


@pytest.mark.parametrize("kind", daily(KINDS, *KINDS[::3]))
def test_operators_of_large_networks(kind, monkeypatch):
    """A network too large for graphs that are kept: where torch.func cannot follow, plain double backward does."""
    monkeypatch.setattr("hessfig.curvature.batched.SMALL", 1)
    problem = problem_of(kind)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".*plain double backward is used instead", RuntimeWarning
        )
        found = problem.operator("all").dense()
    torch.testing.assert_close(found, truth(problem), rtol=1e-9, atol=1e-10)


def test_no_graph_is_kept():
    """Evaluations record graphs, which are let go with what comes out."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    problem = hessfig.Problem(
        network, torch.randn(5, 2).double(), torch.randn(5, 1).double(), "mse"
    )
    objective = problem.objective("float64")
    suffix = objective.suffix(objective.layout.weights)
    assert is_finite(objective)
    gc.collect()
    held = [
        *suffix.outputs.flatten(),
        *suffix.gradient.flatten(),
        loss_value(objective),
        suffix.outputs,
    ]
    assert not any(one.requires_grad for one in held)


def test_losses_of_pruned_weights_where_vmap_cannot_follow():
    class Steered(nn.Module):
        def forward(self, x):
            return x if float(x.detach().sum()) > 1e9 else x.tanh()

    torch.manual_seed(0)
    layers = (nn.Linear(2, 4), nn.Linear(4, 1))
    batch = (torch.randn(5, 2).double(), torch.randn(5, 1).double())
    tables = []
    for middle in (Steered(), nn.Tanh()):
        network = nn.Sequential(layers[0], middle, layers[1]).double()
        tables.append(
            hessfig.measure(
                hessfig.Problem(network, *batch, "mse"),
                blocks=["all"],
                quantities=["pruning"],
            )
        )
    assert list(tables[0]["value"]) == pytest.approx(list(tables[1]["value"]), rel=1e-9)
