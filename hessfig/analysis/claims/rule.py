"""What an empirical claim is, what its rule finds, and how intervals become verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hessfig.analysis.claims.evidence import Evidence
from hessfig.analysis.interval import Interval


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
