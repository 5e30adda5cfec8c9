"""How heterogeneous the blocks of a network are: Jensen-Shannon distances between their spectra (arXiv 2402.16788).

Eigenvalues are divided by the block's 10th largest in size, so that shapes are compared and not sizes. All blocks of
one network and part share one even grid; on it a spectrum becomes probabilities that sum to 1 under a Gaussian kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.arrays.spectra import Density, Spectrum
from hessfig.analysis.spectra.quantiles import as_weighted, kth_in_size
from hessfig.analysis.spectra.smoothing import Kernel

Numbers = NDArray[np.float64]

PUBLISHED = Kernel(variance=1e-5)
UNIT = 10  # which eigenvalue, by size, is the unit
_CELLS = 4  # grid cells a kernel's standard deviation
_MOST_CELLS = 2**20
_REACH = 6.0  # standard deviations that the grid goes beyond the outermost eigenvalue


def distances(blocks: Sequence[Spectrum | Density], kernel: Kernel = PUBLISHED) -> Numbers:
    """Return the matrix of distances, 0 .. ln 2, between the blocks of one network.

    nan for a block whose 10th largest eigenvalue is zero (or missing): it has no unit.
    """
    units = [kth_in_size(block, UNIT) for block in blocks]
    usable = [k for k, unit in enumerate(units) if unit > 0]
    scaled = [(numbers / units[k], shares) for k in usable for numbers, shares in [as_weighted(blocks[k])]]
    found = np.full((len(blocks), len(blocks)), math.nan)
    probabilities = on_common_grid(scaled, kernel)
    for place, i in enumerate(usable):
        found[i, i] = 0.0
        for other, j in enumerate(usable[:place]):
            found[i, j] = found[j, i] = jensen_shannon(probabilities[place], probabilities[other])
    return found


def average_distance(matrix: Numbers) -> float:
    """Return the mean over all pairs of different blocks that have a distance (untrained: JS^0); nan for none."""
    pairs = [matrix[i, j] for i, j in combinations(range(len(matrix)), 2)]
    known = [value for value in pairs if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def on_common_grid(spectra: Sequence[tuple[Numbers, Numbers]], kernel: Kernel) -> list[Numbers]:
    """Return each spectrum's probabilities, smoothed, in the cells of one even grid that holds them all.

    A cell is a quarter of the kernel's standard deviation, unless that makes more than a million of them.
    """
    if not spectra:
        return []
    low, high = min(x.min() for x, _ in spectra), max(x.max() for x, _ in spectra)
    deviation = kernel.deviation(float(low), float(high))
    low, high = low - _REACH * deviation, high + _REACH * deviation
    cells = min(_MOST_CELLS, math.ceil((high - low) / deviation * _CELLS))
    edges = np.linspace(low, high, cells + 1)
    return [_smooth(numbers, shares, edges, deviation) for numbers, shares in spectra]


def jensen_shannon(p: Numbers, q: Numbers) -> float:
    """Return (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2, in natural logarithms: 0 .. ln 2."""
    middle = (p + q) / 2
    return float((_kl(p, middle) + _kl(q, middle)) / 2)


def _kl(p: Numbers, m: Numbers) -> float:
    there = p > 0
    return float((p[there] * np.log(p[there] / m[there])).sum())


def _smooth(numbers: Numbers, shares: Numbers, edges: Numbers, deviation: float) -> Numbers:
    from scipy.ndimage import gaussian_filter1d

    counts, _ = np.histogram(numbers, bins=edges, weights=shares)
    cell = edges[1] - edges[0]
    density = gaussian_filter1d(counts, deviation / cell, mode="constant", truncate=_REACH)
    return np.asarray(density / density.sum())
