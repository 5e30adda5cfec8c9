"""Slopes in log-log coordinates, with errors from resampling whole seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MIN_POINTS = 3
ARITHMETIC, GEOMETRIC = "arithmetic", "geometric"
RESAMPLES = 2000


@dataclass(frozen=True)
class Fit:
    """A fitted slope: its bootstrap standard error and percentile 95 % interval, and what it rests on.

    `lower_half` and `lower_half_se` belong to the lower half of the points (the smaller sigmas); they tell an
    exponent that is reached as sigma -> 0 from a wrong one. Everything that cannot be had is nan.
    """

    slope: float = math.nan
    slope_se: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    lower_half: float = math.nan
    lower_half_se: float = math.nan
    num_points: int = 0
    num_seeds: int = 0


def fit_slope(values: Array, sigma: Array, *, resamples: int, seed: int, average: str = ARITHMETIC) -> Fit:
    """Fit log(mean over seeds) = a + slope * log(sigma) by least squares; rows of `values` are seeds.

    The mean is arithmetic or geometric. Norms that go with sigma^54 spread over decades from seed to seed: their
    arithmetic mean is that of one or two seeds, and no resampling tells its error; the geometric mean is well known.
    Points of one seed share their weights along sigma and are not independent, so whole seeds are drawn with
    replacement, the same ones at every sigma. A missing value (nan) is left out of its mean.
    """
    log_means, sigma, values = _usable(values, sigma, average)
    if sigma.size < MIN_POINTS:
        return Fit(num_points=sigma.size)
    num_seeds = int(np.isfinite(values).any(axis=1).sum())
    replicates = _resampled_log_means(values[np.isfinite(values).any(axis=1)], resamples, seed, average)
    half = math.ceil(sigma.size / 2)
    lower = _slopes(replicates[:, :half], sigma[:half])
    spread = _slopes(replicates, sigma)
    low, high = np.percentile(spread, [2.5, 97.5]) if spread.size else (math.nan, math.nan)
    return Fit(
        slope=float(_slopes(log_means[None], sigma)[0]),
        slope_se=_deviation(spread),
        ci_low=float(low),
        ci_high=float(high),
        lower_half=float(_slopes(log_means[None, :half], sigma[:half])[0])
        if half >= MIN_POINTS
        else math.nan,
        lower_half_se=_deviation(lower) if half >= MIN_POINTS else math.nan,
        num_points=sigma.size,
        num_seeds=num_seeds,
    )


def _usable(values: Array, sigma: Array, average: str) -> tuple[Array, Array, Array]:
    """Return log means, sigmas and values at the sigmas where a positive mean exists; zeros have no geometric mean."""
    values = np.where(values > 0, values, np.nan) if average == GEOMETRIC else values
    known = np.isfinite(values)
    keep = known.any(axis=0) & (np.where(known, values, 0.0).sum(axis=0) > 0)
    log_means = _log_means(np.ones((1, len(values))), values[:, keep], average)[0]
    return log_means, sigma[keep], values[:, keep]


def _resampled_log_means(values: Array, resamples: int, seed: int, average: str) -> Array:
    """Return log means of `resamples` draws of seeds; none for a single seed, whose spread is unknown."""
    num_seeds = len(values)
    if num_seeds < 2:
        return np.empty((0, values.shape[1]))
    log_means = _log_means(_weights(num_seeds, resamples, seed), values, average)
    return log_means[np.isfinite(log_means).all(axis=1)]


def _log_means(weights: Array, values: Array, average: str) -> Array:
    """Return the log of the weighted mean over seeds, for each row of `weights`; nan or -inf where there is none."""
    known = np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.log(values) if average == GEOMETRIC else values
        means = (weights @ np.where(known, terms, 0.0)) / (weights @ known.astype(float))
        return means if average == GEOMETRIC else np.log(means)


@cache
def _weights(num_seeds: int, resamples: int, seed: int) -> Array:
    """Return how often each seed is drawn in each resample."""
    draws = np.random.default_rng(seed).multinomial(
        num_seeds, np.full(num_seeds, 1 / num_seeds), size=resamples
    )
    return draws.astype(float)


def _slopes(log_means: Array, sigma: Array) -> Array:
    centred = np.log(sigma) - np.log(sigma).mean()
    return log_means @ (centred / (centred @ centred))


def _deviation(spread: Array) -> float:
    return float(spread.std(ddof=1)) if spread.size > 1 else math.nan
