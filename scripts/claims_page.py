"""Print the table of claims and their rules from the records, or write it into docs/claims.md.

    python scripts/claims_page.py                       # the generated part
    python scripts/claims_page.py --write               # put it between its marks on the page
    python scripts/claims_page.py --write outputs       # and the verdicts of outputs/claims.csv (`hessfig claims`);
                                                        # others stay as they are

Nothing on the page that comes from a record or a table is written by hand; a test compares the part without numbers.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pandas as pd

from hessfig.analysis.claims.ledger import claims
from hessfig.analysis.presented import between_marks, markdown_row, markdown_table, markdown_text, marked
from hessfig.record import TABLE

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
WITHDRAWN = PAGE.with_name("verdicts-of-0.2.0.csv")
COMMAND = "python scripts/claims_page.py --write"
CELL = ["config", "sigma", "step", "seed"]


def main() -> None:
    """Print the records, or write them, and the verdicts of a folder where one is told."""
    if sys.argv[1:2] != ["--write"]:
        sys.stdout.write(records())
        return
    page = between_marks(PAGE.read_text(), "records", records(), COMMAND)
    if len(sys.argv) > 2:
        page = between_marks(page, "verdicts", verdicts(Path(sys.argv[2]), marked(page, "verdicts", COMMAND)), COMMAND)
    page = between_marks(page, "changes", changes(marked(page, "verdicts", COMMAND)), COMMAND)
    PAGE.write_text(page)


def records() -> str:
    """Return a table of all claims with their scales, and below it every rule."""
    heads = ("claim", "source", "statement", "sweeps", "scale in the source", "scale here")
    rows = [
        (one.id, one.source, one.statement, ", ".join(map(_code, one.sweeps)), one.there, one.here)
        for one in claims().values()
    ]
    rules = [f"- **{one.id}**: {markdown_text(one.rule_words)}{_apart(one)}" for one in claims().values()]
    return "\n".join([*markdown_table(heads, rows), "", "### Rules", "", *rules, ""])


def verdicts(outputs: Path, before: str = "") -> str:
    """Return a table of the verdicts in outputs/claims.csv with the seeds and minutes of their sweeps.

    Full size takes hours: a claim whose sweeps `outputs` lacks keeps its line of the table `before`.
    """
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in before.splitlines()}
    lines = []
    with (outputs / "claims.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            tables = [outputs / sweep / TABLE for sweep in claims()[row["id"]].sweeps]
            measured = all(path.is_file() for path in tables)
            lines.append(_line(row, tables) if measured else kept.get(row["id"], _line(row, [])))
    heads = ("claim", "effect", "95 % interval", "verdict", "in words", "seeds", "minutes")
    return "\n".join([*markdown_table(heads, []), *lines, ""])


def changes(shown: str) -> str:
    """Return what 0.2.0 said of each claim (docs/verdicts-of-0.2.0.csv), what the page's verdicts say now, and why."""
    with WITHDRAWN.open(newline="") as file:
        before = {row["id"]: row for row in csv.DictReader(file)}
    new = {"verdict": "none", "why": "a claim that 0.2.0 did not judge"}
    lines = []
    for line in shown.splitlines()[2:]:
        name, _, _, now, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
        old = before.get(name, new)
        lines.append((name, old["verdict"], now, old["why"]))
    return "\n".join([*markdown_table(("claim", "0.2.0", "now", "why the rule changed"), lines), ""])


def _line(row: dict[str, str], tables: list[Path]) -> str:
    interval = _interval(row["low"], row["high"])
    return markdown_row((row["id"], _digits(row["effect"]), interval, row["verdict"], row["words"], *_cost(tables)))


def _cost(paths: list[Path]) -> tuple[str, str]:
    """Return the seeds of some tables and the minutes that their cells took, one worker at a time."""
    tables = [pd.read_csv(path, usecols=[*CELL, "seconds"]) for path in paths]
    seeds = dict.fromkeys(str(table["seed"].nunique()) for table in tables)
    seconds = sum(table.groupby(CELL, dropna=False)["seconds"].first().sum() for table in tables)
    return ", ".join(seeds), f"{seconds / 60:.1f}" if tables else ""


def _apart(one: object) -> str:
    theorems, others = (getattr(one, name) for name in ("theorems", "others"))
    said = [f"It follows from {', '.join(map(_code, theorems))} of `hessfig verify`."] if theorems else []
    return "".join(f" {text}" for text in [*said, *([f"Not tested here: {others}."] if others else [])])


def _code(word: str) -> str:
    return f"`{word}`"


def _digits(text: str) -> str:
    return f"{float(text):.3g}" if text else ""


def _interval(low: str, high: str) -> str:
    return f"[{_digits(low)}, {_digits(high)}]" if low and high else ""


if __name__ == "__main__":
    main()
