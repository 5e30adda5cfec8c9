"""Write the tables of claims, their rules and verdicts into docs/claims.md, from the records.

    python scripts/pages/claims.py [--write | --check]             # the part without numbers
    python scripts/pages/claims.py [--write | --check] outputs     # and the verdicts of outputs/claims.csv
                                                                   # (`hessfig claims`); others stay as they are

Nothing on the page that comes from a record or a table is written by hand; a test compares the part without numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hessfig.analysis.claims import ledger
from hessfig.analysis.claims.ledger import INTERVAL, claims, quoted, seeds_in_words
from hessfig.analysis.claims.rule import Claim
from hessfig.analysis.presented import markdown_row, markdown_table, markdown_text, marked
from hessfig.record import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
BEFORE = PAGE.with_name("verdicts-of-0.2.1.csv")
COMMAND = "python scripts/pages/claims.py --write"
NOT_YET = "not measured under this rule yet"
CELL = ["config", "sigma", "step", "seed"]


def parts(outputs: Path | None) -> Iterator[tuple[Path, str, str]]:
    """Yield the records, the verdicts where a folder of results is told, and what changed."""
    yield PAGE, "records", records()
    shown = marked(PAGE.read_text(), "verdicts", COMMAND)
    if outputs:
        shown = verdicts(outputs, shown)
        yield PAGE, "verdicts", shown
    yield PAGE, "changes", changes(shown)


def records() -> str:
    """Return the claims of the literature and the package's own, each in a table, and below them every rule."""
    theirs = [one for one in claims().values() if not one.is_ours]
    own = [one for one in claims().values() if one.is_ours]
    rules = [f"- **{one.id}**: {markdown_text(one.rule_words)}{_apart(one)}" for one in claims().values()]
    said = [f"### Of the literature ({len(theirs)})", "", *_table(theirs)]
    said += ["", f"### The package's own questions ({len(own)})", "", *_table(own)]
    return "\n".join([*said, "", "### Rules", "", *rules, ""])


def _table(some: list[Claim]) -> list[str]:
    heads = ("claim", "source", "the source's words", "statement", "sweeps", "seeds")
    scales = ("scale in the source", "scale here")
    rows = [
        (one.id, one.source, quoted(one), one.statement, ", ".join(map(_code, one.sweeps)), seeds_in_words(one))
        for one in some
    ]
    scaled = [(*row, one.there, one.here) for row, one in zip(rows, some, strict=True)]
    return markdown_table((*heads, *scales), scaled)


def verdicts(outputs: Path, before: str = "") -> str:
    """Return a table of the verdicts in outputs/claims.csv with the seeds and minutes of their sweeps.

    Full size takes hours: a claim whose sweeps `outputs` lacks keeps its line of the table `before`. A line is taken
    out by whoever changes its rule; then it says that the claim is not measured under this rule, and by what it is.
    """
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in before.splitlines()}
    lines = []
    with (outputs / "claims.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            tables = [outputs / sweep / TABLE for sweep in claims()[row["id"]].sweeps]
            is_kept = row["id"] in kept and f" | {NOT_YET} | " not in kept[row["id"]]
            measured = all(path.is_file() for path in tables)
            lines.append(_line(row, tables) if measured else kept[row["id"]] if is_kept else _not_yet(row))
    heads = ("claim", "effect", INTERVAL, "verdict", "in words", "seeds", "minutes")
    return "\n".join([*markdown_table(heads, []), *lines, ""])


def changes(shown: str) -> str:
    """Return what 0.2.1 said of each claim (docs/verdicts-of-0.2.1.csv), what the page's verdicts say now, and why."""
    now = {}
    for line in shown.splitlines()[2:]:
        name, _, _, verdict, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
        now[name] = verdict
    before = {row["id"]: row for row in _before()}
    lines = [
        (name, before[name]["verdict"] if name in before else "none", now.get(name, "cut"), _why(name, before, now))
        for name in (*now, *(name for name in before if name not in now))
    ]
    return "\n".join([*markdown_table(("claim", "0.2.1", "now", "what changed"), lines), ""])


def _why(name: str, before: dict[str, dict[str, str]], now: dict[str, str]) -> str:
    if name not in before:
        return "a new claim"
    same = before[name]["verdict"] == now.get(name)
    return before[name]["why"] or ("nothing" if same else "measured anew; verdicts have words they had not")


def _before() -> list[dict[str, str]]:
    with BEFORE.open(newline="") as file:
        return list(csv.DictReader(file))


def _not_yet(row: dict[str, str]) -> str:
    """Return the line of a claim without numbers: by which commands it is measured, and what is known without them."""
    commands = " and ".join(f"`hessfig run sweep={sweep}`" for sweep in claims()[row["id"]].sweeps)
    known = row["verdict"] if row["verdict"] != ledger.NOT_RUN else NOT_YET
    words = [row["words"], commands if known == NOT_YET else f"{NOT_YET}: {commands}"]
    return markdown_row((row["id"], "", "", known, "; ".join(filter(None, words)), "", ""))


def _line(row: dict[str, str], tables: list[Path]) -> str:
    interval = _interval(row["low"], row["high"])
    return markdown_row((row["id"], _digits(row["effect"]), interval, row["verdict"], row["words"], *_cost(tables)))


def _cost(paths: list[Path]) -> tuple[str, str]:
    """Return the seeds of some tables and the minutes that their cells took, one worker at a time."""
    tables = [pd.read_csv(path, usecols=[*CELL, "seconds"]) for path in paths]
    seeds = dict.fromkeys(str(table["seed"].nunique()) for table in tables)
    seconds = sum(table.groupby(CELL, dropna=False)["seconds"].first().sum() for table in tables)
    return ", ".join(seeds), f"{seconds / 60:.1f}" if tables else ""


def _apart(one: Claim) -> str:
    said = [f"It follows from {', '.join(map(_code, one.theorems))} of `hessfig verify`."] if one.theorems else []
    said += [f"It follows from {markdown_text(one.identity)}."] if one.identity else []
    said += [f"Not tested here: {one.others}."] if one.others else []
    return "".join(f" {text}" for text in [*said, *([f"Looks: {one.looks}."] if one.looks else [])])


def _code(word: str) -> str:
    return f"`{word}`"


def _digits(text: str) -> str:
    return f"{float(text):.3g}" if text else ""


def _interval(low: str, high: str) -> str:
    return f"[{_digits(low)}, {_digits(high)}]" if low and high else ""


if __name__ == "__main__":
    from page import keep

    raise SystemExit(keep(__doc__, COMMAND, parts))
