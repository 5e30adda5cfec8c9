"""Parameters of odd shapes (one number, axes of length one, no entry at all): every block, estimator and operator."""

import warnings
from itertools import product

import pytest
import torch
from torch import nn

import hessfig
from hessfig.measurements.catalogue import quantities
from hessfig.terms import Part
from tests.daily import daily
from tests.foreign_networks import dense_parts


class Odd(nn.Module):
    """CLIP's logit_scale, ReZero's alpha (as one number and as a vector of one), a row, a column, LoRA of rank 0."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.alpha = nn.Parameter(torch.tensor([0.7]))
        self.row = nn.Parameter(torch.randn(1, 4))
        self.column = nn.Parameter(torch.randn(3, 1))
        self.down = nn.Parameter(torch.randn(0, 3))
        self.up = nn.Parameter(torch.randn(3, 0))

    def forward(self, x):
        x = x + x @ self.down.T @ self.up.T
        hidden = torch.tanh(self.first(x)) * (1 + self.column.T)
        return self.scale.exp() * (
            self.last(hidden + self.alpha * hidden**2) + self.row
        )


SIDES = ["scale", "alpha", "row", "column", "first.weight"]


def problem_of(weights=None):
    torch.manual_seed(0)
    network = Odd().double()
    return hessfig.Problem(
        network, torch.randn(6, 3).double(), torch.randint(0, 4, (6,)), weights=weights
    )


def truth():
    """Return where every parameter stands, and the dense parts in all of them."""
    problem = problem_of()
    places = dict[str, slice]()
    start = 0
    for name, parameter in problem.network.named_parameters():
        places[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return places, dense_parts(problem, list(places))


@pytest.mark.parametrize(
    "estimator", daily(["auto", "dense", "hutchinson", "aligned"], "auto", "aligned")
)
def test_every_block_is_a_piece_of_the_dense_one(estimator):
    places, dense = truth()
    pairs = (
        list(product(SIDES, SIDES))
        if estimator != "aligned"
        else [(side, side) for side in SIDES]
    )
    table = hessfig.measure(
        problem_of(), blocks=pairs, estimator=estimator, num_probes=100
    )
    for row in table.itertuples():
        piece = float(dense[Part(row.part)][places[row.row], places[row.col]].norm())
        assert abs(row.value - piece) <= 4 * row.error + 1e-11 * float(
            dense[Part.H].norm()
        ), row


def test_what_has_no_entry_has_no_row_and_all_has_the_others():
    _, dense = truth()
    names = set(hessfig.measure(problem_of(), parts="H")["row"])
    assert names == {name for name, one in Odd().named_parameters() if one.numel()}
    table = hessfig.measure(problem_of(), blocks=["all"], parts="H", estimator="dense")
    assert table["value"][0] == pytest.approx(float(dense[Part.H].norm()), rel=1e-12)


@pytest.mark.parametrize("products", ["linearised", "curvlinops", "differences"])
def test_every_engine_multiplies_it(products):
    from hessfig.config.enums import Products
    from hessfig.config.science import ModelConfig
    from hessfig.models.routes import Engines
    from hessfig.terms import Block

    places, dense = truth()
    blocks = [Block(0, row, "scale") for row in SIDES]
    column = Engines(
        problem_of().objective("float64"), ModelConfig(), Products(products)
    ).column(0, "scale", blocks)
    found = column.split_matmat(
        torch.ones(1, 1, dtype=torch.float64), (Part.H, Part.H_o, Part.H_f)
    )
    for (block, part), image in found.items():
        expected = dense[part][places[str(block.row)], places["scale"]]
        off = float((image - expected).norm()) / float(dense[Part.H].norm())
        assert off < (1e-8 if products == "differences" else 1e-12), (block, part)


def test_operators_and_names_of_it():
    places, dense = truth()
    problem = problem_of(
        {"s": "scale", "again": ("scale", ...), "both": ["scale", "row"]}
    )
    for name in ("s", "again"):
        operator = problem.operator(name)
        assert float(operator.dense()) == pytest.approx(
            float(dense[Part.H][places["scale"], places["scale"]])
        )
        assert operator.unflatten(operator @ torch.ones(1))[name].shape == ()
    at = [
        *range(places["scale"].start, places["scale"].stop),
        *range(places["row"].start, places["row"].stop),
    ]
    torch.testing.assert_close(
        problem.operator("both", "H_o").dense(), dense[Part.H_o][at][:, at]
    )
    pair = problem.operator(("both", "s"))
    torch.testing.assert_close(pair.dense(), dense[Part.H][at][:, at[:1]])
    assert pair.flatten({"s": torch.tensor(2.0)}).shape == (1,)


@pytest.mark.parametrize("quantity", quantities())
@pytest.mark.long
def test_every_quantity_is_measured_or_refused_for_another_reason(quantity):
    for blocks in (["scale"], ["all"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                hessfig.measure(
                    problem_of(), blocks=blocks, quantities=[quantity], num_probes=4
                )
            except hessfig.errors.UserError as error:
                told = str(error)
                assert not any(
                    word in told
                    for word in ("RuntimeError", "IndexError", "ValueError")
                ), told
