"""From nodes and weights to curves: a Gaussian kernel chosen when drawing, bands over probes, the steps' own error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.arrays.spectra import Density, Quadrature
from hessfig.analysis.interval import student_band

Numbers = NDArray[np.float64]
Profile = Callable[[Numbers, float], Numbers]


@dataclass(frozen=True)
class Kernel:
    """The Gaussian that takes the place of every node.

    Its standard deviation is `width` times the range of the numbers, or follows from a `variance` as in the published
    protocol (arXiv 2402.16788, after arXiv 1901.10159): variance * max(1, range).
    """

    width: float = 0.01
    variance: float | None = None

    def deviation(self, low: float, high: float) -> float:
        """Return the standard deviation for numbers between `low` and `high`."""
        if self.variance is not None:
            return math.sqrt(self.variance * max(1.0, high - low))
        return self.width * (high - low) or self.width

    @property
    def words(self) -> str:
        """What a figure's note says of it."""
        if self.variance is not None:
            return f"Gaussian kernel of variance {self.variance:g} max(1, range)"
        return f"Gaussian kernel of standard deviation {self.width:g} of the range"


@dataclass(frozen=True)
class Banded:
    """A curve over `grid`: the mean over probes, and half the width of its 95 % interval (Student's t; nan for one).

    `half` is the same mean by half the Lanczos steps: what it differs by is the error of the steps, not of the probes.
    """

    grid: Numbers
    mean: Numbers
    margin: Numbers
    half: Numbers

    @property
    def steps_error(self) -> float:
        """The largest difference between half the steps and all of them."""
        return float(np.abs(self.half - self.mean).max())

    @property
    def probes_error(self) -> float:
        """The largest half-width of the interval over probes."""
        return float(self.margin.max())


def span(density: Density) -> tuple[float, float]:
    """Return the smallest and largest node that has weight."""
    used = density.whole.nodes[density.whole.weights > 0]
    return float(used.min()), float(used.max())


def grid_over(low: float, high: float, deviation: float, *, points: int = 400) -> Numbers:
    """Return evenly spaced places from three deviations below `low` to three above `high`."""
    return np.linspace(low - 3 * deviation, high + 3 * deviation, points)


def smoothed(density: Density, grid: Numbers, deviation: float) -> Banded:
    """Return the density phi(t) = sum_i w_i N(t; theta_i, deviation^2) over `grid`."""
    every, half = (_per_probe(one, grid, deviation, _bell) for one in (density.whole, density.half))
    return Banded(grid, *student_band(every), half.mean(axis=0))


def cumulative(density: Density, grid: Numbers, deviation: float) -> Banded:
    """Return the share of eigenvalues below each place: sum_i w_i Phi((t - theta_i) / deviation)."""
    every, half = (_per_probe(one, grid, deviation, _share_below) for one in (density.whole, density.half))
    return Banded(grid, *student_band(every), half.mean(axis=0))


def of_eigenvalues(eigenvalues: Numbers, grid: Numbers, deviation: float) -> tuple[Numbers, Numbers]:
    """Return density and cumulative of all eigenvalues under the same kernel: what the bands are to hold."""
    weights = np.full((1, len(eigenvalues)), 1 / len(eigenvalues))
    exact = Quadrature(eigenvalues[None], weights)
    return _per_probe(exact, grid, deviation, _bell)[0], _per_probe(exact, grid, deviation, _share_below)[0]


def _per_probe(quadrature: Quadrature, grid: Numbers, deviation: float, kernel: Profile) -> Numbers:
    """Return sum_i w_i kernel((t - theta_i) / deviation), a row a probe."""
    rows = []
    for nodes, weights in zip(quadrature.nodes, quadrature.weights, strict=True):
        used = weights > 0
        rows.append(_sum(grid, nodes[used], weights[used], deviation, kernel))
    return np.stack(rows)


def _sum(grid: Numbers, nodes: Numbers, weights: Numbers, deviation: float, kernel: Profile) -> Numbers:
    total = np.zeros_like(grid)
    for start in range(0, len(nodes), 512):  # a table of 512 x 400 numbers at a time
        piece = slice(start, start + 512)
        total += kernel((grid[:, None] - nodes[piece]) / deviation, deviation) @ weights[piece]
    return total


def _bell(z: Numbers, deviation: float) -> Numbers:
    return np.asarray(np.exp(-0.5 * z**2) / (deviation * math.sqrt(2 * math.pi)))


def _share_below(z: Numbers, deviation: float) -> Numbers:
    from scipy.special import ndtr

    del deviation
    return np.asarray(ndtr(z))
