"""The ledger as files: claims.csv, a line a claim, and claims.md, with rules and the intervals behind verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from hessfig.analysis.claims.ledger.judging import Judged, counts
from hessfig.files import write_together

CSV, PAGE = "claims.csv", "claims.md"
COLUMNS = [
    *["id", "source", "statement", "sweeps", "figure", "rule", "effect", "low", "high", "verdict", "words"],
    *["run", "departures"],
]


def write(judged: Sequence[Judged], outputs: Path) -> list[Path]:
    """Write outputs/claims.csv and outputs/claims.md, both or none; return their paths."""
    texts = {outputs / CSV: as_csv(judged), outputs / PAGE: as_markdown(judged)}
    write_together(texts)
    return list(texts)


def as_csv(judged: Iterable[Judged]) -> str:
    """Return a line a claim in COLUMNS; effect and interval are empty where there is none."""
    frame = pd.DataFrame([_row(one) for one in judged], columns=COLUMNS)
    return frame.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def as_markdown(judged: Sequence[Judged]) -> str:
    """Return the page: a table of verdicts, then a section a claim."""
    lines = ["# Empirical claims of the literature, judged from the tables here", "", summary(judged), ""]
    lines += ["| claim | effect | 95 % interval | verdict |", "|---|---|---|---|"]
    lines += [
        f"| [{one.claim.id}](#{one.claim.id}) | {effect(one)} | {interval(one)} | {one.verdict} |"
        for one in judged
    ]
    return "\n".join([*lines, "", *(line for one in judged for line in _section(one))])


def explanation(one: Judged) -> list[tuple[str, str]]:
    """Return what there is to say of one claim, as pairs of a word and a text."""
    claim = one.claim
    said = [("claim", claim.statement), ("source", claim.source), ("sweeps", ", ".join(claim.sweeps))]
    said += [("rule", claim.rule_words)]
    if one.finding:
        said += [("effect", f"{effect(one)}, 95 % interval {interval(one) or 'none'}")]
    said += [
        ("verdict", one.verdict),
        *([("note" if one.finding else "run", one.words)] if one.words else []),
    ]
    return [*said, ("figure", f"hessfig plot figure={claim.figure}")]


def contrasts(one: Judged) -> list[tuple[str, str, str, str]]:
    """Return the intervals behind a verdict in words: name, mean, interval, number of seeds."""
    behind = one.finding.contrasts if one.finding else ()
    return [
        (name, number(found.mean), ends(found.low, found.high), str(found.count)) for name, found in behind
    ]


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
    """Return how many claims have which verdict."""
    return f"{len(judged)} claims: {', '.join(f'{count} {word}' for word, count in counts(judged).items())}."


def _row(one: Judged) -> dict[str, object]:
    claim, finding = one.claim, one.finding
    said = {"id": claim.id, "source": claim.source, "statement": claim.statement, "figure": claim.figure}
    said |= {"sweeps": " ".join(claim.sweeps), "rule": claim.rule_words, "verdict": one.verdict}
    numbers = {name: getattr(finding, name) for name in ("effect", "low", "high")} if finding else {}
    told = {"words": finding.words if finding else "", "run": " && ".join(one.commands)}
    return {**said, **numbers, **told, "departures": "; ".join(one.departures)}


def _section(one: Judged) -> list[str]:
    said = [f"- {word}: {_cell(text)}" for word, text in explanation(one)]
    table = [f"| {' | '.join(map(_cell, row))} |" for row in contrasts(one)]
    head = ["", "| contrast | mean | interval | seeds |", "|---|---|---|---|"] if table else []
    return [f"## {one.claim.id}", "", *said, *head, *table, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
