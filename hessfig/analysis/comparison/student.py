"""Differences of means in standard errors: Student's t with one spread for both sides, and the spread of batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

# Two runs of the same networks in float32 and in float64 differ by less: no smaller difference is told from none.
ARITHMETIC = 1e-3
_SMALLEST_P = 1e-300
Number = np.ndarray | float


@dataclass(frozen=True)
class Sample:
    """Count, mean and sum of squares about the mean, a column each."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray


@dataclass(frozen=True)
class Difference:
    """Differences of means, their standard errors and degrees of freedom, a column each; nan where there is none."""

    shift: np.ndarray
    error: np.ndarray
    dof: np.ndarray

    @property
    def p(self) -> np.ndarray:
        """Return the probability of a difference as large, either way, where there is none."""
        return np.asarray(2 * stdtr(self.dof, -np.abs(self.shift) / self.error))

    @property
    def z(self) -> np.ndarray:
        """Return the normal deviate of the same probability: |z| <= 3 means the same for any number of repeats."""
        return np.asarray(-np.sign(self.shift) * ndtri(np.maximum(self.p, _SMALLEST_P) / 2))


def difference(ours: Sample, theirs: Sample, *, batch_sd: Number, batch_dof: Number) -> Difference:
    """Compare means. Under the hypothesis tested both sides draw networks from one distribution, spread included.

    So the spread comes from all repeats together: three repeats alone know theirs to a factor of three. `batch_sd`
    is the standard deviation of a difference between two batches, known with `batch_dof` degrees of freedom; those
    of the sum are Welch's and Satterthwaite's, but no more than the repeats give: few that lie close together by
    chance would pass for a spread that is known.
    """
    enough = (ours.count > 1) & (theirs.count > 1)
    free = np.where(enough, ours.count + theirs.count - 2, np.nan)
    sampled = (ours.squares + theirs.squares) / free * (1 / ours.count + 1 / theirs.count)
    batch = np.square(batch_sd)
    variance = sampled + batch + ARITHMETIC**2
    joint = variance**2 / (sampled**2 / free + batch**2 / batch_dof + _SMALLEST_P)
    return Difference(ours.mean - theirs.mean, np.sqrt(variance), np.minimum(joint, free))


def smallest_found(error: np.ndarray, dof: np.ndarray, level: float) -> np.ndarray:
    """Return the smallest difference whose p is below `level`."""
    return np.asarray(-stdtrit(dof, level / 2) * error)


def sample(values: np.ndarray) -> Sample:
    """Return the sample of every column of an array (repeats, columns); nan: a repeat without this number."""
    known = ~np.isnan(values)
    count = np.where(known.any(axis=0), known.sum(axis=0), np.nan)
    mean = np.where(known, values, 0.0).sum(axis=0) / count
    return Sample(count, mean, (np.where(known, values - mean, 0.0) ** 2).sum(axis=0))


def weights(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return weights of columns, summing to one: noisy ones count less, and none more than twice the middle one."""
    mine, other = sample(ours), sample(theirs)
    variance = (mine.squares + other.squares) / (mine.count + other.count - 2)
    weight = 1 / (variance + np.median(variance) + ARITHMETIC**2)
    return np.asarray(weight / weight.sum())


def averaged(logs: np.ndarray, centre: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return each repeat's weighted average distance from `centre` over the columns that it has, as one column."""
    known = ~np.isnan(logs)
    share = np.where(known, weight, 0.0)
    total = share.sum(axis=1)
    distance = (share * np.where(known, logs - centre, 0.0)).sum(axis=1)
    return np.asarray(distance / np.where(total > 0, total, np.nan))[:, None]
