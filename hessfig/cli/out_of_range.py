"""What a run says at its end about numbers beyond the range of floating point: how many, and at which sigmas."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

Row = dict[str, str]


def out_of_range(table: Path) -> list[str]:
    """Return a line for numbers that are not finite and a line for those that underflowed to 0; none if all is well."""
    with table.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    overflowed = [row for row in rows if row["status"] == "nonfinite"]
    underflowed = [row for row in rows if row["status"] == "ok" and float(row["frob"]) == 0.0]
    ends = {
        "not finite": (overflowed, "recorded as such and left out of means"),
        "0 where theory knows no zero": (underflowed, "smaller than the numbers' type can hold; kept as 0"),
    }
    return [
        f"{len(bad)} numbers of {len(rows)} are {what}: {_where(bad, rows)}: {end}"
        for what, (bad, end) in ends.items()
        if bad
    ]


def _where(bad: list[Row], rows: list[Row]) -> str:
    """Return the sigmas of the bad rows, network by network."""
    networks = dict.fromkeys(map(_network, bad))
    return ", ".join(f"{_sigmas(_of(bad, one), _of(rows, one))} ({one})" for one in networks)


def _network(row: Row) -> str:
    return f"{row['variant']}, " * bool(row["variant"]) + f"n_layers={row['num_layers']}"


def _of(rows: Iterable[Row], network: str) -> list[float]:
    return sorted({float(row["sigma"]) for row in rows if _network(row) == network})


def _sigmas(bad: list[float], grid: list[float]) -> str:
    """Return which sigmas of the grid are bad: every one, an end of it, or a list."""
    if bad == grid:
        return "every sigma"
    if bad == grid[-len(bad) :]:
        return f"sigma >= {bad[0]:.3g}"
    if bad == grid[: len(bad)]:
        return f"sigma <= {bad[-1]:.3g}"
    return f"sigma {', '.join(f'{sigma:.3g}' for sigma in bad)}"
