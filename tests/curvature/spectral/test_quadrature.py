"""Stochastic Lanczos quadrature: exact moments, exact densities, and bands that hold the truth as often as they say."""

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from torch.testing import assert_close

from hessfig.curvature.spectral.densities import quadrature
from hessfig.rng import stream
from tests.curvature.spectral.matrices import Explicit, rotated, with_eigenvalues


def starts(dim, count, seed=0):
    return torch.randn(
        dim, count, dtype=torch.float64, generator=stream(seed, "starts")
    )


@pytest.mark.parametrize("steps", [2, 3, 7, 12])
def test_moments_below_twice_the_steps_are_those_of_the_start(steps):
    operator = with_eigenvalues(torch.linspace(-1, 2, 40).tolist())
    probes = starts(40, 3)
    found = quadrature(operator, probes, steps)
    assert_close(found.weights.sum(dim=1), torch.ones(3, dtype=torch.float64))
    units = probes / probes.norm(dim=0)
    power = torch.eye(40, dtype=torch.float64)
    for degree in range(2 * steps):
        truth = (units * (power @ units)).sum(dim=0)
        moments = (found.weights * found.nodes**degree).sum(dim=1)
        assert_close(moments, truth, rtol=1e-10, atol=1e-12)
        if steps > 3 and degree < 2 * (steps // 2):
            halves = (found.half_weights * found.half_nodes**degree).sum(dim=1)
            assert_close(halves, truth, rtol=1e-10, atol=1e-12)
        power = operator.matrix @ power


@pytest.mark.parametrize(
    ("values", "distinct"),
    [([0.0] * 8, 1), ([5.0] + [0.0] * 7, 2), ([1.0] * 4 + [2.0] * 4, 2)],
)
def test_breakdown_is_exact_and_fills_up_with_weights_of_zero(values, distinct):
    found = quadrature(with_eigenvalues(values), starts(8, 4), 6)
    assert found.nodes.shape == (4, 6)
    assert found.half_nodes.shape == (4, 3)
    assert not found.nodes[:, distinct:].any()
    assert not found.weights[:, distinct:].any()
    truth = torch.tensor(sorted(set(values)), dtype=torch.float64).expand(4, -1)
    assert_close(found.nodes[:, :distinct], truth, rtol=0, atol=1e-13)
    for value in vars(found).values():
        assert bool(value.isfinite().all())


def test_probes_that_do_not_fit_at_once_are_taken_in_turn(monkeypatch):
    operator = with_eigenvalues(torch.linspace(-1, 2, 40).tolist())
    probes = starts(40, 5)
    whole = quadrature(operator, probes, 10)
    monkeypatch.setattr(
        "hessfig.curvature.spectral.densities.BASIS_BYTES", 2 * 8 * 40 * 10
    )
    parts = quadrature(operator, probes, 10)
    assert_close(parts.nodes, whole.nodes, rtol=1e-9, atol=1e-12)


def cumulative(nodes, weights, at, width):
    """Return the cumulative of every probe's density, smoothed by a Gaussian of standard deviation `width`."""
    z = (torch.from_numpy(at)[:, None, None] - nodes) / (width * 2**0.5)
    return (weights * (1 + torch.erf(z)) / 2).sum(dim=-1).numpy()


def band(found, at, width):
    """Return the mean cumulative and its half-width: 95 % of Student's t over probes, and the error of the steps.

    The error of the steps is what all steps change against half of them, averaged over
    probes.
    """
    by_probe = cumulative(found.nodes, found.weights, at, width)
    halves = cumulative(found.half_nodes, found.half_weights, at, width).mean(axis=1)
    count = by_probe.shape[1]
    mean = by_probe.mean(axis=1)
    spread = by_probe.std(axis=1, ddof=1) / count**0.5
    return mean, student.ppf(0.975, count - 1) * spread + np.abs(mean - halves)


def drawn_matrix(seed):
    """Return a symmetric matrix as Hessians are: a bulk around zero, many zeros, a few outliers."""
    generator = stream(seed, "matrix")
    bulk = 0.2 * torch.randn(50, dtype=torch.float64, generator=generator)
    outliers = 3 * torch.rand(5, dtype=torch.float64, generator=generator)
    zeros = torch.zeros(25, dtype=torch.float64)
    return rotated(torch.cat([bulk, outliers, zeros]), seed=seed)


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.long
def test_bands_hold_the_exact_cumulative_at_the_nominal_rate(count):
    """Pointwise, at the exact cumulative's 10, 50 and 90 % points, counted over densities of 40 steps, 10 probes.

    The three points of one density count as one. Of rates within 3 standard errors of
    95 % those above are not excluded: the error of the steps widens bands.
    """
    width = 0.02
    inside = []
    probe_only = []
    for seed in range(count):
        matrix = drawn_matrix(seed)
        values = torch.linalg.eigvalsh(matrix)
        at = np.quantile(values.numpy(), [0.1, 0.5, 0.9]) + 0.5 * width
        each = torch.full((1, 80), 1 / 80, dtype=torch.float64)
        truth = cumulative(values[None], each, at, width)[:, 0]
        found = quadrature(Explicit(matrix), starts(80, 10, seed), 40)
        mean, half = band(found, at, width)
        inside.append(np.abs(mean - truth) <= half)
        steps = np.abs(
            mean
            - cumulative(found.half_nodes, found.half_weights, at, width).mean(axis=1)
        )
        probe_only.append(np.abs(mean - truth) <= half - steps)
    rate = np.mean(inside)
    alone = np.mean(probe_only)
    error = (0.95 * 0.05 / count) ** 0.5
    assert rate >= 0.95 - 3 * error
    # 40 steps are enough here: probes are all there is.
    assert abs(alone - 0.95) <= 3 * error
