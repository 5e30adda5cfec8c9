"""Probes in a block's own axes: unbiased, honest about their error, and better than plain ones on Kronecker blocks."""

import math

import pytest
import torch

from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.measurements.block_norms import aligned, dense_norms, hutchinson
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.rng import stream
from hessfig.terms import PARTS, Matrix, Part
from tests.measurements.test_hutchinson import MatrixColumn
from tests.toys import toy_problem

REPEATS = 120


@pytest.fixture(scope="module")
def network():
    task = TaskConfig(digits=2, batch_size=8)
    model = ModelConfig(n_layers=2, d_model=12)
    return LinearisedNetwork(toy_problem(model, task, sigma=0.5), model)


@pytest.fixture(scope="module")
def columns(network):
    found = {}
    for matrix in (Matrix.W_V, Matrix.W_Q):
        found[matrix] = network.column(1, matrix, [matrix])
    return found


@pytest.mark.parametrize("matrix", [Matrix.W_V, Matrix.W_Q])
@pytest.mark.long
def test_unbiased_with_honest_errors(columns, matrix):
    column = columns[matrix]
    parts = list(PARTS)
    oracle = dense_norms(column, parts)
    found = []
    for i in range(REPEATS):
        found.append(aligned(column, matrix, parts, 12, generator=stream(i, "aligned")))
    for part in parts:
        frobs = torch.tensor([norms[matrix, part].value for norms in found])
        sems = torch.tensor([norms[matrix, part].error for norms in found])
        exact = oracle[matrix, part].value
        squares = frobs.square()
        assert abs(squares.mean() - exact**2) < 4 * squares.std() / REPEATS**0.5
        assert sems.mean() == pytest.approx(float(frobs.std()), rel=0.35)
        assert ((frobs - exact).abs() < 2 * sems).double().mean() > 0.8, part


@pytest.mark.long
def test_rows_beside_the_diagonal_share_its_axes_and_are_unbiased(network):
    column = network.column(1, Matrix.W_Q, [Matrix.W_Q, Matrix.W_V])
    exact = dense_norms(column, [Part.H])[Matrix.W_V, Part.H].value
    found = []
    for i in range(REPEATS):
        found.append(
            aligned(column, Matrix.W_Q, [Part.H], 12, generator=stream(i, "rows"))
        )
    squares = torch.tensor(
        [norms[Matrix.W_V, Part.H].value for norms in found]
    ).square()
    assert abs(squares.mean() - exact**2) < 4 * squares.std() / REPEATS**0.5


def test_a_kronecker_block_is_found_with_less_error_than_by_plain_probes():
    draw = stream(0, "kronecker")
    factors = [torch.randn(8, 3, generator=draw, dtype=torch.float64) for _ in range(2)]
    block = torch.kron(*(factor @ factor.T for factor in factors))
    column = MatrixColumn(
        {(Matrix.W_V, part): block for part in (Part.H_o, Part.H_f)}, weight=(8, 8)
    )
    spread = {
        estimate: torch.tensor([call(i).value for i in range(REPEATS)]).std()
        for estimate, call in {
            "plain": lambda i: _first(
                hutchinson(column, [Part.H], 12, generator=stream(i, "k"))
            ),
            "aligned": lambda i: _first(
                aligned(column, Matrix.W_V, [Part.H], 12, generator=stream(i, "k"))
            ),
        }.items()
    }
    assert spread["aligned"] < 0.8 * spread["plain"]


def test_what_is_not_finite_is_told_and_not_hidden():
    block = torch.full((4, 4), float("inf"), dtype=torch.float64)
    column = MatrixColumn(
        {(Matrix.W_V, part): block for part in (Part.H_o, Part.H_f)}, weight=(2, 2)
    )
    norms = aligned(column, Matrix.W_V, [Part.H], 6, generator=stream(0))
    assert not math.isfinite(norms[Matrix.W_V, Part.H].value)


def test_exact_zero_stays_zero(network):
    top = network.column(2, Matrix.W_V, [Matrix.W_V])
    norms = aligned(top, Matrix.W_V, list(PARTS), 9, generator=stream(0))
    assert norms[Matrix.W_V, Part.H_f].value == 0.0
    assert norms[Matrix.W_V, Part.H].value == norms[Matrix.W_V, Part.H_o].value > 0


def _first(norms):
    return next(iter(norms.values()))
