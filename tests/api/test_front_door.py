"""Refusals of batches, losses and networks lead to compute_loss; arrays and data sets are taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import hessfig
from hessfig.errors import UserError

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.ones(6, 2)


class OwnLoss(nn.Module):
    """Returns its loss of one or two inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Any = None) -> Tensor:
        return (self.map(x) - (Y if y is None else y)[: len(x)].to(x)).square().mean()


class PairLoss(OwnLoss):
    """Returns its loss of two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, y)


class Heads(nn.Module):
    """Returns several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.map(x), self.map(2 * x)


REFUSED: dict[str, Callable[[], hessfig.Problem]] = {
    "a network that returns its loss": lambda: hessfig.Problem(OwnLoss(), X),
    "a loss of two inputs": lambda: hessfig.Problem(PairLoss(), (X, Y)),
    "a loss of three inputs": lambda: hessfig.Problem(OwnLoss(), (X, Y, Y)),
    "a dictionary without labels": lambda: hessfig.Problem(OwnLoss(), {"x": X, "y": Y}),
    "an object": lambda: hessfig.Problem(OwnLoss(), object()),
    "several outputs": lambda: hessfig.Problem(Heads(), X, Y, "mse"),
    "a dictionary of targets": lambda: hessfig.Problem(Heads(), X, {"a": Y}, "mse"),
    "several batches of a loss": lambda: hessfig.Problem(OwnLoss(), [{"x": X, "labels": Y}] * 2),
    "a loss of batches": lambda: hessfig.Problem(nn.Linear(4, 2), [X, X], [Y, Y], lambda o, y: (o - y).std()),
    "a loss that is no number": lambda: hessfig.Problem(nn.Linear(4, 2), X, Y, lambda o, y: o - y),
    "an unknown loss": lambda: hessfig.Problem(nn.Linear(4, 2), X, Y, "hinge"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_lead_to_compute_loss(name: str) -> None:
    given = REFUSED[name]()
    with pytest.raises(UserError) as caught:
        given.operator("all")
    remedy = str(caught.value.remedy)
    assert re.search(r"or hessfig\.Problem\(network, .*, compute_loss=lambda network, batch: .*\)", remedy), remedy
    assert "input_ids" not in str(caught.value)


def test_the_remedy_of_a_network_that_returns_its_loss_works_as_it_is() -> None:
    for network, batch in ((OwnLoss(), X), (PairLoss(), (X, Y)), (OwnLoss(), {"x": X, "y": Y})):
        given = hessfig.Problem(network, batch)
        with pytest.raises(UserError) as caught:
            given.operator("all")
        call = str(caught.value.remedy).rpartition("; or ")[2].removesuffix(", with any function")
        problem = eval(call, {"hessfig": hessfig, "network": given.network, "batch": batch})
        plain = hessfig.Problem(given.network.map, X, Y, "mse")
        assert torch.allclose(problem.operator("all").dense(), plain.operator("all").dense(), rtol=1e-9)


def test_arrays_and_data_sets_are_taken() -> None:
    network = nn.Linear(4, 2)
    plain = hessfig.Problem(network, X, Y, "mse").operator("all").dense()
    data: Dataset[Any] = TensorDataset(X, Y)
    for given in (
        hessfig.Problem(network, X.numpy(), Y.numpy(), "mse"),
        hessfig.Problem(network, [(X.numpy(), Y.numpy())], loss="mse"),
        hessfig.Problem(network, data, loss="mse"),
        hessfig.Problem(network, {"input": numpy.asarray(X), "y": numpy.asarray(Y)}, "y", "mse"),
    ):
        assert torch.allclose(given.operator("all").dense(), plain, rtol=1e-12)


def test_a_wrong_name_of_a_weight_is_another_matter() -> None:
    with pytest.raises(UserError) as caught:
        hessfig.Problem(nn.Linear(4, 2), X, Y, "mse", weights={"a": "wieght"}).operator("a")
    assert "compute_loss" not in str(caught.value)


def test_pairs_and_all_have_one_meaning_each() -> None:
    problem = hessfig.Problem(nn.Linear(4, 2), X, Y, "mse")
    pairs = hessfig.measure(problem, blocks="pairs", parts="H")[["row", "col"]].values.tolist()
    assert pairs == [["weight", "weight"], ["weight", "bias"], ["bias", "bias"]]
    with pytest.warns(FutureWarning, match=r"blocks=\['all'\]"):
        assert len(hessfig.measure(problem, blocks="all", parts="H")) == 3
    assert len(hessfig.measure(problem, blocks=["all"], parts="H")) == 1
