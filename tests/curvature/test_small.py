"""Small networks of anybody: products through kept graphs are those of other routes; threads stay the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessfig
from hessfig.config import Kind, ModelConfig, Products
from hessfig.curvature import small
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.problem import Problem
from hessfig.curvature.routes import Engines
from hessfig.terms import PARTS, Block, Part


def _drawn(network: nn.Module) -> Problem:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(6, 3, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    problem = hessfig.Problem(network.eval(), [inputs[:4], inputs[4:]], [targets[:4], targets[4:]])
    return Problem.of(problem.drawn("float64"))


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.SiLU(), nn.Linear(4, 3))


def _column(problem: Problem) -> Any:
    blocks = [Block(0, row, "0.weight") for row in ("0.weight", "1.weight")]
    return Engines(problem, ModelConfig(kind=Kind.python), Products.linearised).column(0, "0.weight", blocks)


def _dense(problem: Problem) -> Tensor:
    """The Hessian in all parameters by torch.autograd, row by row."""
    at = list(problem.network.parameters())
    shares = zip(problem.batches, problem.shares, strict=True)
    loss = torch.stack([s * problem.loss(problem.network(b.inputs), b.targets) for b, s in shares]).sum()
    slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, at, create_graph=True)])
    rows = [torch.autograd.grad(one, at, retain_graph=True, materialize_grads=True) for one in slope]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.mark.filterwarnings("error")
def test_products_are_those_of_the_dense_matrix_for_several_batches() -> None:
    problem = _drawn(_network())
    column = _column(problem)
    assert isinstance(column, small.SmallColumn)
    products, truth = column.split_matmat(torch.eye(12, dtype=torch.float64), PARTS), _dense(problem)
    for row, span in (("0.weight", slice(0, 12)), ("1.weight", slice(16, 20))):
        torch.testing.assert_close(products[Block(0, row, "0.weight"), Part.H], truth[span, :12], rtol=0, atol=1e-12)


def test_the_gauss_newton_part_is_that_of_curvlinops() -> None:
    torch.manual_seed(0)
    problem, unit = _drawn(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))), torch.eye(12).double()
    theirs = ColumnOperator(problem, 0, "0.weight", ["0.weight"]).split_matmat(unit, [Part.H_o, Part.H_f])
    ours = small.SmallColumn(problem, 0, "0.weight", ["0.weight"]).split_matmat(unit, [Part.H_o, Part.H_f])
    for key, product in theirs.items():
        torch.testing.assert_close(ours[key], product, rtol=0, atol=1e-12)


def test_weights_that_change_in_place_are_noticed() -> None:
    problem = _drawn(_network())
    _column(problem).split_matmat(torch.eye(12, dtype=torch.float64), PARTS)
    problem.network.get_parameter("3.weight").data.mul_(2.0)
    products = _column(problem).split_matmat(torch.eye(12, dtype=torch.float64), PARTS)
    key = (Block(0, "0.weight", "0.weight"), Part.H)
    torch.testing.assert_close(products[key], _dense(problem)[:12, :12], rtol=0, atol=1e-12)


def test_wrong_batched_products_are_left_for_the_other_route(monkeypatch: pytest.MonkeyPatch) -> None:
    right = small.SmallHessian.products

    def wrong(self: small.SmallHessian, given: Any, wanted: Sequence[int]) -> list[Tensor]:
        return [2 * product for product in right(self, given, wanted)]

    monkeypatch.setattr(small.SmallHessian, "products", wrong)
    problem = _drawn(nn.Sequential(nn.Linear(3, 3)))
    column = small.SmallColumn(problem, 0, "0.weight", ["0.weight"])
    product = column.split_matmat(torch.eye(9, dtype=torch.float64), [Part.H])["0.weight", Part.H]
    torch.testing.assert_close(product, _dense(problem)[:9, :9], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("bound", "inside"), [(2**20, 1), (0, 2)])
def test_threads_are_chosen_by_size_and_given_back(monkeypatch: pytest.MonkeyPatch, bound: int, inside: int) -> None:
    monkeypatch.setattr(small, "ON_ONE_THREAD", bound)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), small.threads_for(_drawn(_network())):
            assert torch.get_num_threads() == inside
            _ = 1 / 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
