"""Verdicts: how the intervals behind a claim become one, alone, together, and under several conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np

from hessfig.analysis.intervals import Interval, student_interval


class ClaimVerdict(StrEnum):
    """What the numbers say of a claim; `holds_only_if` names its condition.

    `small`: the effect is there, on the claim's side, and below the least size. Its counterparts: `within`, the number
    lies within the tolerance of its target, which its interval excludes; `less`, it lies on the claim's side of "no
    effect", by less than the factor asked. `not_tested`: the networks are not those of which the source speaks, or the
    sweep is not there. `theorem`: a statement of `hessfig verify` implies it.
    """

    holds = "holds"
    holds_only_if = "holds only if"
    within = "holds within the tolerance"
    less = "holds, less than the factor asked"
    small = "true but small"
    does_not_hold = "does not hold"
    undecided = "undecided"
    not_tested = "not tested here"
    theorem = "follows from a theorem"


# What a part of a claim may be without refuting it, strongest first.
PASSING = (ClaimVerdict.holds, ClaimVerdict.within, ClaimVerdict.less, ClaimVerdict.small)
Judge = Callable[[Interval], ClaimVerdict]


def exceeds(interval: Interval, least: float) -> ClaimVerdict:
    """Judge whether an effect is positive and at least `least`: below that it would not matter.

    It holds when the whole interval is above 0 and its mean reaches `least`; it is small when the whole interval lies
    between the two, and it does not hold when the interval is below `least` otherwise; else it is undecided, as it is
    without an interval.
    """
    if not math.isfinite(interval.low):
        return ClaimVerdict.undecided
    if interval.low > 0 and interval.mean >= least:
        return ClaimVerdict.holds
    if interval.high >= least:
        return ClaimVerdict.undecided
    return ClaimVerdict.small if interval.low > 0 else ClaimVerdict.does_not_hold


def departs(interval: Interval, least: float) -> ClaimVerdict:
    """Judge whether an effect of either sign is there: as `exceeds`, for its size."""
    if not math.isfinite(interval.low):
        return ClaimVerdict.undecided
    excludes = interval.low > 0 or interval.high < 0
    if excludes and abs(interval.mean) >= least:
        return ClaimVerdict.holds
    if not (-least < interval.low and interval.high < least):
        return ClaimVerdict.undecided
    return ClaimVerdict.small if excludes else ClaimVerdict.does_not_hold


def equals(interval: Interval, target: float, within: float) -> ClaimVerdict:
    """Judge whether an effect is `target`, up to `within`: the whole interval there holds.

    It holds within the tolerance where such an interval excludes the target itself. It does not hold when the interval
    excludes the target and the mean is at least `within` off.
    """
    if not math.isfinite(interval.low):
        return ClaimVerdict.undecided
    includes = interval.low <= target <= interval.high
    if target - within < interval.low and interval.high < target + within:
        return ClaimVerdict.holds if includes else ClaimVerdict.within
    off = not includes and abs(interval.mean - target) >= within
    return ClaimVerdict.does_not_hold if off else ClaimVerdict.undecided


def stays_below(interval: Interval, most: float, nothing: float = math.nan) -> ClaimVerdict:
    """Judge whether an effect lies below `most`, on which side the whole interval must be.

    `nothing` is the value of no effect, where it is another than `most` (1 for a ratio that is to be below 1/2): an
    interval between the two is on the claim's side, by less than the factor asked for.
    """
    if interval.high < most:
        return ClaimVerdict.holds
    if not interval.low > most:
        return ClaimVerdict.undecided
    if not math.isnan(nothing) and interval.low < nothing:
        return ClaimVerdict.less if interval.high < nothing else ClaimVerdict.undecided
    return ClaimVerdict.does_not_hold


def at_least(least: float) -> Judge:
    """Return `exceeds` for this least size."""
    return partial(exceeds, least=least)


def near(target: float, within: float) -> Judge:
    """Return `equals` for this target and how far from it counts as equal."""
    return partial(equals, target=target, within=within)


@dataclass(frozen=True)
class Effect:
    """A number that a claim rests on: a value per seed, how its interval is found, and how that is judged."""

    sample: Iterable[float]
    judge: Judge
    kind: Callable[..., Interval] = student_interval

    def interval(self, tests: int = 1) -> Interval:
        """Return its interval; of `tests` such intervals all hold together at 95 % (Bonferroni)."""
        return self.kind(self.sample, tests=tests)

    def verdict(self, tests: int = 1) -> ClaimVerdict:
        """Return its verdict by that interval."""
        return self.judge(self.interval(tests))


Effects = Mapping[str, Effect]


def lacking(effects: Effects) -> list[str]:
    """Return the names of the effects without a single number."""
    return [name for name, one in effects.items() if not one.interval().count]


def all_of(effects: Effects, tests: int = 1) -> ClaimVerdict:
    """Return the verdict of a claim whose every part must hold.

    To hold it needs no correction (intersection-union: each part has to pass by itself). Any one part may refute it,
    so that a refutation is judged by the intervals of all parts together.
    """
    alone = {one.verdict(tests) for one in effects.values()}
    if alone and alone <= set(PASSING):
        return max(alone, key=PASSING.index)
    together = {one.verdict(tests * len(effects)) for one in effects.values()}
    return ClaimVerdict.does_not_hold if ClaimVerdict.does_not_hold in together else ClaimVerdict.undecided


def any_of(effects: Effects, tests: int = 1) -> ClaimVerdict:
    """Return the verdict of a claim one part of which is enough: the other way round than `all_of`."""
    together = {one.verdict(tests * len(effects)) for one in effects.values()}
    passed = [verdict for verdict in PASSING[:-1] if verdict in together]
    if passed:
        return passed[0]
    alone = {one.verdict(tests) for one in effects.values()}
    if alone == {ClaimVerdict.does_not_hold}:
        return ClaimVerdict.does_not_hold
    return (
        ClaimVerdict.small
        if together <= {ClaimVerdict.small, ClaimVerdict.does_not_hold} and together
        else ClaimVerdict.undecided
    )


@dataclass(frozen=True)
class Condition:
    """One condition under which a claim was tested: the effect there, the verdict, and the intervals it rests on.

    `is_lacking`: a part of it has no number.
    """

    effect: Interval
    verdict: ClaimVerdict
    contrasts: Mapping[str, Interval]
    is_lacking: bool = False


@dataclass(frozen=True)
class Finding:
    """An effect with its 95 % interval over seeds, the verdict, the words next to it, and the contrasts behind it.

    `is_lacking`: the table has not the numbers that the rule needs.
    """

    effect: float
    low: float
    high: float
    verdict: ClaimVerdict
    words: str = ""
    contrasts: tuple[tuple[str, Interval], ...] = ()
    is_lacking: bool = False

    def saying(self, *words: str) -> Finding:
        """Return the finding with more words behind its own."""
        return replace(self, words="; ".join(filter(None, [self.words, *words])))


def found(
    interval: Interval, verdict: ClaimVerdict, words: str = "", contrasts: Mapping[str, Interval] | None = None
) -> Finding:
    """Return a finding whose effect is `interval`."""
    return Finding(interval.mean, interval.low, interval.high, verdict, words, tuple((contrasts or {}).items()))


def single(effect: Effect, words: str = "", contrasts: Mapping[str, Interval] | None = None) -> Finding:
    """Return the finding of a claim that rests on one effect."""
    return found(effect.interval(), effect.verdict(), words, contrasts)


def together(effects: Effects, shown: str = "", words: str = "") -> Finding:
    """Return the finding of a claim whose every part must hold; its effect is the one `shown`, else the first.

    Where there are several parts the words give the verdict of each, by its own interval; a part without a number is
    missing, and leaves the claim undecided unless another part refutes it.
    """
    name, absent = shown or next(iter(effects)), lacking(effects)
    parts = {part: one.verdict() for part, one in effects.items()}
    said = listed(parts, absent) if len(effects) > 1 else ""
    contrasts = {key: one.interval() for key, one in effects.items()}
    finding = found(effects[name].interval(), all_of(effects), said, contrasts)
    return replace(finding.saying(words), is_lacking=bool(absent))


def missing(what: str) -> Finding:
    """Return the finding of a table that lacks the numbers a rule needs."""
    nan = math.nan
    return Finding(nan, nan, nan, ClaimVerdict.undecided, f"the table has no {what}", is_lacking=True)


def by_conditions(
    of: Mapping[str, Effects],
    effects: Mapping[str, Effect] | None = None,
    shown: str | Callable[[Mapping[str, Condition]], str] = "",
) -> Finding:
    """Return the finding of a claim that was tested under several conditions, in each of which all parts must hold.

    A claim of the form 'under some condition' is corrected for their number. The effect is that of `effects` (else of
    the first part) under the condition `shown`: by default the first that holds, else where the effect is largest. The
    words list every condition with its verdict, and say of which the effect is. A condition of which a part has no
    number is missing: it is listed as such, and neither 'holds' nor 'does not hold' is said of all.
    """
    tests, empty = len(of), Effect((), at_least(0.0))
    conditions = {
        name: Condition(
            (effects.get(name, empty) if effects else next(iter(parts.values()), empty)).interval(tests),
            all_of(parts, tests),
            {f"{name}: {part}" if part else name: one.interval(tests) for part, one in parts.items()},
            is_lacking=not parts or bool(lacking(parts)),
        )
        for name, parts in of.items()
    }
    absent = [name for name, one in conditions.items() if one.is_lacking]
    verdict, words = by_condition({name: one.verdict for name, one in conditions.items()}, absent)
    contrasts = {name: one for condition in conditions.values() for name, one in condition.contrasts.items()}
    chosen = shown or first_that_holds
    place = chosen if isinstance(chosen, str) else chosen(conditions)
    where = f"the effect is that of {place}" if tests > 1 else ""
    finding = found(conditions[place].effect, verdict, words or place, contrasts).saying(where)
    return replace(finding, is_lacking=bool(absent))


def alike(samples: Mapping[str, Iterable[float]], judge: Judge) -> dict[str, Effect]:
    """Return effects that are all judged in one way, by their names."""
    return {name: Effect(sample, judge) for name, sample in samples.items()}


def each(
    samples: Mapping[str, Iterable[float]], judge: Judge, kind: Callable[..., Interval] = student_interval
) -> dict:
    """Return conditions that rest on one effect each, as `by_conditions` takes them."""
    return {name: {"": Effect(sample, judge, kind)} for name, sample in samples.items()}


def by_condition(verdicts: Mapping[str, ClaimVerdict], absent: Collection[str] = ()) -> tuple[ClaimVerdict, str]:
    """Return the verdict of a claim that was tested under several conditions, and the words that list them all.

    Conditions that are `absent` have no numbers; of one condition alone there is nothing to list.
    """
    given = {name: ClaimVerdict.undecided if name in absent else one for name, one in verdicts.items()}
    for wanted in (PASSING[:2], PASSING[2:3], PASSING[3:]):
        there = [name for name, one in given.items() if one in wanted]
        rest = {name: one for name, one in given.items() if one not in wanted}
        if there and rest:
            best = ClaimVerdict.holds_only_if if wanted == PASSING[:2] else wanted[0]
            return best, f"{' or '.join(there)} ({listed(rest, absent)})"
        if there:
            return max((given[name] for name in there), key=PASSING.index), _if_several(given, absent)
    refuted = set(given.values()) == {ClaimVerdict.does_not_hold}
    return (ClaimVerdict.does_not_hold if refuted else ClaimVerdict.undecided), _if_several(given, absent)


def listed(verdicts: Mapping[str, ClaimVerdict], absent: Collection[str] = ()) -> str:
    """Return conditions or parts with their verdicts in words, those of the same verdict together."""
    said = {name: "missing" if name in absent else one.value for name, one in verdicts.items()}
    alike = {word: [name for name, one in said.items() if one == word] for word in dict.fromkeys(said.values())}
    return "; ".join(f"{', '.join(names)}: {word}" for word, names in alike.items())


def _if_several(verdicts: Mapping[str, ClaimVerdict], absent: Collection[str]) -> str:
    return listed(verdicts, absent) if len(verdicts) > 1 or absent else ""


def first_that_holds(conditions: Mapping[str, Condition]) -> str:
    """Return the first condition under which a claim holds, else the one with the largest effect."""
    holding = (name for name, one in conditions.items() if one.verdict in PASSING[:2])
    return next(holding, "") or largest({name: one.effect for name, one in conditions.items()})


def largest(effects: Mapping[str, Effect | Interval], size: Callable[[float], float] = float) -> str:
    """Return the name of the effect whose mean is largest by `size`; one without a mean comes last."""
    means = {name: (one if isinstance(one, Interval) else one.interval()).mean for name, one in effects.items()}
    return max(means, key=lambda name: np.nan_to_num(size(means[name]), nan=-np.inf))
