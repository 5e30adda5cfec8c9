"""Verdicts: how the intervals behind a claim become one, alone, together, under several conditions and in parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType

import numpy as np

from hessfig.analysis.intervals import Interval, student_interval


class ClaimVerdict(StrEnum):
    """What the numbers say of a claim; `holds_only_if` names its condition.

    `small`: the effect is there, on the claim's side, and below the least size. `within`: the number lies within the
    tolerance of its target, which its interval excludes. `theorem`: a statement of `hessfig verify` implies it.
    """

    holds = "holds"
    holds_only_if = "holds only if"
    within = "holds within the tolerance"
    small = "true but small"
    does_not_hold = "does not hold"
    undecided = "undecided"
    theorem = "follows from a theorem"


# What a part of a claim may be without refuting it, strongest first; the first three pass in full.
FULL = (ClaimVerdict.theorem, ClaimVerdict.holds, ClaimVerdict.within)
PASSING = (*FULL, ClaimVerdict.holds_only_if, ClaimVerdict.small)
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


def stays_below(interval: Interval, most: float) -> ClaimVerdict:
    """Judge whether an effect lies below `most`, on which side the whole interval must be."""
    if interval.high < most:
        return ClaimVerdict.holds
    return ClaimVerdict.does_not_hold if interval.low > most else ClaimVerdict.undecided


def at_least(least: float) -> Judge:
    """Return `exceeds` for this least size."""
    return partial(exceeds, least=least)


def near(target: float, within: float) -> Judge:
    """Return `equals` for this target and how far from it counts as equal."""
    return partial(equals, target=target, within=within)


@dataclass(frozen=True)
class Effect:
    """A number that a claim rests on: a value per seed, and how its interval is judged."""

    sample: Iterable[float]
    judge: Judge

    def interval(self, tests: int = 1) -> Interval:
        """Return its interval; of `tests` such intervals all hold together at 95 % (Bonferroni)."""
        return student_interval(self.sample, tests=tests)

    def verdict(self, tests: int = 1) -> ClaimVerdict:
        """Return its verdict by that interval."""
        return self.judge(self.interval(tests))

    def row(self, name: str, tests: int = 1, level: int = 0) -> SubRow:
        """Return its line of a sub-table."""
        interval = self.interval(tests)
        return SubRow(name, interval, self.judge(interval), is_lacking=not interval.count, level=level)


Effects = Mapping[str, Effect]


def all_of(effects: Effects, tests: int = 1) -> ClaimVerdict:
    """Return the verdict of a claim whose every part must hold.

    To hold it needs no correction (intersection-union: each part has to pass by itself). Any one part may refute it,
    so that a refutation is judged by the intervals of all parts together.
    """
    alone = {effect.verdict(tests) for effect in effects.values()}
    if alone and alone <= set(PASSING):
        return max(alone, key=PASSING.index)
    joint = {effect.verdict(tests * len(effects)) for effect in effects.values()}
    return ClaimVerdict.does_not_hold if ClaimVerdict.does_not_hold in joint else ClaimVerdict.undecided


@dataclass(frozen=True)
class SubRow:
    """A line of a claim's sub-table: a part or a condition with its interval, its verdict and a note.

    `is_lacking`: the table has no number for it. `level` is 0 for parts and conditions, and higher for what those
    consist of.
    """

    name: str
    interval: Interval
    verdict: ClaimVerdict
    note: str = ""
    is_lacking: bool = False
    level: int = 0

    @property
    def counted(self) -> ClaimVerdict:
        """The verdict that counts: without a number it is undecided."""
        return ClaimVerdict.undecided if self.is_lacking else self.verdict

    @property
    def word(self) -> str:
        """The verdict in words."""
        return "missing" if self.is_lacking else self.verdict.value


@dataclass(frozen=True)
class Finding:
    """An effect with its 95 % interval over seeds, the verdict, the words next to it, and the claim's sub-table.

    `is_lacking`: the table has not the numbers that the rule needs.
    """

    interval: Interval
    verdict: ClaimVerdict
    words: str = ""
    rows: tuple[SubRow, ...] = ()
    is_lacking: bool = False

    @property
    def effect(self) -> float:
        """The mean of the effect over seeds."""
        return self.interval.mean

    @property
    def low(self) -> float:
        """The lower end of its interval."""
        return self.interval.low

    @property
    def high(self) -> float:
        """The upper end of its interval."""
        return self.interval.high

    def saying(self, *words: str) -> Finding:
        """Return the finding with more words behind its own."""
        return replace(self, words="; ".join(filter(None, [self.words, *words])))


def single(effect: Effect, words: str = "") -> Finding:
    """Return the finding of a claim that rests on one effect."""
    return Finding(effect.interval(), effect.verdict(), words)


def together(effects: Effects, words: str = "") -> Finding:
    """Return the finding of a claim whose every part must hold; its effect is the first.

    The sub-table gives the verdict of each part by its own interval. A part without a number is missing, and leaves
    the claim undecided unless another part refutes it.
    """
    rows = tuple(effect.row(name) for name, effect in effects.items())
    is_lacking = any(row.is_lacking for row in rows)
    return Finding(rows[0].interval, all_of(effects), words, rows if len(rows) > 1 else (), is_lacking)


def missing(what: str) -> Finding:
    """Return the finding of a table that lacks the numbers a rule needs."""
    nan = math.nan
    nothing = Interval(nan, nan, nan, nan, 0)
    return Finding(nothing, ClaimVerdict.undecided, f"the table has no {what}", is_lacking=True)


def by_conditions(
    of: Mapping[str, Effects],
    effects: Mapping[str, Effect] | None = None,
    shown: str | Callable[[Mapping[str, SubRow]], str] = "",
    notes: Mapping[str, str] = MappingProxyType({}),
) -> Finding:
    """Return the finding of a claim that was tested under several conditions, in each of which all parts must hold.

    A claim of the form 'under some condition' is corrected for their number. The effect is that of `effects` (else of
    the first part) under the condition `shown`: by default the first that holds, else where the effect is largest. The
    sub-table has a line for every condition, with its `notes`. A condition of which a part has no number is missing,
    and neither 'holds' nor 'does not hold' is said of all.
    """
    table = [
        row
        for name, parts in of.items()
        for row in _condition(name, parts, (effects or {}).get(name), len(of), notes.get(name, ""))
    ]
    rows = {row.name: row for row in table if not row.level}
    verdict, names = by_condition({name: row.counted for name, row in rows.items()})
    place = shown(rows) if callable(shown) else shown or first_that_holds(rows)
    where = place if len(of) == 1 else _effect_of(place, names)
    is_lacking = any(row.is_lacking for row in rows.values())
    shown_table = tuple(table) if len(table) > 1 else ()
    return Finding(rows[place].interval, verdict, " or ".join(names), shown_table, is_lacking).saying(where)


def _condition(name: str, parts: Effects, effect: Effect | None, tests: int, note: str) -> list[SubRow]:
    """Return the line of a condition, and below it those of its parts where they have names."""
    shown = effect or next(iter(parts.values()), Effect((), at_least(0.0)))
    is_lacking = not parts or any(not part.interval().count for part in parts.values())
    below = [part.row(f"{name}: {words}", tests, 1) for words, part in parts.items() if words]
    return [SubRow(name, shown.interval(tests), all_of(parts, tests), note, is_lacking), *below]


def in_parts(parts: Mapping[str, Finding]) -> Finding:
    """Return the finding of a claim that makes several statements, each with a finding of its own.

    It holds when all of them do, and 'only if' names those that do. The effect is that of the first part.
    """
    rows: list[SubRow] = []
    for name, finding in parts.items():
        rows.append(SubRow(name, finding.interval, finding.verdict, finding.words, finding.is_lacking))
        rows += [replace(row, name=f"{name}: {row.name}", level=row.level + 1) for row in finding.rows]
    return _of_rows(rows)


def _of_rows(rows: Sequence[SubRow]) -> Finding:
    """Return the finding of a claim whose statements are these lines of its sub-table."""
    statements = [row for row in rows if not row.level]
    verdict, names = by_condition({row.name: row.counted for row in statements})
    lacking = [row.note for row in statements if row.is_lacking]
    words = lacking[0] if lacking else "; ".join(filter(None, [" and ".join(names), _effect_of(rows[0].name, names)]))
    return Finding(rows[0].interval, verdict, words, tuple(rows), is_lacking=bool(lacking))


def _effect_of(place: str, names: Sequence[str]) -> str:
    """Return in words whose effect is shown, unless the names show it."""
    return "" if names == [place] else f"the effect is that of {place}"


def by_theorem(finding: Finding, theorems: str) -> Finding:
    """Return the finding of what a theorem implies: it holds unless the numbers contradict it, and these are reported.

    `theorems` are statements of `hessfig verify`, in words; "" for none.
    """
    if not theorems or finding.verdict not in _AGREES:
        return finding
    return replace(finding, verdict=ClaimVerdict.theorem, words=_measured(theorems, finding.verdict, finding.words))


def parts_by_theorem(finding: Finding, theorems: Mapping[str, str]) -> Finding:
    """Return the finding of a claim some parts of which theorems imply, as `by_theorem` does for a whole claim."""
    implied = {
        row.name: _measured(theorems[row.name], row.verdict, row.note)
        for row in finding.rows
        if row.name in theorems and row.verdict in _AGREES and not row.is_lacking
    }
    if not implied:
        return finding
    return _of_rows(
        [
            replace(row, verdict=ClaimVerdict.theorem, note=implied[row.name]) if row.name in implied else row
            for row in finding.rows
        ]
    )


_AGREES = (ClaimVerdict.holds, ClaimVerdict.holds_only_if, ClaimVerdict.within, ClaimVerdict.undecided)


def _measured(theorems: str, verdict: ClaimVerdict, words: str) -> str:
    return f"{theorems}; measured: {verdict}" + f" ({words})" * bool(words)


def effects_by_name(samples: Mapping[str, Iterable[float]], judge: Judge) -> dict[str, Effect]:
    """Return effects by name that all have the same judge."""
    return {name: Effect(sample, judge) for name, sample in samples.items()}


def each(samples: Mapping[str, Iterable[float]], judge: Judge) -> dict[str, Effects]:
    """Return conditions with one effect each, as `by_conditions` takes them."""
    return {name: {"": Effect(sample, judge)} for name, sample in samples.items()}


def by_condition(verdicts: Mapping[str, ClaimVerdict]) -> tuple[ClaimVerdict, list[str]]:
    """Return the verdict of a claim that was tested under several conditions, and those under which alone it holds."""
    for level, best in ((PASSING[:-1], ClaimVerdict.holds_only_if), (PASSING[-1:], ClaimVerdict.small)):
        passed = [name for name, verdict in verdicts.items() if verdict in level]
        if passed and len(passed) < len(verdicts):
            return best, passed
        if passed:
            return max(verdicts.values(), key=PASSING.index), []
    refuted = set(verdicts.values()) == {ClaimVerdict.does_not_hold}
    return (ClaimVerdict.does_not_hold if refuted else ClaimVerdict.undecided), []


def first_that_holds(rows: Mapping[str, SubRow]) -> str:
    """Return the first condition under which a claim holds, else the one with the largest effect."""
    return next((name for name, row in rows.items() if row.verdict in FULL), "") or largest(rows)


def largest(rows: Mapping[str, SubRow], size: Callable[[float], float] = float) -> str:
    """Return the condition whose mean effect is largest by `size`; one without a mean comes last."""
    return max(rows, key=lambda name: np.nan_to_num(size(rows[name].interval.mean), nan=-np.inf))
