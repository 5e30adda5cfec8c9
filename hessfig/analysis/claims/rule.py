"""What an empirical claim is: its statement, its source, the evidence it takes, and how it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.arrays import StoredHessian, each_hessian
from hessfig.analysis.axis import assignments
from hessfig.analysis.manifest import read_run
from hessfig.analysis.stored_spectra import Place, Spectrum, read_spectra
from hessfig.record import LEFT_OUT

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
    return mean, _deviate(count - 1, level) * samples.std(axis=0, ddof=1) / math.sqrt(count)


def _interval(mean: float, se: float, dof: float, count: int, level: float, tests: int) -> Interval:
    if not (math.isfinite(mean) and math.isfinite(se) and dof > 0):
        return Interval(mean, se, math.nan, math.nan, count)
    half = _deviate(dof, 1 - (1 - level) / tests) * se
    return Interval(mean, se, mean - half, mean + half, count)


def _deviate(dof: float, level: float) -> float:
    from scipy.special import stdtrit  # slow to import, and most figures need none

    return float(stdtrit(dof, (1 + level) / 2))


class Verdict(StrEnum):
    """What the numbers say of a claim; `holds_only_if` names its condition."""

    holds = "holds"
    holds_only_if = "holds only if"
    does_not_hold = "does not hold"
    undecided = "undecided"


@dataclass(frozen=True)
class Finding:
    """An effect with its 95 % interval over seeds, the verdict, the words beside it, and the contrasts behind it."""

    effect: float
    low: float
    high: float
    verdict: Verdict
    words: str = ""
    contrasts: tuple[tuple[str, Interval], ...] = ()


@dataclass(frozen=True)
class Claim:
    """An empirical claim: who says what, the sweep that decides it, the figure that shows it, and its rule.

    `beside` names further sweeps that the rule needs. The first paragraph of the rule's docstring is the rule in words.
    """

    id: str
    source: str
    statement: str
    sweep: str
    figure: str
    rule: Callable[[Evidence], Finding]
    beside: tuple[str, ...] = ()

    @property
    def sweeps(self) -> tuple[str, ...]:
        """Every sweep it needs."""
        return (self.sweep, *self.beside)

    @property
    def rule_words(self) -> str:
        """The rule in words."""
        return " ".join((self.rule.__doc__ or "").split("\n\n")[0].split())


def exceeds(interval: Interval, least: float) -> Verdict:
    """Judge whether an effect is positive and at least `least`: below that it would not matter.

    It holds when the whole interval is above 0 and its mean reaches `least`; it does not when the whole interval is
    below `least`; else it is undecided, as it is without an interval.
    """
    if not math.isfinite(interval.low):
        return Verdict.undecided
    if interval.low > 0 and interval.mean >= least:
        return Verdict.holds
    return Verdict.does_not_hold if interval.high < least else Verdict.undecided


def departs(interval: Interval, least: float) -> Verdict:
    """Judge whether an effect of either sign is there: as `exceeds`, for its size."""
    if not math.isfinite(interval.low):
        return Verdict.undecided
    if (interval.low > 0 or interval.high < 0) and abs(interval.mean) >= least:
        return Verdict.holds
    inside = -least < interval.low and interval.high < least
    return Verdict.does_not_hold if inside else Verdict.undecided


def alike(interval: Interval, least: float) -> Verdict:
    """Judge whether an effect is too small to matter: the other way round than `departs`."""
    opposite = {Verdict.holds: Verdict.does_not_hold, Verdict.does_not_hold: Verdict.holds}
    found = departs(interval, least)
    return opposite.get(found, found)


def stays_below(interval: Interval, most: float) -> Verdict:
    """Judge whether an effect lies below `most`, on which side the whole interval must be."""
    if interval.high < most:
        return Verdict.holds
    return Verdict.does_not_hold if interval.low > most else Verdict.undecided


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a claim whose every part must hold."""
    found = list(verdicts)
    if Verdict.does_not_hold in found:
        return Verdict.does_not_hold
    return Verdict.holds if found and set(found) == {Verdict.holds} else Verdict.undecided


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a claim one part of which is enough."""
    found = list(verdicts)
    if Verdict.holds in found:
        return Verdict.holds
    return Verdict.does_not_hold if found and set(found) == {Verdict.does_not_hold} else Verdict.undecided


def by_condition(verdicts: Mapping[str, Verdict]) -> tuple[Verdict, str]:
    """Return the verdict of a claim that was tested under several conditions, and the words for those that differ."""
    holds = [name for name, verdict in verdicts.items() if verdict == Verdict.holds]
    if holds and len(holds) < len(verdicts):
        rest = [f"{name}: {verdict}" for name, verdict in verdicts.items() if name not in holds]
        return Verdict.holds_only_if, f"{' or '.join(holds)} ({', '.join(rest)})"
    return any_of(verdicts.values()), ""


def found(
    interval: Interval, verdict: Verdict, words: str = "", contrasts: Mapping[str, Interval] | None = None
) -> Finding:
    """Return a finding whose effect is `interval`."""
    behind = tuple((contrasts or {}).items())
    return Finding(interval.mean, interval.low, interval.high, verdict, words, behind)


def missing(what: str) -> Finding:
    """Return the finding of a table that lacks the numbers a rule needs."""
    return Finding(math.nan, math.nan, math.nan, Verdict.undecided, f"the table has no {what}")


Spectra = Callable[[Callable[[Place], bool]], list[Spectrum]]
Hessians = Callable[[], Iterable[StoredHessian]]


def no_spectra(wanted: Callable[[Place], bool]) -> list[Spectrum]:
    """Have no stored spectra."""
    del wanted
    return []


def no_hessians() -> Iterable[StoredHessian]:
    """Have no stored Hessians."""
    return ()


@dataclass(frozen=True)
class Evidence:
    """A sweep's checked table; its stored spectra and Hessians, read when a rule asks for them.

    `beside` holds the evidence of other sweeps that the claim needs.
    """

    table: pd.DataFrame
    spectra: Spectra = no_spectra
    hessians: Hessians = no_hessians
    beside: Mapping[str, Evidence] = field(default_factory=dict)

    def other(self, sweep: str) -> Evidence:
        """Return the evidence of another sweep; an empty table where there is none."""
        return self.beside.get(sweep, Evidence(self.table.iloc[:0]))

    def steps(self) -> list[float]:
        """Return the steps of the training that were measured, rising; none where there is no training."""
        return sorted(self.table["step"].dropna().unique())

    def of_step(self, step: float) -> Evidence:
        """Return what was measured at one step, spectra and Hessians too."""
        return replace(
            self,
            table=self.table[self.table["step"] == step],
            spectra=lambda wanted: self.spectra(lambda place: place.step == step and wanted(place)),
            hessians=lambda: (one for one in self.hessians() if one.step == step),
        )

    def at_step(self, number: int) -> Evidence:
        """Return what was measured at the first (0) or last (-1) step; everything where there are no steps."""
        steps = self.steps()
        return self.of_step(steps[number]) if steps else self

    def numbers(self, quantity: str, *settings: str, **columns: object) -> pd.DataFrame:
        """Return the rows of a quantity that count and have these values in their columns.

        Each of `settings` (dotted keys that the sweep varies) becomes a column of texts; "" where a variant has none.
        """
        table = self.table[~self.table["status"].isin(LEFT_OUT) & (self.table["quantity"] == quantity)]
        chosen = [table[name] == value for name, value in columns.items()]
        rows = table[np.logical_and.reduce(chosen)] if chosen else table
        varied = [assignments(variant) for variant in rows["variant"]]
        return rows.assign(**{key: [one.get(key, "") for one in varied] for key in settings})


def evidence_in(folder: Path) -> Evidence:
    """Return the evidence of a sweep's folder. Raises UserError as the reading of tables and arrays does."""
    return Evidence(read_run(folder).table, lambda wanted: read_spectra(folder, wanted), lambda: each_hessian(folder))
