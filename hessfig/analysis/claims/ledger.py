"""All claims judged: catalogue, verdicts, and how they are printed and written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hessfig.analysis import presented
from hessfig.analysis.claims import (
    along_rules,
    component_rules,
    growth_rules,
    ratio_rules,
    sample_rules,
    share_rules,
    spectrum_rules,
    sublayer_rules,
    training_rules,
)
from hessfig.analysis.claims.judges import PASSING, ClaimVerdict, Finding
from hessfig.analysis.claims.rule import Claim, Evidence, evidence_in
from hessfig.errors import UserError, run_command, unknown_name
from hessfig.files import is_file
from hessfig.record import TABLE
from hessfig.register import publish

if TYPE_CHECKING:
    from rich.table import Table


_FAMILIES = (
    *(growth_rules, share_rules, component_rules, ratio_rules, spectrum_rules, sublayer_rules),
    *(training_rules, sample_rules, along_rules),
)


def claims() -> dict[str, Claim]:
    """Return every claim by its id: those that the modules of rules define, in the order in which they do."""
    return {one.id: one for family in _FAMILIES for one in vars(family).values() if isinstance(one, Claim)}


def claim_of(name: str) -> Claim:
    """Return the claim of this id. Raises UserError when there is none."""
    known = claims()
    if name not in known:
        raise unknown_name("claim: there is no such claim", name, known, f"for example claim={next(iter(known))}")
    return known[name]


NOT_RUN = "not run"
Departures = Callable[[Path, str], list[str]]


@dataclass(frozen=True)
class Judged:
    """A claim with its finding, or with the commands that make the tables it lacks.

    `departures` are the settings, and numbers of seeds, in which its tables differ from the shipped sweeps.
    """

    claim: Claim
    finding: Finding | None = None
    commands: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The verdict in words; without a table a theorem still follows, and of other networks nothing is tested."""
        if self.finding:
            return self.finding.verdict.value
        if self.claim.follows:
            return ClaimVerdict.theorem.value
        return ClaimVerdict.not_tested.value if self.claim.others else NOT_RUN

    @property
    def words(self) -> str:
        """What is printed next to the verdict."""
        notes = [f"measured with {', '.join(self.departures)}"] if self.departures else []
        if self.finding is None:
            notes = [self.claim.follows, self.claim.others]
        said = [self.finding.words] if self.finding else []
        return "; ".join(filter(None, [*said, *notes, " && ".join(self.commands)]))


def judge(claims: Iterable[Claim], outputs: Path, departures: Departures) -> list[Judged]:
    """Return every claim judged from outputs/<sweep>/; each table is read once, and nothing is written.

    `departures(folder, sweep)` says in which settings a table is not the shipped sweep's. Raises UserError when
    `outputs` is no folder, and as the reading of tables and arrays does for one that is damaged.
    """
    _check(outputs)
    read = cache(lambda sweep: evidence_in(outputs / sweep))
    return [_judged(claim, outputs, read, departures) for claim in claims]


def counts(judged: Iterable[Judged]) -> Mapping[str, int]:
    """Return how many claims have each verdict, those that occur."""
    found = [one.verdict for one in judged]
    return {
        word: found.count(word) for word in (*(verdict.value for verdict in ClaimVerdict), NOT_RUN) if word in found
    }


def _check(outputs: Path) -> None:
    if not outputs.is_dir():
        raise UserError(
            "output_dir: there is no such folder, hence no table to judge by",
            got=f"output_dir={outputs}",
            allowed="the folder in which `hessfig run` wrote its tables",
            remedy=f"run a sweep first, for example {run_command(outputs / 'sigma')}",
        )


def _judged(claim: Claim, outputs: Path, read: Callable[[str], Evidence], departures: Departures) -> Judged:
    lacking = [sweep for sweep in claim.sweeps if not is_file(outputs / sweep / TABLE)]
    if lacking:
        return Judged(claim, commands=tuple(run_command(outputs / sweep) for sweep in lacking))
    beside = {sweep: read(sweep) for sweep in claim.beside}
    other = [f"{sweep}: {one}" for sweep in claim.sweeps for one in departures(outputs / sweep, sweep)]
    evidence = replace(read(claim.sweep), beside=beside)
    finding = claim.judged(evidence)
    again = (run_command(outputs / claim.sweep),) if finding.is_lacking else ()
    return Judged(claim, finding, again, (*other, *claim.other_seeds(evidence)))


CSV, PAGE = "claims.csv", "claims.md"
INTERVAL = "interval (95 % jointly)"  # of all conditions of a claim together
COLUMNS = [
    *["id", "source", "statement", "sweeps", "figure", "rule", "effect", "low", "high", "verdict", "words"],
    *["scale_source", "scale_here", "run", "departures", "quoted", "seeds"],
]


def write(judged: Sequence[Judged], outputs: Path) -> list[Path]:
    """Write outputs/claims.csv and outputs/claims.md, both or none; return their paths."""
    return publish({outputs / CSV: as_csv(judged), outputs / PAGE: as_markdown(judged)}, "ledger of claims")


def as_csv(judged: Iterable[Judged]) -> str:
    """Return one line per claim in COLUMNS; effect and interval are empty where there is none."""
    return presented.as_csv(pd.DataFrame([_row(one) for one in judged], columns=COLUMNS))


def as_markdown(judged: Sequence[Judged]) -> str:
    """Return the page: a table of verdicts, then a section for each claim."""
    lines = ["# Empirical claims of the literature, judged from the tables here", "", summary(judged), ""]
    heads = ("claim", "scale in the source", "scale here", "effect", INTERVAL, "verdict")
    links = [f"[{one.claim.id}](#{one.claim.id})" for one in judged]
    told = [(*_scales(one), effect(one), interval(one), one.verdict) for one in judged]
    lines += presented.markdown_table(heads, ((link, *row) for link, row in zip(links, told, strict=True)))
    return "\n".join([*lines, "", *(line for one in judged for line in _section(one))])


def explanation(one: Judged) -> list[tuple[str, str]]:
    """Return what there is to say of one claim, as pairs of a word and a text."""
    claim = one.claim
    said = [("claim", claim.statement), ("source", claim.source), ("the source's words", quoted(claim))]
    said += [("sweeps", ", ".join(claim.sweeps)), ("seeds", seeds_in_words(claim)), ("looks", claim.looks)]
    said += [("scale in the source", claim.there), ("scale here", claim.here), ("rule", claim.rule_words)]
    if one.finding:
        said += [("effect", f"{effect(one)}, {INTERVAL} {interval(one) or 'none'}")]
    said += [("verdict", one.verdict), *([("note" if one.finding else "run", one.words)] if one.words else [])]
    return [*filter(lambda pair: pair[1], said), ("figure", f"hessfig plot figure={claim.figure}")]


def quoted(claim: Claim) -> str:
    """Return the source's words with their place; of a question of the package's own there are none."""
    if claim.words:
        return f'"{claim.words}" ({claim.where})'
    return "" if claim.is_ours else "not quoted: paraphrase"


def seeds_in_words(claim: Claim) -> str:
    """Return the numbers of seeds that were fixed with the rule, sweep by sweep where they differ."""
    if len(set(claim.seeds)) < 2:
        return "".join(str(count) for count in claim.seeds[:1])
    return ", ".join(f"{sweep}: {count}" for sweep, count in zip(claim.sweeps, claim.seeds, strict=True))


def contrasts(one: Judged) -> list[tuple[str, str, str, str]]:
    """Return the intervals behind a verdict in words: name, mean, interval, number of seeds."""
    behind = one.finding.contrasts if one.finding else ()
    return [(name, number(found.mean), ends(found.low, found.high), str(found.count)) for name, found in behind]


def effect(one: Judged) -> str:
    """Return the effect in words."""
    return number(one.finding.effect) if one.finding else ""


def interval(one: Judged) -> str:
    """Return the interval of the effect in words."""
    return ends(one.finding.low, one.finding.high) if one.finding else ""


def number(value: float) -> str:
    """Return a number in three digits; nothing for nan."""
    return "" if math.isnan(value) else f"{value:.3g}"


def ends(low: float, high: float) -> str:
    """Return an interval in words; nothing where there is none."""
    return "" if math.isnan(low) else f"[{low:.3g}, {high:.3g}]"


def summary(judged: Sequence[Judged]) -> str:
    """Return how many claims have which verdict, and how many of these are expected to be false.

    A verdict that rests on intervals is false with a probability of at most 5 % (one side of a 95 % interval, or both)
    through the sampling of seeds alone: a rule that judges another thing than the source says is not counted.
    """
    told = ", ".join(f"{count} {word}" for word, count in counts(judged).items())
    decided = sum(one.verdict in _DECIDED for one in judged)
    most = f"at most {0.05 * decided:.2g} are expected to be false"
    false = f"Of {decided} verdicts by interval {most} from sampling of seeds alone."
    return f"{len(judged)} claims: {told}. {false}"


def _row(one: Judged) -> dict[str, object]:
    claim, finding = one.claim, one.finding
    said = {"id": claim.id, "source": claim.source, "statement": claim.statement, "figure": claim.figure}
    said |= {"sweeps": " ".join(claim.sweeps), "rule": claim.rule_words, "verdict": one.verdict}
    numbers = {name: getattr(finding, name) for name in ("effect", "low", "high")} if finding else {}
    told = {"words": finding.words if finding else claim.others, "run": " && ".join(one.commands)}
    told |= dict(zip(("scale_source", "scale_here"), _scales(one), strict=True))
    fixed = {"quoted": quoted(claim), "seeds": seeds_in_words(claim)}
    return {**said, **numbers, **told, **fixed, "departures": "; ".join(one.departures)}


def _section(one: Judged) -> list[str]:
    said = [f"- {word}: {presented.markdown_text(text)}" for word, text in explanation(one)]
    table = contrasts(one)
    shown = ["", *presented.markdown_table(("contrast", "mean", "interval", "seeds"), table)] if table else []
    return [f"## {one.claim.id}", "", *said, *shown, ""]


def _scales(one: Judged) -> tuple[str, str]:
    return one.claim.there, one.claim.here


def _scale(one: Judged) -> str:
    return " / ".join(filter(None, _scales(one)))


_DECIDED = {*PASSING, ClaimVerdict.holds_only_if, ClaimVerdict.does_not_hold}
_COLOURS: dict[str, str] = {
    **dict.fromkeys((ClaimVerdict.theorem, ClaimVerdict.holds, ClaimVerdict.within), "green"),
    **dict.fromkeys((ClaimVerdict.small, ClaimVerdict.holds_only_if, ClaimVerdict.less), "yellow"),
    **{ClaimVerdict.does_not_hold: "red", ClaimVerdict.not_tested: "dim", NOT_RUN: "dim"},
}


def verdict_table(judged: Sequence[Judged]) -> Table:
    """Return one row per claim: effect, interval, verdict, what it states, and below it a note or what to run."""
    rows = [
        (one.claim.id, effect(one), interval(one), _coloured(one.verdict), _safe(_scale(one)), _stated(one))
        for one in judged
    ]
    scales, last = "scale in the source / scale here", "statement; note, or what to run"
    heads = ("claim", "effect", "95 % jointly", "verdict", scales, last)
    return presented.terminal_table(heads, rows, wrapped=[scales, last], fold=True)


def explanation_table(one: Judged) -> Table:
    """Return what one claim says, its rule and its verdict."""
    rows = [(word, _safe(text)) for word, text in explanation(one)]
    return presented.terminal_table(("", one.claim.id), rows, wrapped=[one.claim.id], fold=True)


def contrast_table(one: Judged) -> Table:
    """Return the intervals behind the verdict."""
    rows = [(_safe(name), *numbers) for name, *numbers in contrasts(one)]
    return presented.terminal_table(("contrast", "mean", "interval", "seeds"), rows, wrapped=["contrast"], fold=True)


def _stated(one: Judged) -> str:
    return "\n".join(_safe(text) for text in (one.claim.statement, one.words) if text)


def _coloured(verdict: str) -> str:
    colour = _COLOURS.get(verdict)
    return f"[{colour}]{verdict}[/]" if colour else verdict


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)
