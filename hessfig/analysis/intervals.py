"""Intervals of means, logarithms, correlations and probed numbers, for rules, slopes, bands and comparisons.

Everything is Student's t on the scale on which the numbers are symmetric: as they are, as logarithms (norms,
eigenvalues, losses: see `geometric_interval`), or by Fisher's z (correlations). Seeds are independent; two variants
with the same seed share weights and batches, so they are compared by the interval of their differences.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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

    @property
    def found(self) -> dict[str, float]:
        """Mean, both ends and count, as tables hold them."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "count": self.count}

    @property
    def words(self) -> str:
        """The mean with its interval, two digits each."""
        return f"{self.mean:.2g} [{self.low:.2g}, {self.high:.2g}]"

    @property
    def reach(self) -> list[list[float]] | None:
        """How far it reaches down and up, as matplotlib's errorbar takes it; None where there is none."""
        ends = [[self.mean - self.low], [self.high - self.mean]]
        return ends if np.isfinite(ends).all() else None


def student_interval(values: Iterable[float], *, level: float = LEVEL, tests: int = 1) -> Interval:
    """Return mean +- t s / sqrt(count) of the finite values; of `tests` intervals all hold at `level` (Bonferroni)."""
    sample = np.asarray(list(values), dtype=float)
    sample = sample[np.isfinite(sample)]
    count = len(sample)
    mean = float(sample.mean()) if count else math.nan
    se = float(sample.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan
    return _interval(mean, se, count - 1, count, level, tests)


def welch_interval(
    values: Iterable[float], other: Iterable[float], *, level: float = LEVEL, tests: int = 1
) -> Interval:
    """Return the difference of the means of two independent samples with Welch's interval (Satterthwaite's degrees).

    For networks that share neither weights nor batches, where there are no pairs. `count` is that of the smaller one.
    """
    sides = [student_interval(side) for side in (values, other)]
    parts = [(side.se**2, side.count - 1) for side in sides]
    spread = sum(square for square, _ in parts)
    lost = sum(square**2 / dof for square, dof in parts if dof > 0)
    dof = spread**2 / lost if lost > 0 else sum(dof for _, dof in parts)
    count = min(side.count for side in sides)
    return _interval(sides[0].mean - sides[1].mean, math.sqrt(spread), dof, count, level, tests)


def geometric_interval(values: Iterable[float], *, level: float = LEVEL, tests: int = 1) -> Interval:
    """Return the geometric mean of the positive values with its interval, symmetric as factors (x/÷) and never below 0.

    `se` is that of the logarithm (natural). What is not positive has no logarithm and is left out.
    """
    sample = np.asarray(list(values), dtype=float)
    interval = student_interval(np.log(sample[sample > 0]), level=level, tests=tests)
    return _through(interval, math.exp)


MOST_CORRELATED = 0.999  # a correlation of one has no z; ranks along few steps are of size one by chance too


def fisher_interval(correlations: Iterable[float], *, level: float = LEVEL, tests: int = 1) -> Interval:
    """Return the mean correlation over seeds with its interval, both by Fisher's z, hence within [-1, 1].

    `se` is that of z; a correlation of size one counts as MOST_CORRELATED.
    """
    sample = np.asarray(list(correlations), dtype=float)
    z = np.arctanh(np.clip(sample, -MOST_CORRELATED, MOST_CORRELATED))
    return _through(student_interval(z, level=level, tests=tests), math.tanh)


def probe_interval(value: float, error: float, num_probes: int, *, level: float = LEVEL) -> Interval:
    """Return the interval of a norm that K test vectors estimate with standard error `error`: see `probe_deviate`.

    It is symmetric as a factor, value x/÷ exp(deviate * error / value): estimates of norms are skewed, and it covers
    better so (docs/accuracy.md). nan for one test vector and for a value that is not positive; `se` is that of the
    logarithm.

    Unbiased is the *squared* norm; the norm itself is low by about v / (8 K) of its size, v the variance of one
    vector's squared norm over its squared mean, because the root is concave.
    """
    if not (value > 0 and error >= 0 and num_probes > 1):
        return Interval(value if value > 0 else math.nan, math.nan, math.nan, math.nan, num_probes)
    factor = math.exp(probe_deviate(num_probes, level) * error / value)
    return Interval(value, error / value, value / factor, value * factor, num_probes)


def probe_deviate(num_probes: float, level: float = LEVEL) -> float:
    """Return how many standard errors the interval of a number from K test vectors reaches: t_(K-1) (1 + 1/(3 sqrt K)).

    Squared norms of few test vectors are skewed and, for blocks of a few directions, take few values, so that their
    spread is often found too small: Student's t alone covers 92 to 94 %. The factor is measured (scripts/coverage.py).
    """
    return (1 + 1 / (3 * math.sqrt(num_probes))) * deviate(num_probes - 1, level)


def band(mean: Numbers, sem: Numbers, count: Numbers, *, logs: bool) -> tuple[Numbers, Numbers]:
    """Return the ends of the 95 % interval of means over `count` numbers with standard errors `sem`: the shaded band.

    With `logs` (a logarithmic axis, on which only positive means are drawn) it reaches as far up as down as a factor:
    mean x/÷ exp(t sem / mean), which never touches zero. nan where there is one number.
    """
    mean, sem, count = (np.asarray(one, dtype=float) for one in (mean, sem, count))
    half = sem * np.array([deviate(int(one) - 1) if one > 1 else math.nan for one in count.ravel()]).reshape(
        count.shape
    )
    if not logs:
        return mean - half, mean + half
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.exp(half / mean)
        return mean / factor, mean * factor


def student_band(samples: Numbers, *, level: float = LEVEL) -> tuple[Numbers, Numbers]:
    """Return mean and half-width of its interval over the first axis; a single sample has half-width nan."""
    count = len(samples)
    mean = samples.mean(axis=0)
    if count < 2:
        return mean, np.full_like(mean, math.nan)
    return mean, deviate(count - 1, level) * samples.std(axis=0, ddof=1) / math.sqrt(count)


def _through(interval: Interval, back: Callable[[float], float]) -> Interval:
    """Return an interval found on another scale in its own numbers."""
    return replace(interval, mean=back(interval.mean), low=back(interval.low), high=back(interval.high))


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
