"""Places of k, orders of the samples, and what chance alone makes of both; numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Averaged:
    """Means over orders at every place of k, each with its standard error."""

    value: Array
    error: Array


def places(first: int, last: int, count: int) -> Places:
    """Return at most `count` whole numbers from `first` to `last`, evenly in the logarithm, both ends among them."""
    return np.unique(np.round(np.geomspace(first, last, count)).astype(np.int64))


def differences(losses: Array, at: Places) -> Array:
    """Return L_{k+1} - L_k = (l_{k+1} - L_k) / (k + 1) at the places k, for losses in one order (the last axis)."""
    sums = np.cumsum(losses, axis=-1)
    return (losses[..., at] - sums[..., at - 1] / at) / (at + 1)


def null_difference(losses: Array, at: Places) -> Array:
    """Return the root mean square of L_{k+1} - L_k over random orders of these losses: sd sqrt(1 + 1/k) / (k + 1).

    Exact, with sd the root of sum (l_i - L)^2 / (N - 1): for samples drawn without replacement the covariances that
    this brings cancel. It is that of independent draws too, so a slope of -1 says nothing of the network.
    """
    return float(np.std(losses, ddof=1)) * np.sqrt(1 + 1 / at) / (at + 1)


def null_gradient(spread: float, at: Places) -> Array:
    """Return sd / sqrt(k): the root mean square of a mean of k independent gradients whose own mean is zero."""
    return spread / np.sqrt(at)


def expected_gradient(length: float, spread: float, number: int, at: Places) -> Array:
    """Return the root mean square of |mean of k of `number` gradients| over random orders, exactly.

    sqrt(|g|^2 + sd^2 (1/k - 1/N)), g their mean and sd^2 = sum |g_i - g|^2 / (N - 1).
    """
    return np.sqrt(length**2 + spread**2 * (1 / at - 1 / number))


def mean_size(values: Array) -> Averaged:
    """Return the mean of |values| over the first axis."""
    return _mean(np.abs(values))


def root_mean_square(values: Array) -> Averaged:
    """Return the root of the mean square over the first axis; its error to first order."""
    squares = _mean(np.square(values))
    value = np.sqrt(squares.value)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(value > 0, squares.error / (2 * value), 0.0)
    return Averaged(value, error)


def rank_correlation(one: Array, other: Array) -> tuple[float, float]:
    """Return Spearman's correlation and its standard error sqrt((1 - r^2) / (n - 2)); nan where one is constant."""
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float) for values in (one, other)]
    if min(np.ptp(one), np.ptp(other)) == 0 or len(one) < 3:
        return float("nan"), float("nan")
    found = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return found, float(np.sqrt(max(1 - found**2, 0.0) / (len(one) - 2)))


def regression(predicted: Array, true: Array) -> tuple[float, float]:
    """Return the slope of true on predicted through their means, and its standard error; 1 for a perfect prediction."""
    x, y = predicted - predicted.mean(), true - true.mean()
    if float(x @ x) == 0 or len(x) < 3:
        return float("nan"), float("nan")
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))


def _mean(values: Array) -> Averaged:
    return Averaged(values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)))
