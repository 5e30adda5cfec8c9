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
    others = [(row["row"], _told(row)) for row in rows if "gradients" not in row]
    found = [*dict.fromkeys(f"- {_origin(record)}" for record in records), ""]
    found += [*markdown_table(HEADS, products), ""] * bool(products)
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


def _told(row: Row) -> str:
    """Return the numbers of a row with their names, or why there are none."""
    found = {name.replace("_", " "): value for name, value in row.items() if type(value) in (int, float)}
    numbers = (
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items()
    )
    return row.get("failed") or "; ".join(numbers)


if __name__ == "__main__":
    from page import keep

    sys.exit(keep(__doc__, COMMAND, parts))
