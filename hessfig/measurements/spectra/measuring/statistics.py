"""Numbers of a spectrum: of all eigenvalues, and of a density with errors over its probes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERCENT = (5, 25, 50, 75, 95)
Array = NDArray[np.float64]


def share_negative(eigenvalues: Array, cut: float) -> float:
    """Return the share of eigenvalues below minus `cut` times the largest in size."""
    return float(np.mean(eigenvalues < -cut * np.abs(eigenvalues).max()))


def effective_rank(eigenvalues: Array) -> float:
    """Return (tr)^2 / ||.||_F^2; 0 for a zero matrix."""
    size = np.abs(eigenvalues).max()
    if size == 0.0:
        return 0.0
    scaled = eigenvalues / size
    return float(scaled.sum() ** 2 / np.square(scaled).sum())


def condition_number(eigenvalues: Array, cut: float) -> float:
    """Return the largest over the smallest eigenvalue in size above `cut` times the largest; nan for a zero matrix."""
    sizes = np.abs(eigenvalues)
    if sizes.max() == 0.0:
        return float("nan")
    return float(sizes.max() / sizes[sizes > cut * sizes.max()].min())


def quantile(eigenvalues: Array, percent: int) -> float:
    """Return the smallest eigenvalue that at least `percent` of 100 are no larger than."""
    place = max(int(np.ceil(percent / 100 * len(eigenvalues) - 1e-9)) - 1, 0)
    return float(np.sort(eigenvalues)[place])


@dataclass(frozen=True)
class Sampled:
    """A number and its standard error over probes; nan where there is one probe."""

    value: float
    error: float


def moment(nodes: Array, weights: Array, power: int) -> Sampled:
    """Return the mean over probes of sum_i w_i theta_i^power, which is tr A^power / n but for the probes."""
    return _mean((weights * nodes**power).sum(axis=1))


def sampled_quantile(nodes: Array, weights: Array, percent: int) -> Sampled:
    """Return the smallest node at which the mean cumulative reaches `percent` of 100.

    Its error is half the span of the quantiles at that level more or less one standard error of the cumulative there
    (Woodruff, J. Am. Stat. Assoc. 47 (1952) 635): no density at the quantile is needed.
    """
    share, count = percent / 100, len(nodes)
    order = np.argsort(nodes, axis=None, kind="stable")
    pooled, cumulative = nodes.ravel()[order], np.cumsum(weights.ravel()[order]) / count

    def at(level: float) -> float:
        place = np.searchsorted(cumulative, np.clip(level, 1e-9, 1 - 1e-9) - 1e-9)
        return float(pooled[min(place, len(pooled) - 1)])

    value = at(share)
    spread = _mean(np.where(nodes <= value, weights, 0.0).sum(axis=1)).error
    error = (at(share + spread) - at(share - spread)) / 2 if count > 1 else float("nan")
    return Sampled(value, error)


def _mean(values: Array) -> Sampled:
    count = len(values)
    error = float(values.std(ddof=1)) / count**0.5 if count > 1 else float("nan")
    return Sampled(float(values.mean()), error)
