"""Intervals of means, of differences of means and of curves: Student's t, for rules, levels, bands and comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean, its standard error and its interval; nan where there is none (an interval needs two numbers)."""

    mean: float
    se: float
    low: float
    high: float
    count: int


def student_interval(values: Iterable[float], *, level: float = LEVEL, tests: int = 1) -> Interval:
    """Return mean +- t s / sqrt(count) of the finite values; of `tests` intervals all hold at `level` (Bonferroni)."""
    sample = np.asarray(list(values), dtype=float)
    sample = sample[np.isfinite(sample)]
    count = len(sample)
    mean = float(sample.mean()) if count else math.nan
    se = float(sample.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan
    return _interval(mean, se, count - 1, count, level, tests)


def difference_interval(
    ours: Iterable[float], theirs: Iterable[float], *, level: float = LEVEL, tests: int = 1
) -> Interval:
    """Return the difference of two means of independent samples, with Welch's degrees of freedom."""
    one, other = student_interval(ours), student_interval(theirs)
    se = math.hypot(one.se, other.se)
    shares = [one.se**4 / max(one.count - 1, 1), other.se**4 / max(other.count - 1, 1)]
    dof = se**4 / sum(shares) if se > 0 else float(min(one.count, other.count) - 1)
    return _interval(one.mean - other.mean, se, dof, min(one.count, other.count), level, tests)


def student_band(samples: Numbers, *, level: float = LEVEL) -> tuple[Numbers, Numbers]:
    """Return mean and half-width of its interval over the first axis; a single sample has half-width nan."""
    count = len(samples)
    mean = samples.mean(axis=0)
    if count < 2:
        return mean, np.full_like(mean, math.nan)
    return mean, deviate(count - 1, level) * samples.std(axis=0, ddof=1) / math.sqrt(count)


def _interval(mean: float, se: float, dof: float, count: int, level: float, tests: int) -> Interval:
    if not (math.isfinite(mean) and math.isfinite(se) and dof > 0):
        return Interval(mean, se, math.nan, math.nan, count)
    half = deviate(dof, 1 - (1 - level) / tests) * se
    return Interval(mean, se, mean - half, mean + half, count)


@cache
def deviate(dof: float, level: float = LEVEL) -> float:
    """Return how many standard errors an interval of this level reaches to either side (Student's t)."""
    from scipy.special import stdtrit  # slow to import, and most figures need none

    return float(stdtrit(dof, (1 + level) / 2))
