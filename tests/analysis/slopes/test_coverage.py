"""The stated 95 % interval of a slope holds the true slope in 92 to 97 % of simulated sweeps."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hessfig.analysis.slopes.fit import ARITHMETIC, GEOMETRIC, fit_slope
from tests.daily import daily

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Numbers]
TRUE = 5.0

NOISES = {
    "log-normal": lambda rng, shape: np.exp(0.3 * rng.normal(size=shape)),
    "log-normal, decades": lambda rng, shape: np.exp(rng.normal(size=shape)),
    "Student's t of three in logarithms": lambda rng, shape: np.exp(
        0.3 * rng.standard_t(3, size=shape)
    ),
    "Pareto of 2.5": lambda rng, shape: 1 + rng.pareto(2.5, size=shape),
}


def coverage(noise, average, seeds, points, *, sweeps):
    """Return in which share of sweeps with a known slope the interval holds it.

    The noise is independent from seed to seed and from place to place and of the same
    size at all places, so that arithmetic and geometric means both grow with
    sigma^TRUE.
    """
    rng = np.random.default_rng(20)
    sigma = np.geomspace(0.1, 1, points)
    tables = sigma**TRUE * NOISES[noise](rng, (sweeps, seeds, points))
    fits = [fit_slope(table, sigma, average=average) for table in tables]
    return float(np.mean([fit.ci_low <= TRUE <= fit.ci_high for fit in fits]))


@pytest.mark.parametrize("average", daily([ARITHMETIC, GEOMETRIC], GEOMETRIC))
def test_three_seeds_have_an_honest_interval(average):
    """The percentiles of a bootstrap cover 75 % here."""
    assert 0.92 <= coverage("log-normal", average, 3, 5, sweeps=1500) <= 0.97


@pytest.mark.parametrize("points", [5, 14])
@pytest.mark.parametrize("seeds", [3, 5, 20])
@pytest.mark.parametrize("average", [ARITHMETIC, GEOMETRIC])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.long
def test_intervals_cover(noise, average, seeds, points):
    assert 0.92 <= coverage(noise, average, seeds, points, sweeps=3000) <= 0.97
