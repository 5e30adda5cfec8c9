"""Terms that are no polynomials of the scores: the second theorem, what the first one said of them, its conditions."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hessfig.errors import UserError
from hessfig.rng import stream
from hessfig.terms import Matrix, Part
from hessfig.theory import homogeneous_claims, mixing_claims
from hessfig.theory.homogeneous_claims import (
    BREACHES,
    CASES,
    STATEMENTS,
    TERMS,
    WITNESS,
    WITNESSED,
)
from hessfig.theory.mixing_claims import PLAIN, Surroundings, mixing_exponents
from hessfig.theory.statement import Dims, check
from hessfig.theory.verification import CATALOGUE
from tests.daily import thinned

Q = Matrix.W_Q
V = Matrix.W_V
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "constant-term.md"
# Exponents of H(V, V) and H(Q, Q), measured by somebody else in plain PyTorch.
MEASURED = {
    "s^2 / sum of s^2": (2, 1),
    "ReLU / its sum": (2, 1),
    "s / |row|": (2, 1),
    "s^2 / |row|": (6, 3),
    "|s|^1.5": (8, 4),
    "|s|^0.5": (4, 2),
}


def text_of(heading):
    return PAGE.read_text().partition(heading)[2].partition("\n##")[0]


@pytest.fixture(scope="module")
def exponents():
    statement = STATEMENTS["mixing-homogeneous"]
    drawn = statement.draw(Dims(), stream(0, "homogeneous"))
    return drawn, dict(statement.oracle(drawn))


def _largest_error(drawn, found):
    predicted = [one.predicted() for one in drawn]
    return max(
        float((value - found[name]).abs())
        for one in predicted
        for name, value in one.items()
    )


def test_every_block_is_named_by_the_theorem(exponents):
    assert _largest_error(*exponents) < 0.01
    assert len(CASES) > 20


@pytest.mark.parametrize("name", thinned(MEASURED, 2))
def test_the_exponents_are_those_that_were_measured(name, exponents):
    stated = mixing_exponents([], non_polynomial=[TERMS[name].degree])
    found = [
        round(float(exponents[1][f"{name}: H({one}, {one})"]), 2) for one in (V, Q)
    ]
    assert found == [stated[Part.H, one, one] for one in (V, Q)] == [*MEASURED[name]]


def _as_polynomials(degrees, around=PLAIN, *, single=False, non_polynomial=()):
    return mixing_exponents(
        [*degrees, *map(round, non_polynomial)], around, single=single
    )


def _without_them(degrees, around=PLAIN, *, single=False, non_polynomial=()):
    return mixing_exponents(degrees, around, single=single)


def _no_second_derivative(degrees, around=PLAIN, *, single=False, non_polynomial=()):
    found = mixing_exponents(
        degrees, around, single=single, non_polynomial=non_polynomial
    )
    return {key: power + 2 * (key == (Part.H_f, Q, Q)) for key, power in found.items()}


@pytest.mark.parametrize(
    "mutation", [_as_polynomials, _without_them, _no_second_derivative]
)
def test_the_theorem_of_polynomials_fails_for_them(mutation, exponents, monkeypatch):
    monkeypatch.setattr(mixing_claims, "mixing_exponents", mutation)
    assert _largest_error(*exponents) > 0.9


@pytest.mark.parametrize("degree", [1.5, 0.5, -1])
def test_a_polynomial_has_a_whole_degree(degree):
    with pytest.raises(UserError, match=r"(?s)whole numbers from 0 on.*non_polynomial"):
        mixing_exponents([0, degree])


def test_degrees_may_come_from_a_generator():
    assert mixing_exponents(n for n in (0, 1)) == mixing_exponents((0, 1))


def test_every_condition_is_needed():
    """All breaches are as recorded, and each but the control differs from what the theorem says."""
    breaches = replace(CATALOGUE["mixing-conditions"])
    assert float(check(breaches, [Dims()], 1).error_as_printed or 0) < 0.01
    differing = [
        one.name
        for one in BREACHES
        if one.expected() != replace(one, differs={}).expected()
    ]
    assert differing == [one.name for one in BREACHES if one.name != "minors"]
    assert len(differing) == 8


@pytest.mark.long
def test_the_page_prints_the_example_at_which_no_leading_term_vanishes():
    assert (
        float(check(CATALOGUE["mixing-witness"], [Dims()], 1).error_as_printed or 9)
        < 0.01
    )
    text = PAGE.read_text().partition("**An explicit example.**")[2]
    printed = [
        re.findall(r"-?\d+", rows) for rows in re.findall(r"\(([-\d ,]+)\)", text)[:5]
    ]
    matrices = (
        WITNESS.X,
        WITNESS.weights[Q],
        WITNESS.weights[Matrix.W_K],
        WITNESS.weights[V],
        WITNESS.Y,
    )
    assert [[int(n) for n in rows] for rows in printed] == [
        one.flatten().int().tolist() for one in matrices
    ]


def test_every_row_of_both_tables_has_its_example():
    kinds = {
        "plain": PLAIN,
        "unit": Surroundings(scores=0.0, bend=True),
        "before": Surroundings(0.0, 0.0),
    }
    kinds["after"] = Surroundings(first=-1.0, second=-2.0)
    examples = {
        (one.powers or (0, 1, 2, 3), one.around)
        for one in WITNESSED
        if one.further is None
    }
    rows = re.findall(
        r"^\| [^|]+ \| ([\d, ]+) \| (\w+) \|",
        text_of("# Exponents by mixing weights"),
        re.M,
    )
    assert len(rows) >= 10
    assert {
        (tuple(map(int, powers.split(","))), kinds[around]) for powers, around in rows
    } == examples
    further = {
        (tuple(one.powers or ()), one.further.degree)
        for one in WITNESSED
        if one.further is not None
    }
    other = re.findall(
        r"^\| [^|]+ \| ([\d, ]+|-) \| ([\d.]+) \|",
        text_of("# Non-polynomial terms"),
        re.M,
    )
    assert {
        (tuple(map(int, re.findall(r"\d", powers))), float(degree))
        for powers, degree in other
    } == further


def test_a_witness_whose_leading_term_vanishes_is_caught(monkeypatch):
    monkeypatch.setattr(
        homogeneous_claims, "WITNESS", replace(WITNESS, X=WITNESS.X - WITNESS.X.mean(0))
    )
    case = next(case for case in WITNESSED if case.name == "softmax")
    found = homogeneous_claims._at_witness(case)
    measured = found.exponents()
    assert (
        max(
            abs(float(measured[name] - value))
            for name, value in found.predicted().items()
        )
        > 0.9
    )


@pytest.mark.parametrize("change", [0.01, -0.01])
def test_centring_changes_the_values_alone(change):
    statement = CATALOGUE["mixing-centred"]
    assert float(check(statement, [Dims()], 1).error_as_printed or 0) < 1e-12
    right = STATEMENTS["mixing-centred"].printed
    assert right is not None
    moved = replace(
        statement, printed=lambda point: right(replace(point, X=(1 + change) * point.X))
    )
    assert float(check(moved, [Dims()], 1).error_as_printed or 0) > 1e-3


@pytest.mark.parametrize("place", thinned(range(len(BREACHES)), 3))
def test_a_breach_that_is_no_exception_is_caught(place, monkeypatch):
    one = BREACHES[place]
    other = replace(one, differs={} if one.differs else {(Part.H_o, V, V): 2.0})
    monkeypatch.setattr(homogeneous_claims, "BREACHES", [other])
    assert (
        float(check(CATALOGUE["mixing-conditions"], [Dims()], 1).error_as_printed or 0)
        > 0.9
    )


def test_the_table_of_the_page_is_the_theorem():
    text = text_of("# Non-polynomial terms")
    rows = re.findall(
        r"^\| ([^|]+) \| ([\d, ]*|-) \| ([\d.]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
        text,
        re.M,
    )
    assert len(rows) >= 8
    for name, degrees, other, value, query, gap in rows:
        polynomials = [int(n) for n in degrees.split(",")] if degrees != "-" else []
        found = mixing_exponents(polynomials, non_polynomial=[float(other)])
        H = [found[Part.H, one, one] for one in (V, Q)]
        assert [float(value), float(query), float(gap)] == [*H, H[1] - H[0]], name


def _slopes(weights, sigma):
    """Return the exponents of H(V, V) and H(Q, Q) of one layer near sigma, in plain PyTorch."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((5, 4), (4, 3), (4, 3), (4, 4), (5, 4))
    inputs, query, key, value, targets = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in shapes
    )

    def norms(scale):
        tokens = scale * inputs

        def loss(query, value):
            return (
                (weights(tokens @ query @ key.T @ tokens.T) @ tokens @ value - targets)
                .square()
                .mean()
            )

        blocks = (
            torch.func.hessian(loss, 1)(query, value),
            torch.func.hessian(loss, 0)(query, value),
        )
        return torch.stack([block.norm() for block in blocks])

    step = 1.05
    growth = (norms(sigma * step) / norms(sigma / step)).log() / (2 * math.log(step))
    return float(growth[0]), float(growth[1])


def test_a_term_that_is_linear_on_pieces_does_not_count_where_terms_must_bend():
    stated = mixing_exponents([1, 2])
    assert (stated[Part.H, V, V], stated[Part.H, Q, Q]) == (6, 5)
    found = _slopes(
        lambda s: torch.relu(s) / (1 + torch.relu(s).sum(-1, keepdim=True)), 1e-3
    )
    assert found == pytest.approx((6, 5), abs=0.02)


@pytest.mark.parametrize(
    ("size", "below", "border"),
    [(torch.relu, 6, 1.0), (torch.square, 10, 0.5)],
    ids=[
        "ReLU over its sum: at scores of eps",
        "squares over their sum: at scores of sqrt(eps)",
    ],
)
def test_an_eps_in_the_sum_is_met_where_the_sum_is_that_small(size, below, border):
    """Scores have the size sigma^2; a factor of 100 in sigma to either side of the border is far from it."""
    eps = 1e-8
    sigma = eps ** (border / 2)

    def weights(scores):
        return size(scores) / (size(scores).sum(-1, keepdim=True) + eps)

    assert _slopes(weights, sigma / 100)[0] == pytest.approx(below, abs=0.05)
    assert _slopes(weights, sigma * 100)[0] == pytest.approx(2, abs=0.05)
