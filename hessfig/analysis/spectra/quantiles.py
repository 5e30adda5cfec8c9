"""Places in a spectrum: quantiles of weighted nodes, and the eigenvalue that is the k-th largest in size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.arrays.spectra import Density, Spectrum

Numbers = NDArray[np.float64]
NOISE = 1e-10  # of the largest in size: a zero up to rounding
_ROUNDING = 1e-12


def as_weighted(block: Spectrum | Density) -> tuple[Numbers, Numbers]:
    """Return (numbers, shares) of a spectrum, exact or by quadrature; probes count alike, shares sum to 1."""
    if isinstance(block, Spectrum):
        return block.eigenvalues, np.full(len(block.eigenvalues), 1 / len(block.eigenvalues))
    nodes, weights = block.whole.nodes, block.whole.weights
    used = weights > 0
    return nodes[used], weights[used] / weights.sum()


def quantile(numbers: Numbers, shares: Numbers, level: float) -> float:
    """Return the smallest number with at least `level` of all shares at or below it."""
    order = np.argsort(numbers, kind="stable")
    below = np.cumsum(shares[order])
    place = np.searchsorted(below, level * below[-1] * (1 - _ROUNDING))
    return float(numbers[order][min(int(place), len(numbers) - 1)])


def kth_in_size(block: Spectrum | Density, k: int) -> float:
    """Return the size |lambda| of the k-th largest eigenvalue in size; 0 where a block has fewer.

    By quadrature it is where the shares from the outside reach k - 1/2 eigenvalues of the block's `dim`. What is below
    NOISE of the largest is the rounding of a zero (a block of rank less than k), and 0.
    """
    if block.place.dim < k:
        return 0.0
    numbers, shares = as_weighted(block)
    sizes = np.abs(numbers)
    found = quantile(-sizes, shares, (k - 0.5) / block.place.dim) * -1.0
    return found if found > NOISE * sizes.max() else 0.0
