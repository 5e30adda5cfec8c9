"""Write the tables of networks of real sizes into docs/real-models.md, from the records of scripts/benchmarks/real.py.

    python scripts/pages/real_sizes.py [--write | --check]

The records are docs/benchmarks/real_cpu*.json and real_cuda*.json; several of one kind are joined, and a row that was
measured again replaces the earlier one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hessfig.analysis.presented import markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "real-models.md"
RECORDS = PAGE.with_name("benchmarks")
COMMAND = "python scripts/pages/real_sizes.py --write"
HEADS = ("product", "seconds", "in gradients", "peak GiB", "peak / gradient's", "v.Hv off by")
Row = dict[str, Any]
Part = tuple[Path, str, str]  # as in page.py


def parts(_: Path | None = None) -> Iterator[Part]:
    """Yield what the records of each kind of device say."""
    for kind in ("cpu", "cuda"):
        yield (
            PAGE,
            f"real-{kind}",
            tables([json.loads(one.read_text()) for one in sorted(RECORDS.glob(f"real_{kind}*"))]),
        )


def tables(records: list[Row]) -> str:
    """Return where records come from, their products, and what else they measure."""
    measured = [row for record in records for row in record["rows"]]
    rows = [*{row["row"]: row for row in sorted(measured, key=lambda row: "failed" not in row)}.values()]
    has_card = any("card" in record for record in records)
    products = [_product(row, has_card) for row in rows if "gradients" in row]
    kinds = [row["row"].partition(", ")[0] for row in rows if "gradients" not in row and "failed" not in row]
    repeated = [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 2]
    others = [(row["row"], _told(row)) for row in rows if "gradients" not in row and _kind(row) not in repeated]
    found = [*dict.fromkeys(f"- {_origin(record)}" for record in records), ""]
    found += [*markdown_table(HEADS, products), ""] * bool(products)
    for kind in repeated:
        found += [*_compared(kind, [row for row in rows if _kind(row) == kind]), ""]
    found += [*markdown_table(("measured", "numbers"), others), ""] * bool(others)
    return "\n".join(found)


def _origin(record: Row) -> str:
    here = record["environment"]
    where = record.get("card") or f"{here['cpu']}, one thread"
    versions = f"torch {here['torch']}, transformers {record['transformers']}, hessfig {here['hessfig']}"
    return f"{where}; {versions}; {here['date'][:10]}"


def _product(row: Row, has_card: bool) -> list[str]:
    share = f"{row['peak_gib'] / row['gradient_peak_gib']:.3g}" if has_card else ""  # a process holds much else
    agrees = f"{row['agrees']:.0e}" if row.get("agrees") else ""
    return [row["row"], *(f"{row[name]:.3g}" for name in ("seconds", "gradients", "peak_gib")), share, agrees]


def _kind(row: Row) -> str:
    """Return the first words of a row's name, which rows of one table share."""
    return str(row["row"]).partition(", ")[0]


def _compared(kind: str, rows: list[Row]) -> list[str]:
    """Return a table of rows of one kind: a column for every number that all of them have."""
    done = [row for row in rows if "failed" not in row]
    names = [name for name in done[0] if all(type(row.get(name)) in (int, float) for row in done)]
    cells = [[row["row"].partition(", ")[2], *(_number(row[name]) for name in names)] for row in done]
    cells += [
        [row["row"].partition(", ")[2], row["failed"], *("" for _ in names[1:])] for row in rows if "failed" in row
    ]
    return markdown_table((kind, *(name.replace("_", " ") for name in names)), cells)


def _told(row: Row) -> str:
    """Return the numbers of a row with their names, or why there are none."""
    found = {name.replace("_", " "): value for name, value in row.items() if type(value) in (int, float)}
    return row.get("failed") or "; ".join(f"{name} {_number(value)}" for name, value in found.items())


def _number(value: float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    from page import keep

    sys.exit(keep(__doc__, COMMAND, parts))
