"""The ledger of claims: collects and judges all claims, and prints and writes the verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hessfig import registry
from hessfig.analysis import presented
from hessfig.analysis.claims import core_rules
from hessfig.analysis.claims.judges import ClaimVerdict, Finding
from hessfig.analysis.claims.rule import Claim, Evidence, evidence_in
from hessfig.errors import UserError, run_command, unknown_name
from hessfig.files import is_file
from hessfig.record import TABLE
from hessfig.register import publish

if TYPE_CHECKING:
    from rich.table import Table


def all_claims() -> dict[str, Claim]:
    """Return every claim by its id: those of the literature, then the package's own questions; the core's first."""
    modules = [core_rules, *registry.modules_of("rules")]
    claims = [claim for module in modules for claim in vars(module).values() if isinstance(claim, Claim)]
    return {claim.id: claim for claim in sorted(claims, key=lambda claim: claim.is_ours)}


def claim_of(name: str) -> Claim:
    """Return the claim of this id. Raises UserError when there is none."""
    known = all_claims()
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
        """The verdict in words; without a table a theorem still follows."""
        if self.finding:
            return self.finding.verdict.value
        return ClaimVerdict.theorem.value if self.claim.follows else NOT_RUN

    @property
    def words(self) -> str:
        """The text printed next to the verdict."""
        notes = [f"measured with {', '.join(self.departures)}"] if self.departures else []
        first = self.finding.words if self.finding else self.claim.follows
        return "; ".join(filter(None, [first, *notes, " && ".join(self.commands)]))


def judge_claims(claims: Iterable[Claim], outputs: Path, departures: Departures) -> list[Judged]:
    """Return every claim judged from outputs/<sweep>/; each table is read once, and nothing is written.

    `departures(folder, sweep)` says in which settings a table is not the shipped sweep's. Raises UserError when
    `outputs` is no folder, and as the reading of tables and arrays does for one that is damaged.
    """
    _check(outputs)
    read = cache(lambda sweep: evidence_in(outputs / sweep))
    return [_judged(claim, outputs, read, departures) for claim in claims]


def counts(judged: Iterable[Judged]) -> Mapping[str, int]:
    """Return the number of claims per verdict, without verdicts that do not occur."""
    verdicts = [entry.verdict for entry in judged]
    words = (*(verdict.value for verdict in ClaimVerdict), NOT_RUN)
    return {word: verdicts.count(word) for word in words if word in verdicts}


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
    other = [f"{sweep}: {departure}" for sweep in claim.sweeps for departure in departures(outputs / sweep, sweep)]
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


def write_ledger(judged: Sequence[Judged], outputs: Path) -> list[Path]:
    """Write outputs/claims.csv and outputs/claims.md, both or none; return their paths."""
    return publish({outputs / CSV: ledger_csv(judged), outputs / PAGE: as_markdown(judged)}, "ledger of claims")


def ledger_csv(judged: Iterable[Judged]) -> str:
    """Return one line per claim in COLUMNS; effect and interval are empty where there is none."""
    return presented.as_csv(pd.DataFrame([_row(entry) for entry in judged], columns=COLUMNS))


def as_markdown(judged: Sequence[Judged]) -> str:
    """Return the page: a table of verdicts, then a section for each claim."""
    lines = ["# Empirical claims of the literature, judged from the tables here", "", summary_of_verdicts(judged), ""]
    heads = ("claim", "scale in the source", "scale here", "effect", INTERVAL, "verdict")
    rows = [
        (f"[{entry.claim.id}](#{entry.claim.id})", *_scales(entry), effect(entry), interval(entry), entry.verdict)
        for entry in judged
    ]
    lines += presented.markdown_table(heads, rows)
    return "\n".join([*lines, "", *(line for entry in judged for line in _section(entry))])


def explanation(judged: Judged) -> list[tuple[str, str]]:
    """Return the explanation of one claim, as pairs of a word and a text."""
    claim = judged.claim
    pairs = [("claim", claim.statement), ("source", claim.source), ("the source's words", quoted_source(claim))]
    pairs += [("sweeps", ", ".join(claim.sweeps)), ("seeds", seeds_in_words(claim))]
    pairs += [("scale in the source", claim.scale_source), ("scale here", claim.scale_here), ("rule", claim.rule_words)]
    if judged.finding:
        pairs += [("effect", f"{effect(judged)}, {INTERVAL} {interval(judged) or 'none'}")]
    pairs += [("verdict", judged.verdict), ("note" if judged.finding else "run", judged.words)]
    return [*filter(lambda pair: pair[1], pairs), ("figure", f"hessfig plot figure={claim.figure}")]


def quoted_source(claim: Claim) -> str:
    """Return the source's words with their place; empty for the package's own questions."""
    if claim.words:
        return f'"{claim.words}" ({claim.where})'
    return "" if claim.is_ours else "not quoted: paraphrase"


def seeds_in_words(claim: Claim) -> str:
    """Return the numbers of seeds that were fixed with the rule, sweep by sweep where they differ."""
    if len(set(claim.seeds)) < 2:
        return "".join(str(count) for count in claim.seeds[:1])
    return ", ".join(f"{sweep}: {count}" for sweep, count in zip(claim.sweeps, claim.seeds, strict=True))


PART_HEADS = ("part or condition", "mean", "interval", "seeds", "verdict", "note")


def parts(judged: Judged) -> list[tuple[str, ...]]:
    """Return the sub-table of a claim in words, a row for each part and condition, under PART_HEADS."""
    rows = [(row, row.interval) for row in (judged.finding.rows if judged.finding else ())]
    return [
        (row.name, three_digits(at.mean), ends(at.low, at.high), str(at.count), row.word, row.note) for row, at in rows
    ]


def effect(judged: Judged) -> str:
    """Return the effect in words."""
    return three_digits(judged.finding.effect) if judged.finding else ""


def interval(judged: Judged) -> str:
    """Return the interval of the effect in words."""
    return ends(judged.finding.low, judged.finding.high) if judged.finding else ""


def three_digits(value: float) -> str:
    """Return a number with three digits; empty for nan."""
    return "" if math.isnan(value) else f"{value:.3g}"


def ends(low: float, high: float) -> str:
    """Return an interval in words; empty if there is none."""
    return "" if math.isnan(low) else f"[{low:.3g}, {high:.3g}]"


def summary_of_verdicts(judged: Sequence[Judged]) -> str:
    """Return the number of claims per verdict, and how many verdicts are expected to be false.

    A verdict that rests on intervals is false with a probability of at most 5 % (one side of a 95 % interval, or both)
    through the sampling of seeds alone: a rule that judges another thing than the source says is not counted.
    """
    words = ", ".join(f"{count} {word}" for word, count in counts(judged).items())
    decided = sum(entry.verdict in _DECIDED for entry in judged)
    most = f"at most {0.05 * decided:.2g} are expected to be false"
    false = f"Of {decided} verdicts by interval {most} from sampling of seeds alone."
    return f"{len(judged)} claims: {words}. {false}"


def _row(judged: Judged) -> dict[str, object]:
    claim, finding = judged.claim, judged.finding
    scale_source, scale_here = _scales(judged)
    return {
        **{"id": claim.id, "source": claim.source, "statement": claim.statement, "figure": claim.figure},
        **{"sweeps": " ".join(claim.sweeps), "rule": claim.rule_words, "verdict": judged.verdict},
        **({name: getattr(finding, name) for name in ("effect", "low", "high", "words")} if finding else {}),
        **{"scale_source": scale_source, "scale_here": scale_here, "run": " && ".join(judged.commands)},
        **{"quoted": quoted_source(claim), "seeds": seeds_in_words(claim), "departures": "; ".join(judged.departures)},
    }


def _section(judged: Judged) -> list[str]:
    lines = [f"- {word}: {presented.markdown_text(text)}" for word, text in explanation(judged)]
    rows = parts(judged)
    table = ["", *presented.markdown_table(PART_HEADS, rows)] if rows else []
    return [f"## {judged.claim.id}", "", *lines, *table, ""]


def _scales(judged: Judged) -> tuple[str, str]:
    return judged.claim.scale_source, judged.claim.scale_here


_DECIDED = set(ClaimVerdict) - {ClaimVerdict.theorem, ClaimVerdict.undecided}
_COLOURS: dict[str, str] = {
    **dict.fromkeys((ClaimVerdict.theorem, ClaimVerdict.holds, ClaimVerdict.within), "green"),
    **dict.fromkeys((ClaimVerdict.small, ClaimVerdict.holds_only_if), "yellow"),
    **{ClaimVerdict.does_not_hold: "red", NOT_RUN: "dim"},
}


def verdict_table(judged: Sequence[Judged]) -> Table:
    """Return one row per claim: effect, interval, verdict, and its statement above a note or a command."""
    rows = [
        (entry.claim.id, effect(entry), interval(entry), _coloured(entry.verdict), _scale(entry), _stated(entry))
        for entry in judged
    ]
    scales, last = "scale in the source / scale here", "statement; note, or what to run"
    heads = ("claim", "effect", "95 % jointly", "verdict", scales, last)
    return presented.terminal_table(heads, rows, wrapped=[scales, last], fold=True)


def explanation_table(judged: Judged) -> Table:
    """Return the statement, the rule and the verdict of one claim."""
    rows = [(word, _safe(text)) for word, text in explanation(judged)]
    return presented.terminal_table(("", judged.claim.id), rows, wrapped=[judged.claim.id], fold=True)


def part_table(judged: Judged) -> Table:
    """Return the sub-table of a claim: its parts and conditions."""
    rows = [(_safe(name), *numbers, _coloured(verdict), _safe(note)) for name, *numbers, verdict, note in parts(judged)]
    return presented.terminal_table(PART_HEADS, rows, wrapped=[PART_HEADS[0], "note"], fold=True)


def _scale(judged: Judged) -> str:
    return _safe(" / ".join(filter(None, _scales(judged))))


def _stated(judged: Judged) -> str:
    return "\n".join(_safe(text) for text in (judged.claim.statement, judged.words) if text)


def _coloured(verdict: str) -> str:
    colour = _COLOURS.get(verdict)
    return f"[{colour}]{verdict}[/]" if colour else verdict


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)
