"""Intervals of means, logarithms, correlations and probed numbers, for rules, slopes, bands and comparisons.

All intervals use Student's t on the scale on which the numbers are symmetric:
unchanged, as logarithms (norms, eigenvalues, losses: see `geometric_interval`), or by
Fisher's z (correlations). Seeds are independent. Two variants with the same seed share
weights and batches, so that they are compared by the interval of their differences.
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
    """A mean, its standard error and its interval; nan if they do not exist (an interval needs two numbers)."""

    mean: float
    se: float
    low: float
    high: float
    count: int

    @property
    def found(self) -> dict[str, float]:
        """Mean, both ends and count, as in tables."""
        return {
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "count": self.count,
        }

    @property
    def words(self) -> str:
        """The mean with its interval, two digits each."""
        return f"{self.mean:.2g} [{self.low:.2g}, {self.high:.2g}]"

    @property
    def reach(self) -> list[list[float]] | None:
        """Distances to the lower and upper end, for matplotlib's errorbar; None if there is no interval."""
        ends = [[self.mean - self.low], [self.high - self.mean]]
        return ends if np.isfinite(ends).all() else None


def student_interval(values: Iterable[float]) -> Interval:
    """Return mean +- t s / sqrt(count) of the finite values."""
    sample = np.asarray(list(values), dtype=float)
    sample = sample[np.isfinite(sample)]
    count = len(sample)
    mean = float(sample.mean()) if count else math.nan
    se = float(sample.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan
    half = half_width(se, count)
    return Interval(mean, se, mean - half, mean + half, count)


def half_width(se: float, count: int) -> float:
    """Return t_(count - 1) se, half of the interval around what `count` independent seeds determine; nan for one seed.

    Means over seeds and slopes of such means (slopes.fit) have this interval: in files,
    tables, figures and verdicts.
    """
    return deviate(count - 1) * se if count > 1 else math.nan


def geometric_interval(values: Iterable[float]) -> Interval:
    """Return the geometric mean of the positive values with its interval, symmetric as factors (x/÷) and never below 0.

    `se` is the standard error of the natural logarithm. Values that are not positive
    are left out.
    """
    sample = np.asarray(list(values), dtype=float)
    return _through(student_interval(np.log(sample[sample > 0])), math.exp)


MOST_CORRELATED = 0.999  # a correlation of one has no z, and ranks along a few steps may be equal by chance


def fisher_interval(correlations: Iterable[float]) -> Interval:
    """Return the mean correlation over seeds with its interval, both by Fisher's z, hence within [-1, 1].

    `se` is the standard error of z. Correlations of size one are replaced by
    MOST_CORRELATED.
    """
    sample = np.asarray(list(correlations), dtype=float)
    z = np.arctanh(np.clip(sample, -MOST_CORRELATED, MOST_CORRELATED))
    return _through(student_interval(z), math.tanh)


def probe_interval(value: float, error: float, num_probes: int) -> Interval:
    """Return the interval of a norm that K test vectors estimate with standard error `error`: see `probe_deviate`.

    The interval is symmetric as a factor, value x/÷ exp(deviate * error / value):
    estimates of norms are skewed, and this form has a better coverage
    (docs/accuracy.md). It is nan for one test vector and for a value that is not
    positive; `se` is that of the logarithm.

    The *squared* norm is unbiased. The norm itself is too low by a share of about v /
    (8 K), because the root is concave; v is the variance of one vector's squared norm
    over its squared mean.
    """
    if not (value > 0 and error >= 0 and num_probes > 1):
        known = value if value > 0 else math.nan
        return Interval(known, math.nan, math.nan, math.nan, num_probes)
    factor = math.exp(probe_deviate(num_probes) * error / value)
    return Interval(value, error / value, value / factor, value * factor, num_probes)


def probe_deviate(num_probes: float, level: float = LEVEL) -> float:
    """Return how many standard errors the interval of a number from K test vectors reaches: t_(K-1) (1 + 1/(3 sqrt K)).

    Squared norms of a few test vectors are skewed and, for blocks of low rank, take few
    values, so that their spread is often underestimated: Student's t alone covers 92 to
    94 %. The factor was fitted to coverage (docs/accuracy.md).
    """
    return (1 + 1 / (3 * math.sqrt(num_probes))) * deviate(num_probes - 1, level)


def band(
    mean: Numbers, sem: Numbers, count: Numbers, *, logs: bool
) -> tuple[Numbers, Numbers]:
    """Return the ends of the 95 % interval of means over `count` numbers with standard errors `sem`: the shaded band.

    With `logs` (a logarithmic axis, on which only positive means are drawn) it is
    symmetric as a factor, mean x/÷ exp(t sem / mean), which never reaches zero. The
    ends are nan for a single number.
    """
    mean, sem, count = (np.asarray(one, dtype=float) for one in (mean, sem, count))
    half = sem * np.array(
        [deviate(int(one) - 1) if one > 1 else math.nan for one in count.ravel()]
    ).reshape(count.shape)
    if not logs:
        return mean - half, mean + half
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.exp(half / mean)
        return mean / factor, mean * factor


def student_band(samples: Numbers) -> tuple[Numbers, Numbers]:
    """Return mean and half-width of its interval over the first axis; a single sample has half-width nan."""
    count = len(samples)
    mean = samples.mean(axis=0)
    if count < 2:
        return mean, np.full_like(mean, math.nan)
    return mean, deviate(count - 1) * samples.std(axis=0, ddof=1) / math.sqrt(count)


def _through(interval: Interval, back: Callable[[float], float]) -> Interval:
    """Return an interval that was computed on another scale, mapped back by `back`."""
    return replace(
        interval,
        mean=back(interval.mean),
        low=back(interval.low),
        high=back(interval.high),
    )


@cache
def deviate(dof: float, level: float = LEVEL) -> float:
    """Return how many standard errors an interval of this level reaches to either side (Student's t)."""
    from scipy.special import stdtrit  # slow to import, and most figures need none

    return float(stdtrit(dof, (1 + level) / 2))
