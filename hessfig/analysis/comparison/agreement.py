"""Statistics of comparisons: shifts with their errors, the spread between batches, and verdicts."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtr, stdtrit

from hessfig.analysis.manifest import Architectures
from hessfig.errors import plain
from hessfig.predictions.architecture import Architecture, Attention, Kind, Norm

# Runs of the same networks in float32 and in float64 differ by less, so smaller differences are not detected.
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
class PairedDifference:
    """Differences of means, their standard errors and degrees of freedom, a column each; nan where there is none."""

    shift: np.ndarray
    error: np.ndarray
    dof: np.ndarray

    @property
    def p(self) -> np.ndarray:
        """Return the two-sided probability of a difference at least as large under equality."""
        return np.asarray(2 * stdtr(self.dof, -np.abs(self.shift) / self.error))

    @property
    def z(self) -> np.ndarray:
        """Return the normal deviate of the same probability: |z| <= 3 means the same for any number of repeats."""
        return np.asarray(-np.sign(self.shift) * ndtri(np.maximum(self.p, _SMALLEST_P) / 2))


def difference_of_means(ours: Sample, theirs: Sample, *, batch_sd: Number, batch_dof: Number) -> PairedDifference:
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
    return PairedDifference(ours.mean - theirs.mean, np.sqrt(variance), np.minimum(joint, free))


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


def distance_from_centre(logs: np.ndarray, centre: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return each repeat's weighted mean distance from `centre` over its columns, as one column."""
    known = ~np.isnan(logs)
    share = np.where(known, weight, 0.0)
    total = share.sum(axis=1)
    distance = (share * np.where(known, logs - centre, 0.0)).sum(axis=1)
    return np.asarray(distance / np.where(total > 0, total, np.nan))[:, None]


# Of 1000 comparisons of equals, how many each family of tests calls different (Bonferroni; in all 20).
CURVES, RATIOS, POINTS = 0.012, 0.006, 0.002
TOO_COARSE = np.log(2.0)


class AgreementVerdict(StrEnum):
    """Whether two sets of values could come from one distribution.

    differs     some curve's shift, some ratio of two curves of a layer, or some point lies outside what chance and
                the batches explain, or a curve is zero on one side only; 2 of 100 comparisons of equals, at most
    agrees      nothing does, and some curve would have shown a factor of two
    undecided   nothing does, but no curve would have: too few repeats, or nothing but numbers left out
    """

    agrees = "agrees"
    differs = "differs"
    undecided = "undecided"


def agreement_verdict(
    points: pd.DataFrame, curves: pd.DataFrame, ratios: pd.DataFrame
) -> tuple[AgreementVerdict, list[str]]:
    """Return the verdict, and one line per kind of difference."""
    reasons = list(_outside(points, curves, ratios))
    if reasons:
        return AgreementVerdict.differs, reasons
    detectable = found_from(curves)
    enough = curves["zero"].all() if detectable.isna().all() else detectable.min() <= TOO_COARSE
    return (AgreementVerdict.agrees if enough else AgreementVerdict.undecided), []


def found_from(curves: pd.DataFrame) -> pd.Series:
    """Return the smallest shift of each curve that would count as different, as a log; nan without a test."""
    level = CURVES / max(int(curves["p"].notna().sum()), 1)
    return pd.Series(-stdtrit(curves["dof"].to_numpy(), level / 2) * curves["shift_se"].to_numpy(), curves.index)


def curve_name(row: pd.Series) -> str:
    """Return 'H_o of W_Q in layer 1/1'."""
    return f"{row['part']} of {plain(row['block'])} in layer {row['layer']}/{row['num_layers']}"


def percent(log: float) -> str:
    """Return a log ratio as '+4.1 %', or as a factor where percents are hard to read."""
    return f"{100 * np.expm1(log):+.1f} %" if abs(log) < TOO_COARSE else f"a factor of {np.exp(log):.3g}"


def _outside(points: pd.DataFrame, curves: pd.DataFrame, ratios: pd.DataFrame) -> Iterator[str]:
    shifts = ((curves, CURVES, "curve", "shift"), (ratios, RATIOS, "ratio", "shift"))
    for rows, rate, what, size in (*shifts, (points, POINTS, "point", "log_ratio")):
        beyond = rows[rows["p"] < rate / max(int(rows["p"].notna().sum()), 1)]
        if len(beyond):
            row = beyond.loc[beyond["z"].abs().idxmax()]
            many = f"{len(beyond)} {what}s" if len(beyond) > 1 else f"1 {what}"
            yield f"{many} outside, the worst {percent(row[size])} (z {row['z']:+.1f}, {_which(row, what)})"
    one_sided = curves[curves["zero"] != curves["zero_reference"]]
    if len(one_sided):
        yield f"zero on one side only: {', '.join(curve_name(row) for _, row in one_sided.iterrows())}"


def _which(row: pd.Series, what: str) -> str:
    if what == "ratio":
        return f"{curve_name(row)} over {row['over_part']} of {plain(row['over_block'])}"
    return curve_name(row) + (f" at sigma {row['sigma']:.3g}" if what == "point" else "")


BATCH_SIZE = 64  # of every batch on record; the variance goes with its inverse
Task = Mapping[str, Any] | None


@dataclass(frozen=True)
class BatchSpread:
    """Standard deviation over batches of a curve and of a single point, in logs, from `dof` + 1 batches."""

    curve: float
    point: float
    dof: int


@dataclass(frozen=True)
class Batches:
    """How two batches differ: `scale` is the variance of their difference over that of one batch on record."""

    architectures: Architectures
    scale: float = 2.0

    def spread(self, num_layers: int, block: str, part: str) -> BatchSpread:
        """Return the spread of the difference between the two batches, for one curve."""
        network = network_of(self.architectures.get(("", num_layers)))
        recorded = _on_record(network, num_layers, block, part)
        return BatchSpread(self.scale**0.5 * recorded.curve, self.scale**0.5 * recorded.point, recorded.dof)


def batches(architectures: Architectures, ours: Task, theirs: Task) -> Batches:
    """Return how the batches of two runs differ, from their task settings (None: not known, so a batch of its own)."""
    if ours is not None and ours == theirs:
        return Batches(architectures, scale=0.0)
    return Batches(architectures, scale=sum(_relative_variance(task) for task in (ours, theirs)))


def network_of(architecture: Architecture | None) -> str:
    """Return the name under which a network's spread is on record, "" if it is not."""
    if architecture is None or architecture.kind not in (Kind.transformer, Kind.linear_mlp):
        return ""
    if architecture.kind == Kind.linear_mlp:
        return "linear MLP"
    if architecture.attention == Attention.linear:
        return "" if architecture.attention_skip else "linear chain"
    return {Norm.none: "softmax", Norm.pre: "pre-LN"}.get(architecture.norm, "")


def _relative_variance(task: Task) -> float:
    size = (task or {}).get("batch_size")
    return BATCH_SIZE / size if isinstance(size, int) and size > 0 else 1.0


def _on_record(network: str, num_layers: int, block: str, part: str) -> BatchSpread:
    """Return the spread of a curve: of its depth or the deepest below, else the largest of the network, else of all."""
    rows = [row for row in _record() if row[:3] == (network, block, part) and row[3] <= num_layers]
    deepest = max((row[3] for row in rows), default=0)
    spreads = [row[4] for row in rows if row[3] == deepest] or [
        spread for name, *_, spread in _record() if name == network or not network
    ]
    curve, point = (max(getattr(spread, name) for spread in spreads) for name in ("curve", "point"))
    return BatchSpread(curve, point, min(spread.dof for spread in spreads))


@cache
def _record() -> tuple[tuple[str, str, str, int, BatchSpread], ...]:
    """Return network, block, part, number of layers and spread of every curve on record."""
    rows = csv.DictReader(files("hessfig.data").joinpath("batch_spread.csv").read_text("utf-8").splitlines())
    return tuple((row["network"], row["block"], row["part"], int(row["num_layers"]), _spread(row)) for row in rows)


def _spread(row: Mapping[str, str]) -> BatchSpread:
    return BatchSpread(float(row["curve_sd"]), float(row["point_sd"]), int(row["num_batches"]) - 1)


LAYER = ["num_layers", "layer"]
CURVE = [*LAYER, "block", "part"]
RATIO = [*CURVE, "over_block", "over_part"]
SHIFT = ["shift", "shift_se", "dof", "p", "z"]
Curve = tuple[Any, ...]
Wide = Mapping[Curve, pd.DataFrame]


def curve_shifts(ours: Wide, theirs: Wide, batches: Batches) -> pd.DataFrame:
    """Return one row per curve with the mean log ratio over sigma, its error and what it means.

    Points of one repeat share their weights along sigma: so each repeat is first averaged over sigma (its logs minus
    the reference's mean logs), and the error comes from the spread of these averages over repeats.
    """
    rows = []
    for curve in ours:
        spread = batches.spread(curve[0], *curve[2:])
        rows.append((*curve, *_shift(ours[curve], theirs[curve], spread.curve, spread.dof)))
    return _frame(rows, CURVE)


def ratio_shifts(ours: Wide, theirs: Wide, batches: Batches) -> pd.DataFrame:
    """Return one row per pair of curves of a layer with the shift of their ratio, by repeats of one side.

    What all blocks of a network share cancels, so an error in one curve shows. Batches shift the two by amounts taken
    as independent (measured: 0 to 1.2 times the spread that this gives).
    """
    rows = []
    for over, curve in combinations(ours, 2):
        if curve[:2] == over[:2]:
            mine, other = ours[curve] - ours[over], theirs[curve] - theirs[over]
            first, second = (batches.spread(name[0], *name[2:]) for name in (curve, over))
            sd, dof = float(np.hypot(first.curve, second.curve)), min(first.dof, second.dof)
            rows.append((*curve, *over[2:], *_shift(mine, other, sd, dof)))
    return _frame(rows, RATIO)


def logs_by_curve(values: pd.DataFrame, used: pd.DataFrame) -> Wide:
    """Return for each curve the logs at the points `used`: one row per repeat, one column per sigma."""
    known = values.merge(used, on=[*CURVE, "sigma"])
    return {
        curve: here.pivot(index="repeat", columns="sigma", values="log")  # noqa: PD010 - one row a number
        for curve, here in known.groupby(CURVE, sort=False)
    }


def _frame(rows: list[tuple[Any, ...]], names: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*names, *SHIFT])
    return frame.astype({**dict.fromkeys(LAYER, int), **dict.fromkeys(SHIFT, float)})


def _shift(ours: pd.DataFrame, theirs: pd.DataFrame, batch_sd: float, batch_dof: int) -> tuple[float, ...]:
    """Return the columns SHIFT for two tables of logs, at the sigmas that both have with two repeats or more."""
    both = [name for name in ours.columns if name in theirs.columns]
    known = [name for name in both if ours[name].count() > 1 and theirs[name].count() > 1]
    if not known:
        return (np.nan,) * len(SHIFT)
    mine, other = ours[known].to_numpy(), theirs[known].to_numpy()
    weight, centre = weights(mine, other), np.nanmean(other, axis=0)
    samples = [sample(distance_from_centre(side, centre, weight)) for side in (mine, other)]
    total = difference_of_means(*samples, batch_sd=batch_sd, batch_dof=batch_dof)
    return tuple(float(column[0]) for column in (total.shift, total.error, total.dof, total.p, total.z))
