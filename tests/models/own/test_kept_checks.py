"""What was checked for a Problem is kept while its function is the same: every way of changing it is noticed."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import hessfig
from hessfig.models.own import kept_checks
from tests.daily import daily, thinned


class Network(nn.Module):
    """A network with a buffer, a dropout, an attribute and hooks."""

    def __init__(self, width=5):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(width, 2)
        self.register_buffer("shift", torch.linspace(0, 1, width))
        self.slope = 1.0

    def forward(self, x):
        """Return outputs (batch, 2)."""
        shift = self.shift
        return self.last(self.drop(torch.tanh(self.slope * self.first(x) + shift)))


class Loss(nn.Module):
    """A mean of powers, with an attribute and a buffer."""

    reduction = "mean"

    def __init__(self):
        super().__init__()
        self.power = 2.0
        self.register_buffer("scale", torch.ones(2))

    def forward(self, outputs, targets):
        """Return the mean of |scale (outputs - targets)|^power."""
        scale = self.scale
        return (scale * (outputs - targets)).abs().pow(self.power).mean()


FACTORS = [1.0]
GLOBAL = {"factor": 1.0}


@dataclass
class Case:
    """The arguments of a Problem, and what they hold."""

    network: Network
    x: Tensor
    y: Tensor
    loss: Loss
    closed: Tensor

    @property
    def problem(self):
        """The problem with inputs, targets and a loss that closes over all of this."""

        def loss(outputs, targets):
            factor = (
                FACTORS[0]
                * GLOBAL["factor"]
                * float(os.environ.get("HESSFIG_TEST_FACTOR", "1"))
            )
            return factor * self.closed.to(outputs) * self.loss(outputs, targets)

        loss.reduction = "mean"
        return hessfig.Problem(self.network, self.x, self.y, loss)

    @property
    def function(self):
        """The problem with a function of two batches."""
        closed = self.closed
        loss = self.loss
        case = self

        def compute_loss(network, batch):
            factor = (
                FACTORS[0]
                * GLOBAL["factor"]
                * float(os.environ.get("HESSFIG_TEST_FACTOR", "1"))
            )
            return factor * closed.to(batch[0]) * loss(network(batch[0]), batch[1])

        batches = [(self.x, self.y), (self.x[:3], self.y[:3])]
        return hessfig.Problem(
            self.network,
            batches,
            compute_loss=compute_loss,
            batch_weights=lambda _: case.network.slope,
        )


def case():
    torch.manual_seed(0)
    network = Network().eval()
    return Case(
        network, torch.randn(6, 3), torch.randn(6, 2), Loss(), torch.tensor(1.0)
    )


def _replace(one):
    one.network.first.weight = nn.Parameter(one.network.first.weight.detach() + 0.1)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        """Return a function of the weight."""
        return weight.sin()


@torch.no_grad()
def _data(one):
    one.network.first.weight.data.mul_(1.1)


@torch.no_grad()
def _in_place(one):
    one.network.first.weight.copy_(1.1 * one.network.first.weight)


def _swap_loss(one):
    one.loss = Loss()
    one.loss.power = 3.0


def _smallest(one):
    weight = one.network.last.weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


CHANGES = {
    "a weight, in place": _in_place,
    "a weight, by .data": _data,
    "a weight, in its last digit": _smallest,
    "a new parameter": _replace,
    "a bias, through numpy": lambda one: (
        one.network.first.bias.detach().numpy().__imul__(2.0)
    ),
    "a buffer, in place": lambda one: one.network.shift.add_(0.1),
    "a new buffer": lambda one: setattr(one.network, "shift", torch.ones(5)),
    "an attribute": lambda one: setattr(one.network, "slope", 0.5),
    "a forward hook": lambda one: one.network.first.register_forward_hook(
        lambda _, x, y: 2 * y
    ),
    "a pre-hook": lambda one: one.network.last.register_forward_pre_hook(
        lambda _, x: (0.5 * x[0],)
    ),
    "an attribute of the loss": lambda one: setattr(one.loss, "power", 3.0),
    "a buffer of the loss": lambda one: one.loss.scale.mul_(2.0),
    "a swapped loss": _swap_loss,
    "a closed-over tensor": lambda one: one.closed.mul_(3.0),
    "a list": lambda one: FACTORS.__setitem__(0, 2.0),
    "a global": lambda one: GLOBAL.update(factor=2.0),
    "the environment": lambda one: os.environ.update(HESSFIG_TEST_FACTOR="2"),
    "inputs, in place": lambda one: one.x.mul_(1.5),
    "targets, in place": lambda one: one.y.add_(1.0),
    "a parametrization": lambda one: parametrize.register_parametrization(
        one.network.last, "weight", Doubled()
    ),
    "another forward": lambda one: setattr(
        one.network, "forward", lambda x: one.network.last(one.network.first(x))
    ),
    "double": lambda one: one.network.double(),
    "a method of torch": lambda one: setattr(torch, "tanh", torch.sin),
    "dropout that does nothing": lambda one: (
        setattr(one.network.drop, "p", 0.0) or one.network.train()
    ),
    "training mode": lambda one: one.network.train(),
    "a frozen weight": lambda one: one.network.first.weight.requires_grad_(False),
    "a default dtype": lambda one: torch.set_default_dtype(torch.float64),
    "deterministic algorithms": lambda one: torch.use_deterministic_algorithms(True),
}


FORMS = [*product(CHANGES, ("problem", "function"))]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(torch, "tanh", torch.tanh)
    yield
    FACTORS[0], GLOBAL["factor"] = 1.0, 1.0
    os.environ.pop("HESSFIG_TEST_FACTOR", None)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


def product(problem):
    """Return H times a vector in one weight, or the error."""
    try:
        operator = problem.operator("first.weight", dtype="float64")
        return operator @ torch.linspace(-1, 2, operator.shape[1], dtype=torch.float64)
    except hessfig.UserError as error:
        return str(error)


@pytest.mark.parametrize(("change", "form"), daily(FORMS, *FORMS[::20]))
def test_every_change_is_noticed(change, form):
    one = case()
    problem = getattr(one, form)
    before = product(problem)
    CHANGES[change](one)
    now = product(problem)
    fresh = product(copy.copy(problem))
    if isinstance(fresh, str):
        assert now == fresh
        return
    assert isinstance(now, Tensor)
    assert isinstance(before, Tensor)
    assert torch.equal(now, fresh)
    has_effect = not torch.equal(before, fresh)
    assert (
        has_effect
        or change in NEUTRAL
        or (form == "function" and change == "a swapped loss")
    )


NEUTRAL = {
    "double",
    "dropout that does nothing",
    "a frozen weight",
    "a default dtype",
    "deterministic algorithms",
}


@pytest.mark.parametrize("form", daily(["problem", "function"], "problem"))
def test_without_a_change_nothing_is_checked_again(form, monkeypatch):
    problem = getattr(case(), form)
    made = list[object]()
    checking = kept_checks.Checking
    monkeypatch.setattr(
        kept_checks,
        "Checking",
        lambda request: made.append(request) or checking(request),
    )
    products = [product(problem) for _ in range(3)]
    torch.manual_seed(7)  # the function draws nothing
    table = hessfig.measure(problem, blocks=["last.weight"], parts="H")
    assert len(made) == 1
    for one in products:
        assert torch.equal(one, products[0])
    fresh = hessfig.measure(copy.copy(problem), blocks=["last.weight"], parts="H")
    assert len(made) == 2
    assert table["value"].tolist() == fresh["value"].tolist()
    problem.operator("last.weight", dtype="float32")
    assert len(made) == 3


def test_a_function_that_draws_is_another_one_after_a_new_seed():
    def noisy(network, batch):
        return (network(batch) * torch.randn(6, 2).to(batch)).square().sum()

    network = Network().eval()
    x = torch.randn(6, 3)
    torch.manual_seed(1)
    problem = hessfig.Problem(network, x, compute_loss=noisy)
    first = product(problem)
    again = product(problem)
    torch.manual_seed(2)
    other = product(problem)
    fresh = product(copy.copy(problem))
    assert torch.equal(first, again)
    assert torch.equal(other, fresh)
    assert not torch.equal(first, other)


def test_an_operator_keeps_its_function_when_the_problem_changed():
    one = case()
    problem = one.problem
    operator = problem.operator("first.weight")
    vector = torch.linspace(-1, 2, operator.shape[1], dtype=torch.float64)
    before = operator @ vector
    _in_place(one)
    assert not torch.equal(problem.operator("first.weight") @ vector, before)
    assert torch.equal(operator @ vector, before)


@pytest.mark.long
@pytest.mark.parametrize("width", thinned([5, 20_000], 2))
def test_what_is_kept_is_freed_with_the_problem(width):
    network = Network(width).eval()
    problem = hessfig.Problem(network, torch.randn(6, 3), torch.randn(6, 2), "mse")
    operator = problem.operator("last.weight", dtype="float32")
    operator @ torch.ones(2 * width)
    kept = weakref.ref(operator._problem)
    del operator
    gc.collect()
    assert kept() is not None
    del problem
    if width == 5:
        gc.collect()
    assert kept() is None


@pytest.mark.long
def test_a_large_copy_is_kept_only_while_an_operator_holds_it(monkeypatch):
    monkeypatch.setattr(kept_checks, "MOST_BYTES", 100)
    problem = case().problem
    operator = problem.operator("last.weight")
    held = weakref.ref(operator._problem)
    assert problem.operator("first.weight")._problem is held()
    del operator
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("form", ["problem", "function"])
def test_what_hooks_and_losses_fill_is_as_before_every_operator(form):
    filled = list[Any]()
    network = Network().eval()
    network.first.register_forward_hook(lambda *given: filled.append(given))

    def loss(outputs, targets):
        filled.append(outputs)
        return (outputs - targets).square().mean()

    x = torch.randn(6, 3)
    y = torch.randn(6, 2)
    of_batch = {
        "compute_loss": lambda network, batch: loss(network(batch), y.to(batch))
    }
    given = (
        hessfig.Problem(network, x, y, loss)
        if form == "problem"
        else hessfig.Problem(network, x, **of_batch)
    )
    for part in ("H", "H", "H_o", "H_o")[: 4 if form == "problem" else 2]:
        given.operator("last.weight", part)
        assert filled == []


def test_an_operator_that_is_refused_is_refused_again():
    problem = case().problem
    for _ in range(2):
        with pytest.raises(
            hessfig.UserError, match="products: there is no such choice"
        ):
            problem.operator("last.weight", products="fast")
        with pytest.raises(hessfig.UserError, match="device"):
            problem.operator("last.weight", device="cpu:7")
        with pytest.raises(hessfig.UserError):
            problem.operator("nowhere")
    first, other = (
        problem.operator(["first.weight", "last.bias"], dtype=dtype)
        for dtype in ("float64", "float32")
    )
    assert first.shape == (15, 2)
    assert (str(first.dtype), str(other.dtype)) == ("float64", "float32")


def test_copies_of_a_problem_keep_nothing():
    problem = hessfig.Problem(
        Network().eval(), torch.randn(6, 3), torch.randn(6, 2), "mse"
    )
    first = product(problem)
    for other in (
        copy.copy(problem),
        copy.deepcopy(problem),
        pickle.loads(pickle.dumps(problem)),
    ):
        assert "_kept_checks" not in vars(other)
        assert torch.equal(product(other), first)


@pytest.mark.parametrize("width", daily([5, 300], 5))
def test_a_second_operator_multiplies_through_the_graphs_of_the_first(width):
    """A weight that changes, or another kind of products, has graphs of its own."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(20, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 4)
    )
    problem = hessfig.Problem(
        network, torch.randn(32, 20), torch.randint(4, (32,)), "cross_entropy"
    )

    def applied(operator):
        return operator @ torch.linspace(-1, 1, operator.shape[1], dtype=torch.float64)

    for block in ["all", "0.weight", ("0.bias", "2.weight")]:
        first = problem.operator(block)
        product = applied(first)
        assert torch.equal(applied(first), product)
        second = problem.operator(block)
        assert second is not first
        assert second._kept is first._kept is not None
        assert torch.equal(applied(second), product)
        fresh = copy.copy(problem).operator(block)
        assert torch.equal(applied(second.T), applied(fresh.T))
    assert problem.operator("all", "H_f")._kept is None
    assert problem.operator("all", products="differences")._kept is None
    with torch.no_grad():
        network[0].weight[0, 0] += 0.1
    third = problem.operator("all")
    assert third._kept is None
    assert torch.equal(applied(third), applied(copy.copy(problem).operator("all")))


def test_graphs_that_no_other_column_holds_are_not_kept(monkeypatch):
    """They are freed with their operator, since they may be large."""
    monkeypatch.setattr("hessfig.curvature.batched.KEPT_BYTES", 0)
    problem = hessfig.Problem(
        Network().eval(), torch.randn(6, 3), torch.randn(6, 2), "mse"
    )
    operator = problem.operator("last.weight")
    vector = torch.ones(operator.shape[1], dtype=torch.float64)
    first = operator @ vector
    again = operator @ vector
    second = problem.operator("last.weight")
    assert second._made is None
    assert torch.equal(second @ vector, first)
    assert torch.equal(first, again)


def test_another_thread_may_check_anew_while_an_operator_asks_what_was_made(
    monkeypatch,
):
    problem = hessfig.Problem(nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1]))
    checks = problem._kept_checks
    plain = kept_checks._Kept.holds

    def holds(self, objective):
        checks._last = None
        return plain(self, objective)

    monkeypatch.setattr(kept_checks._Kept, "holds", holds)
    operator = problem.operator("weight")
    assert torch.isfinite(operator @ torch.ones(6)).all()
