"""What an empirical claim is: its statement, its source, the evidence it takes, and how it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.arrays import StoredHessian, each_hessian
from hessfig.analysis.axis import with_settings
from hessfig.analysis.intervals import Interval
from hessfig.analysis.manifest import read_run
from hessfig.analysis.stored_spectra import Place, Spectrum, read_spectra
from hessfig.record import LEFT_OUT


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

    `beside` names further sweeps that the rule needs; `statement` and `rule_words` are the claim and the rule in words.
    """

    id: str
    source: str
    statement: str
    sweep: str
    figure: str
    rule: Callable[[Evidence], Finding]
    rule_words: str
    beside: tuple[str, ...] = ()

    @property
    def sweeps(self) -> tuple[str, ...]:
        """Every sweep it needs."""
        return (self.sweep, *self.beside)


def claim(
    name: str, source: str, sweep: str, *beside: str, figure: str = ""
) -> Callable[[Callable[[Evidence], Finding]], Claim]:
    """Make a rule the claim that it decides; the figure has the name of the sweep unless told.

    The rule's docstring begins with 'Claim: ' and the statement; its second paragraph is the rule in words.
    """

    def made(rule: Callable[[Evidence], Finding]) -> Claim:
        said, words = (" ".join(one.split()) for one in [*(rule.__doc__ or "").split("\n\n"), ""][:2])
        statement = said.removeprefix("Claim: ").removesuffix(".")
        return Claim(name, source, statement, sweep, figure or sweep, rule, words, beside)

    return made


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
    return _decided(verdicts, Verdict.does_not_hold, otherwise=Verdict.holds)


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a claim one part of which is enough."""
    return _decided(verdicts, Verdict.holds, otherwise=Verdict.does_not_hold)


def _decided(verdicts: Iterable[Verdict], by_one: Verdict, *, otherwise: Verdict) -> Verdict:
    """Return the verdict that one part decides, the other one if all parts have it, else undecided."""
    found = set(verdicts)
    if by_one in found:
        return by_one
    return otherwise if found == {otherwise} else Verdict.undecided


def by_condition(verdicts: Mapping[str, Verdict]) -> tuple[Verdict, str]:
    """Return the verdict of a claim that was tested under several conditions, and the words for those that differ."""
    holds = [name for name, verdict in verdicts.items() if verdict == Verdict.holds]
    if holds and len(holds) < len(verdicts):
        rest = [f"{name}: {verdict}" for name, verdict in verdicts.items() if name not in holds]
        return Verdict.holds_only_if, f"{' or '.join(holds)} ({', '.join(rest)})"
    return any_of(verdicts.values()), ""


@dataclass(frozen=True)
class Condition:
    """One condition under which a claim was tested: the effect there, the verdict, and the intervals it rests on."""

    effect: Interval
    verdict: Verdict
    contrasts: Mapping[str, Interval]


def each(contrasts: Mapping[str, Interval], judge: Callable[[Interval], Verdict]) -> dict[str, Condition]:
    """Return conditions that rest on one interval each, under its name."""
    return {name: Condition(one, judge(one), {name: one}) for name, one in contrasts.items()}


def concluded(conditions: Mapping[str, Condition], shown: str, note: str | None = None) -> Finding:
    """Return the finding of a claim that was tested under several conditions; its effect is that of the one `shown`.

    The words name the conditions under which it holds; where they do not differ, they are `note`, or `shown`.
    """
    verdict, words = by_condition({name: one.verdict for name, one in conditions.items()})
    contrasts = {name: one for condition in conditions.values() for name, one in condition.contrasts.items()}
    return found(conditions[shown].effect, verdict, words or (shown if note is None else note), contrasts)


def largest(effects: Mapping[str, Interval], size: Callable[[float], float] = float) -> str:
    """Return the name of the effect whose mean is largest by `size`; one without a mean comes last."""
    return max(effects, key=lambda name: np.nan_to_num(size(effects[name].mean), nan=-np.inf))


def first_that_holds(conditions: Mapping[str, Condition], otherwise: str = "") -> str:
    """Return the first condition under which a claim holds, else the one `otherwise`, or with the largest effect."""
    holding = (name for name, one in conditions.items() if one.verdict == Verdict.holds)
    return next(holding, otherwise) or largest({name: one.effect for name, one in conditions.items()})


def found(
    interval: Interval, verdict: Verdict, words: str = "", contrasts: Mapping[str, Interval] | None = None
) -> Finding:
    """Return a finding whose effect is `interval`."""
    return Finding(interval.mean, interval.low, interval.high, verdict, words, tuple((contrasts or {}).items()))


def missing(what: str) -> Finding:
    """Return the finding of a table that lacks the numbers a rule needs."""
    return Finding(math.nan, math.nan, math.nan, Verdict.undecided, f"the table has no {what}")


def diagonal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of diagonal blocks within a layer."""
    return rows[(rows["row"] == rows["col"]) & (rows["row_layer"] == rows["layer"])]


def in_logs(rows: pd.DataFrame, log: np.ufunc = np.log10) -> pd.DataFrame:
    """Return the rows whose value is positive, with its logarithm in its place."""
    positive = rows[rows["value"] > 0]
    return positive.assign(value=log(positive["value"]))


@dataclass(frozen=True)
class Evidence:
    """A sweep's checked table; its stored spectra and Hessians, read when a rule asks for them.

    `beside` holds the evidence of other sweeps that the claim needs.
    """

    table: pd.DataFrame
    spectra: Callable[[Callable[[Place], bool]], list[Spectrum]] = lambda wanted: []
    hessians: Callable[[], Iterable[StoredHessian]] = tuple
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
        return with_settings(rows, *settings)


def evidence_in(folder: Path) -> Evidence:
    """Return the evidence of a sweep's folder. Raises UserError as the reading of tables and arrays does."""
    return Evidence(read_run(folder).table, lambda wanted: read_spectra(folder, wanted), lambda: each_hessian(folder))
