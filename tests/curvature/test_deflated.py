"""The deflated estimator is unbiased, says how right it is, and needs fewer products than plain Hutchinson."""

from __future__ import annotations

import pytest
import torch

from hessfig.config import DType, ModelConfig, TaskConfig
from hessfig.curvature.deflated import deflated
from hessfig.curvature.dense import dense_norms
from hessfig.curvature.hutchinson import hutchinson
from hessfig.curvature.linearised.column import LinearisedColumn, LinearisedNetwork
from hessfig.curvature.problem import Problem
from hessfig.models.build import build_model
from hessfig.rng import stream
from hessfig.tasks.batch import draw_batch
from hessfig.tasks.losses import loss_module
from hessfig.terms import Matrix, Part

REPEATS = 120


@pytest.fixture(scope="module")
def columns() -> dict[Matrix, LinearisedColumn]:
    task, model = TaskConfig(digits=2, batch_size=8), ModelConfig(n_layers=2, d_model=12)
    network = build_model(model, sigma=0.5, seed=1234, length=9, dtype=DType.float64)
    problem = Problem(network, draw_batch(task, width=12, dtype=DType.float64), loss_module(task.loss))
    tape = LinearisedNetwork(problem, model)
    return {matrix: tape.column(1, matrix, [matrix]) for matrix in (Matrix.W_V, Matrix.W_Q)}


@pytest.mark.parametrize("matrix", [Matrix.W_V, Matrix.W_Q])
def test_unbiased_with_honest_errors(columns: dict[Matrix, LinearisedColumn], matrix: Matrix) -> None:
    column, parts = columns[matrix], list(Part)
    oracle = dense_norms(column, parts)
    found = [deflated(column, matrix, parts, 12, generator=stream(i, "deflated")) for i in range(REPEATS)]
    for part in parts:
        frobs = torch.tensor([norms[matrix, part].frob for norms in found])
        sems = torch.tensor([norms[matrix, part].frob_sem for norms in found])
        exact = oracle[matrix, part].frob
        squares = frobs.square()
        assert abs(squares.mean() - exact**2) < 4 * squares.std() / REPEATS**0.5
        assert ((frobs - exact).abs() < 1.96 * sems).double().mean() > 0.88, part


def test_beats_plain_hutchinson_at_equal_products(columns: dict[Matrix, LinearisedColumn]) -> None:
    column, block = columns[Matrix.W_V], (Matrix.W_V, Part.H)
    plain = [
        hutchinson(column, [Part.H], 18, generator=stream(i, "plain"))[block].frob for i in range(REPEATS)
    ]
    better = [
        deflated(column, Matrix.W_V, [Part.H], 18, generator=stream(i, "plain"))[block].frob
        for i in range(REPEATS)
    ]
    assert torch.tensor(better).std() < 0.7 * torch.tensor(plain).std()


def test_exact_zero_stays_zero(columns: dict[Matrix, LinearisedColumn]) -> None:
    top = columns[Matrix.W_V].network.column(2, Matrix.W_V, [Matrix.W_V])
    norms = deflated(top, Matrix.W_V, list(Part), 9, generator=stream(0))
    assert norms[Matrix.W_V, Part.H_f].frob == 0.0
    assert norms[Matrix.W_V, Part.H].frob == norms[Matrix.W_V, Part.H_o].frob > 0
