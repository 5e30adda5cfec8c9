"""Print the table of claims and their rules from the records, or write it into docs/claims.md.

    python scripts/claims_page.py                       # the generated part
    python scripts/claims_page.py --write               # put it between its marks on the page
    python scripts/claims_page.py --write outputs       # and the verdicts of outputs/claims.csv (`hessfig claims`)

Nothing on the page that comes from a record or a table is written by hand; a test compares the part without numbers.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from hessfig.analysis.claims.ledger import claims
from hessfig.analysis.presented import between_marks, markdown_table, markdown_text

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
COMMAND = "python scripts/claims_page.py --write"


def main() -> None:
    """Print the records, or write them, and the verdicts of a folder where one is told."""
    if sys.argv[1:2] != ["--write"]:
        sys.stdout.write(records())
        return
    page = between_marks(PAGE.read_text(), "records", records(), COMMAND)
    if len(sys.argv) > 2:
        page = between_marks(page, "verdicts", verdicts(Path(sys.argv[2]) / "claims.csv"), COMMAND)
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


def verdicts(path: Path) -> str:
    """Return a table of the verdicts in claims.csv: effect, interval, verdict, words."""
    with path.open(newline="") as file:
        found = [
            (row["id"], _digits(row["effect"]), _interval(row["low"], row["high"]), row["verdict"], row["words"])
            for row in csv.DictReader(file)
        ]
    return "\n".join([*markdown_table(("claim", "effect", "95 % interval", "verdict", "in words"), found), ""])


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
