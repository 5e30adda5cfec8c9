"""Write verdicts on claims into docs/claims.md; their numbers, parts, sources and rules into docs/claim-rules.md.

    python scripts/pages/claims.py [--write | --check]             # from the records: statements, sources, rules
    python scripts/pages/claims.py [--write | --check] outputs     # and the verdicts of the sweeps measured there;
                                                                   # those of other claims stay as they are

Nothing between the marks is written by hand; a test compares what comes from the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hessfig.analysis.claims import ledger
from hessfig.analysis.claims.judges import ClaimVerdict
from hessfig.analysis.claims.ledger import Judged, all_claims, judge_claims, quoted_source, seeds_in_words
from hessfig.analysis.claims.rule import Claim
from hessfig.analysis.presented import markdown_table, markdown_text, marked
from hessfig.record import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
RULES = PAGE.with_name("claim-rules.md")
COMMAND = "python scripts/pages/claims.py --write"
NOT_YET = "not measured under this rule yet"
SUMMARY_HEADS = ("claim", "statement", "verdict", "result")
HEADS = ("claim", "statement", "source", "effect", "95 % jointly", "verdict", "result", "seeds")
PART_HEADS = ("claim", "part or condition", "effect", "95 % jointly", "verdict", "note")
Cells = list[str]


def parts(outputs: Path | None) -> Iterator[tuple[Path, str, str]]:
    """Yield the one-screen summary, the verdicts with their numbers and parts, the sources and the rules."""
    page = RULES.read_text()
    judged = measured(outputs) if outputs else {}
    numbers = verdicts(judged, marked(page, "verdicts", COMMAND), outputs or Path())
    details = conditions(judged, marked(page, "parts", COMMAND))
    yield PAGE, "summary", summary(numbers, details)
    yield RULES, "verdicts", numbers
    yield RULES, "parts", details
    yield RULES, "sources", sources()
    yield RULES, "rules", rules()


def measured(outputs: Path) -> dict[str, Judged]:
    """Return the claims all of whose sweeps a folder has, judged."""
    judged = judge_claims(all_claims().values(), outputs, lambda folder, sweep: [])
    return {one.claim.id: one for one in judged if one.finding}


def summary(numbers: str, details: str) -> str:
    """Return a line for every claim from the tables of verdicts and parts: its statement, verdict and result."""
    shares = parts_by_verdict(details)
    rows = [[*line[:2], line[5], _result(line, shares.get(line[0], []))] for line in _lines(numbers)]
    return "\n".join([*markdown_table(SUMMARY_HEADS, []), *map(_row, rows), ""])


def parts_by_verdict(details: str) -> dict[str, list[str]]:
    """Return for every claim with parts each verdict and the parts that have it, as "holds: along the depth"."""
    found: dict[str, dict[str, list[str]]] = {}
    for claim, part, *_, verdict, _ in _lines(details):
        found.setdefault(claim, {}).setdefault(verdict, []).append(part)
    return {claim: [f"{word}: {', '.join(one)}" for word, one in words.items()] for claim, words in found.items()}


def _result(line: Cells, shares: list[str]) -> str:
    """Return the effect in words with its interval, and which parts hold where the claim holds in some alone."""
    name, _, _, effect, interval, verdict, words, _ = line
    if not effect:
        return words
    result = f"{markdown_text(all_claims()[name].effect_words)}: {effect} {interval}"
    return "; ".join([result, *(shares if verdict == ClaimVerdict.holds_only_if else [])])


def verdicts(judged: dict[str, Judged], before: str, outputs: Path) -> str:
    """Return a line for every claim: what it states, and what was found.

    Full size takes hours: a claim that was not judged keeps the numbers of the table `before`. They are taken out by
    whoever changes its rule; then its line says that the claim is not measured, and by what it is.
    """
    kept = {cells[0]: cells[3:] for cells in _lines(before)}
    rows = []
    for claim in all_claims().values():
        one = judged.get(claim.id)
        numbers = _numbers(one, outputs) if one else kept.get(claim.id) or _not_yet(claim)
        rows.append([claim.id, markdown_text(claim.statement), markdown_text(claim.source), *numbers])
    return "\n".join([*markdown_table(HEADS, []), *map(_row, rows), ""])


def conditions(judged: dict[str, Judged], before: str) -> str:
    """Return a line for every part and condition of a claim that has several; the rest as in the table `before`."""
    kept: dict[str, list[Cells]] = {}
    for cells in _lines(before):
        kept.setdefault(cells[0], []).append(cells)
    rows = []
    for name in all_claims():
        if name in judged:
            rows += [[name, *cells] for cells in _parts(judged[name])]
        else:
            rows += kept.get(name, [])
    return "\n".join([*markdown_table(PART_HEADS, []), *map(_row, rows), ""])


def _parts(one: Judged) -> list[Cells]:
    top = [row for row in (one.finding.rows if one.finding else ()) if not row.level]
    return [
        [
            *(markdown_text(row.name), ledger.three_digits(row.interval.mean)),
            *(ledger.ends(row.interval.low, row.interval.high), row.word, markdown_text(row.note)),
        ]
        for row in top
    ]


def _numbers(one: Judged, outputs: Path) -> Cells:
    seeds = dict.fromkeys(
        str(pd.read_csv(outputs / sweep / TABLE, usecols=["seed"])["seed"].nunique()) for sweep in one.claim.sweeps
    )
    words = one.finding.words if one.finding else ""
    return [ledger.effect(one), ledger.interval(one), one.verdict, markdown_text(words), ", ".join(seeds)]


def _not_yet(claim: Claim) -> Cells:
    """Return the cells of a claim without numbers: by which commands it is measured, and what is known without them."""
    commands = " and ".join(f"`hessfig run sweep={sweep}`" for sweep in claim.sweeps)
    known = Judged(claim).verdict
    if known == ledger.NOT_RUN:
        return ["", "", NOT_YET, commands, ""]
    return ["", "", known, f"{claim.follows}; {NOT_YET}: {commands}", ""]


def sources() -> str:
    """Return a line for every claim: its source's words, its sweeps, and both scales."""
    heads = ("claim", "the source's words", "sweeps", "seeds", "scale in the source", "scale here")
    rows = [
        [
            *(claim.id, quoted_source(claim), ", ".join(map(_code, claim.sweeps)), seeds_in_words(claim)),
            *(claim.scale_source, claim.scale_here),
        ]
        for claim in all_claims().values()
    ]
    return "\n".join([*markdown_table(heads, rows), ""])


def rules() -> str:
    """Return the rule of every claim in words."""
    return "\n".join([*map(_rule, all_claims().values()), ""])


def _rule(claim: Claim) -> str:
    theorems = {"It": claim.follows, **{f"Its part *{part}*": names for part, names in claim.part_theorems.items()}}
    follows = [f" {what} follows from `{names}` of `hessfig verify`." for what, names in theorems.items() if names]
    return f"- **{claim.id}**: {markdown_text(claim.rule_words)}{''.join(follows)}"


def _lines(table: str) -> Iterator[Cells]:
    """Yield the cells of every line of a table as they stand there, below its head."""
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split(" | ")]


def _row(cells: Cells) -> str:
    """Return a line of cells that are escaped already."""
    return f"| {' | '.join(cells)} |"


def _code(word: str) -> str:
    return f"`{word}`"


if __name__ == "__main__":
    from page import keep

    raise SystemExit(keep(__doc__, COMMAND, parts))
