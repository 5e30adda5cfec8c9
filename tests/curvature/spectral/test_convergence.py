"""When runs stop: the one ahead at its residual, the other when its values can be off by no more."""

import math
from dataclasses import replace

import pytest
import torch

from hessfig.curvature.spectral.extremes import (
    End,
    Goal,
    begin,
    fewest_steps,
    run_until_converged,
    starts_of,
    unfinished,
)
from hessfig.rng import stream
from tests.curvature.spectral.matrices import with_eigenvalues
from tests.daily import thinned

VALUES = [*torch.linspace(0, 1, 300, dtype=torch.float64).tolist(), 1.1, 1.2]


def runs_for(operator, goal, seed):
    generator = stream(seed, "pursuit")
    none = torch.zeros(operator.dim, 0, dtype=torch.float64)
    runs = begin(goal, starts_of(goal, operator, generator, None), generator, none)
    run_until_converged(runs, operator, goal)
    return runs


def test_a_strict_goal_is_reached_by_every_run():
    goal = Goal(End.largest, 1, 1e-6, 100)
    strict = replace(goal, strict=True)
    operator = with_eigenvalues(VALUES)
    runs = runs_for(operator, goal, 0)
    assert not unfinished(runs, goal)
    assert len(unfinished(runs, strict)) == 1
    run_until_converged(runs, operator, strict)
    assert not unfinished(runs, strict)
    for run in runs:
        assert float(run.ritz().residuals[-1]) <= 1e-6 * max(VALUES)


@pytest.mark.parametrize("dim", [10, 40_000, 10**8])
@pytest.mark.parametrize("tolerance", thinned([0.05, 1e-3, 1e-6], 2))
def test_a_step_fewer_would_miss_a_value_with_more_than_one_percent(dim, tolerance):
    """The bound of Kuczynski and Wozniakowski is relative to the spread, which is up to twice the scale."""
    steps = fewest_steps(dim, tolerance, 10**9)
    missed = []
    for k in (steps - 1, steps):
        missed.append(
            1.648 * dim**0.5 * math.exp(-(2 * k - 1) * (tolerance / 2) ** 0.5)
        )
    assert missed[1] <= 0.01 < missed[0]
    assert fewest_steps(dim, tolerance, steps - 1) == steps - 1
