"""Products of single parts: what is not asked for is not made, and H's own product is the sum of its summands'."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch.testing import assert_close

import hessfig
from hessfig.config.enums import Products
from hessfig.config.science import ModelConfig
from hessfig.curvature.column import SPLIT, DecayedColumn, products_of, squared_norms
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.problem import rademacher
from hessfig.models.routes import Engines
from hessfig.models.tape.tape import Tape
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Part
from tests.daily import thinned
from tests.foreign_networks import dense_parts, mlp
from tests.toys import ARCHITECTURES, EXACT_PRODUCTS, toy_problem

BLOCKS = [
    Block(1, "W_Q", "W_Q"),
    Block(1, "W_V", "W_Q"),
    Block(1, "W_in", "W_Q", row_layer=2),
]
SUBSETS = [[*chosen] for size in (1, 2, 3) for chosen in combinations(PARTS, size)]


def column(products):
    model = ARCHITECTURES["two layers"]
    return Engines(toy_problem(model), model, products).column(1, "W_Q", BLOCKS)


def probes_of(found):
    return rademacher(found.dim, 3, generator=stream(0, "probes"), dtype=torch.float64)


@pytest.mark.parametrize("products", EXACT_PRODUCTS)
@pytest.mark.parametrize(
    "parts", thinned(SUBSETS, 2), ids=lambda parts: "-".join(parts)
)
def test_every_choice_of_parts_gives_the_same_products(products, parts):
    found = column(products)
    default = found.split_matmat(probes_of(found))
    chosen = found.split_matmat(probes_of(found), parts)
    assert set(chosen) == {(block, part) for block in BLOCKS for part in parts}
    for block in BLOCKS:
        total = default[block, Part.H_o] + default[block, Part.H_f]
        for part in parts:
            if part == Part.H and not {*SPLIT} <= {*parts}:
                bound = 1e-13 * float(total.abs().max())
                assert_close(chosen[block, part], total, rtol=0, atol=bound)
            else:
                assert torch.equal(
                    chosen[block, part],
                    total if part == Part.H else default[block, part],
                )


@pytest.mark.parametrize(
    ("part", "passes"), [(Part.H_o, 1), (Part.H_f, 1), (Part.H, 1), (None, 2)]
)
def test_the_tape_is_swept_once_a_part(part, passes, monkeypatch):
    found = column(Products.linearised)
    made = []
    sweep = Tape.pull_back
    monkeypatch.setattr(
        Tape, "pull_back", lambda *given: made.append(1) or sweep(*given)
    )
    found.split_matmat(probes_of(found), SPLIT if part is None else (part,))
    assert len(made) == passes


@pytest.mark.parametrize("parts", [(part,) for part in PARTS], ids="-".join)
def test_curvlinops_makes_the_operators_asked_for_alone(parts):
    found = column(Products.curvlinops)
    assert isinstance(found, ColumnOperator)
    found.split_matmat(probes_of(found), parts)
    assert tuple(found._operators) == parts


def test_h_alone_of_a_network_of_ones_own_takes_one_product_and_gives_the_number_of_all_parts():
    problem, _ = mlp()
    objective = problem.objective("float64")
    plain = Engines(objective, ModelConfig(), Products.linearised).column(
        0, "W_1", [Block(0, "W_1", "W_1")]
    )
    decayed = DecayedColumn(
        plain,
        replace(objective, decay=0.1),
        0,
        "W_1",
        {Block(0, "W_1", "W_1"): (0, "W_1")},
    )
    for found in (plain, decayed):
        assert products_of(found, (Part.H,)) == (Part.H,)
        assert products_of(found, PARTS) == SPLIT
        (alone,) = squared_norms(found, (Part.H,), probes_of(found)).values()
        together = squared_norms(found, PARTS, probes_of(found))
        assert_close(
            alone.values,
            together[Block(0, "W_1", "W_1"), Part.H].values,
            rtol=1e-12,
            atol=0,
        )
    assert products_of(column(Products.linearised), (Part.H,)) == SPLIT
    assert products_of(column(Products.curvlinops), (Part.H,)) == SPLIT


@pytest.mark.filterwarnings("ignore:H. curvlinops' product is off:RuntimeWarning")
def test_the_hessian_of_a_foreign_network_is_asked_before_it_is_believed():
    """Under vmap the product of H through this network's norm is wrong; double backward takes over, batch by batch."""
    problem, _ = mlp()
    assert isinstance(problem.inputs, torch.Tensor)
    assert isinstance(problem.targets, torch.Tensor)
    inputs, targets = (
        list(side.split([2, 5])) for side in (problem.inputs, problem.targets)
    )
    dense = dense_parts(problem, list(dict(problem.network.named_parameters())))
    for given in (problem, hessfig.Problem(problem.network, inputs, targets)):
        found = ColumnOperator((given.objective("float64")), 0, "all", ["all"])
        product = found.split_matmat(
            torch.eye(found.dim, dtype=torch.float64), (Part.H,)
        )["all", Part.H]
        assert_close(product, dense[Part.H], rtol=1e-10, atol=1e-12)
