"""Lanczos runs: bases, projections, exact breakdown, restarts, and operators that are not symmetric."""

import pytest
import torch
from torch.testing import assert_close

from hessfig.curvature.spectral.lanczos import LanczosRun, advance
from hessfig.rng import stream
from tests.curvature.spectral.matrices import Explicit, with_eigenvalues

SPREAD = [10.0, *torch.linspace(-1, 1, 79).tolist()]


def start(dim, seed=0):
    return torch.randn(dim, dtype=torch.float64, generator=stream(seed, "start"))


def finished(operator, *runs):
    while advance(runs, operator):
        pass


def test_the_basis_stays_orthonormal_and_the_projection_is_the_operator_on_it():
    """Without re-orthogonalisation copies of the outlier come back after some 20 steps."""
    operator = with_eigenvalues(SPREAD)
    run = LanczosRun(start(80), 60)
    finished(operator, run)
    assert run.length == 60
    assert run.is_full
    assert_close(
        run.basis @ run.basis.T, torch.eye(60, dtype=torch.float64), rtol=0, atol=1e-13
    )
    truth = run.basis @ operator.matrix @ run.basis.T
    assert_close(run.projection, truth, rtol=0, atol=1e-12)


def test_all_runs_share_their_products_and_do_not_touch_each_other():
    operator = with_eigenvalues(SPREAD)
    calls = []
    multiply = operator.matmat
    operator.matmat = lambda vectors: (
        calls.append(vectors.shape[1]) or multiply(vectors)
    )
    together = [LanczosRun(start(80, seed), 12) for seed in (1, 2, 3)]
    alone = LanczosRun(start(80, 2), 12)
    finished(operator, *together)
    assert calls == [3] * 12
    finished(operator, alone)
    assert_close(together[1].projection, alone.projection, rtol=1e-12, atol=1e-12)


def test_with_fresh_vectors_a_run_spans_the_whole_space():
    """A start inside an eigenspace sees one eigenvalue of five; going on, the run finds all with their copies."""
    operator = Explicit(
        torch.diag(torch.tensor([4.0, 4.0, 2.0, 0.0, -1.0], dtype=torch.float64))
    )
    first = torch.eye(5, dtype=torch.float64)[3]
    short = LanczosRun(first, 5)
    long = LanczosRun(first, 5, fresh=stream(0, "fresh"))
    finished(operator, short, long)
    assert short.ritz().values.tolist() == [0.0]
    assert_close(
        long.ritz().values,
        torch.tensor([-1.0, 0.0, 2.0, 4.0, 4.0], dtype=torch.float64),
        rtol=0,
        atol=1e-13,
    )


def test_a_start_of_zeros_breaks_nothing():
    operator = with_eigenvalues([1.0, 2.0])
    nothing = torch.zeros(2, dtype=torch.float64)
    run = LanczosRun(nothing, 2)
    finished(operator, run)
    assert run.length == 0
    going_on = LanczosRun(nothing, 2, fresh=stream(0, "fresh"))
    finished(operator, going_on)
    assert_close(going_on.ritz().values, torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_locked_vectors_are_left_out():
    operator = Explicit(
        torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    )
    run = LanczosRun(start(4), 9, locked=torch.eye(4, dtype=torch.float64)[:, :2])
    finished(operator, run)
    assert_close(run.ritz().values, torch.tensor([1.0, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("skew", [1e-3, 1.0])
def test_an_operator_that_is_not_symmetric_is_refused(skew):
    matrix = with_eigenvalues(SPREAD).matrix
    noise = torch.randn(80, 80, dtype=torch.float64, generator=stream(0, "skew"))
    with pytest.raises(ArithmeticError, match="symmetric"):
        finished(Explicit(matrix + skew * (noise - noise.T)), LanczosRun(start(80), 10))
