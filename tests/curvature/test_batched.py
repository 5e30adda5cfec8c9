"""Batched double backward of small foreign networks: against the dense oracle, and where it is not taken."""

import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hessfig
from hessfig.config.enums import Products
from hessfig.config.science import ModelConfig
from hessfig.curvature import batched
from hessfig.curvature.batched import BatchedColumn, SmallNetwork
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.large.memory import live_bytes
from hessfig.curvature.large.own_column import OwnColumn
from hessfig.models.routes import Engines
from hessfig.terms import PARTS, Block, Part
from tests.daily import daily, thinned
from tests.draws import tanh_network
from tests.foreign_networks import CASES, dense_parts


class Unbatchable(torch.autograd.Function):
    """The square, whose backward pass depends on its data: no vmap can follow it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return 2 * x * slope if float(slope.sum()) < 1e9 else slope


class Squared(nn.Module):
    def forward(self, x):
        return Unbatchable.apply(x)


def drawn(problem):
    return problem.objective("float64")


def engine(objective, products=Products.linearised):
    return Engines(objective, ModelConfig("python"), products)


@pytest.mark.parametrize("name", daily(CASES, "mlp", "convolutional", "fused and tied"))
def test_every_product_is_that_of_the_dense_hessian(name):
    problem = CASES[name]()[0]
    problem = hessfig.Problem(
        problem.network, problem.inputs, problem.targets, problem.loss
    )
    names = [path for path, _ in problem.network.named_parameters()]
    dense = dense_parts(problem, names)
    there = drawn(problem)
    for parts in (PARTS, (Part.H,), (Part.H_f,)):
        column = engine(there).column(0, "all", [Block(0, "all", "all")])
        assert isinstance(column, BatchedColumn)
        found = column.split_matmat(torch.eye(column.dim, dtype=torch.float64), parts)
        for part in parts:
            assert_close(
                found[Block(0, "all", "all"), part], dense[part], rtol=1e-10, atol=1e-12
            )


def test_a_backward_pass_that_cannot_be_batched_takes_the_other_route():
    network = nn.Sequential(nn.Linear(3, 4), Squared(), nn.Linear(4, 2))
    problem = drawn(
        hessfig.Problem(network, torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 0]))
    )
    assert not SmallNetwork(problem).holds(Part.H)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".*plain double backward is used", RuntimeWarning
        )
        found, own = (
            column.split_matmat(torch.eye(12, dtype=torch.float64), PARTS)
            for column in (
                engine(problem).column(
                    0, "0.weight", [Block(0, "0.weight", "0.weight")]
                ),
                ColumnOperator(
                    problem,
                    0,
                    "0.weight",
                    {Block(0, "0.weight", "0.weight"): (0, "0.weight")},
                ),
            )
        )
    for key, product in own.items():
        assert_close(found[key], product, rtol=0, atol=0)


def test_a_large_network_and_a_named_route_take_other_engines(monkeypatch):
    network = tanh_network(3, 4, 2)
    problem = drawn(
        hessfig.Problem(network, torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 0]))
    )
    block = Block(0, "0.weight", "0.weight")
    assert isinstance(
        engine(problem, Products.curvlinops).column(0, "0.weight", [block]),
        ColumnOperator,
    )
    monkeypatch.setattr(batched, "SMALL", 25)  # of 26 parameters
    assert isinstance(engine(problem).column(0, "0.weight", [block]), OwnColumn)


def pictures(count, memory=None):
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GELU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 4),
    ]
    x = torch.randn(4 * count, 3, 8, 8)
    y = torch.arange(4 * count) % 4
    return drawn(
        hessfig.Problem(
            nn.Sequential(*layers), list(x.split(4)), list(y.split(4)), memory=memory
        )
    )


@pytest.mark.parametrize("part", daily(PARTS, Part.H_f))
def test_graphs_of_batches_are_kept_up_to_a_bound_and_made_anew_beyond_it(part):
    """Products are the same, and more batches take no more memory."""
    taken = []
    for count in (3, 12):
        whole = SmallNetwork(pictures(count))
        bounded = SmallNetwork(pictures(count, "1KB"))
        names = list(whole.at)
        columns = {
            name: torch.ones(2, *one.shape, dtype=torch.float64)
            for name, one in whole.at.items()
        }
        given = [*bounded.at.values(), *(start for start, _ in bounded._suffix.data)]
        taken.append(
            live_bytes(lambda: bounded.products(part, columns, names), given)[0]  # noqa: B023
        )
        for mine, truth in zip(
            bounded.products(part, columns, names),
            whole.products(part, columns, names),
            strict=True,
        ):
            assert_close(mine, truth, rtol=0, atol=0)
        assert len(whole.graphs(part)._kept) == count
        assert len(bounded.graphs(part)._kept) == 1
    # Products of every batch, before they are added.
    added = 9 * 2 * 8 * sum(one.numel() for one in whole.at.values())
    assert taken[1] <= 1.02 * taken[0] + 2 * added


@pytest.mark.parametrize("block", thinned(["all", "0.weight", "2.weight"], 2))
@pytest.mark.parametrize("part", ["H", "H_o", "H_f"])
def test_one_vector_has_the_bits_of_several(block, part):
    network = tanh_network(5, 7, 3)
    operator = hessfig.Problem(
        network, torch.randn(6, 5), torch.randint(0, 3, (6,))
    ).operator(block, part)
    vectors = torch.randn(operator.shape[1], 3, dtype=torch.float64)
    alone = torch.stack([operator @ one for one in vectors.T], dim=1)
    assert_close(operator @ vectors, alone, rtol=1e-13, atol=1e-15)
