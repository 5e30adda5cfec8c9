"""What a run says at its end about numbers that enter no mean or underflowed: how many, and where on the grid."""

import csv
from collections.abc import Iterable
from pathlib import Path

from hessfig.predictions.architecture import COUNTED
from hessfig.record import FROBENIUS, MANIFEST, Status, read_checked

Row = dict[str, str]


def out_of_range(table: Path) -> list[str]:
    """Return a line each for numbers that are not finite, did not converge, or underflowed to 0; none if all is well.

    Any quantity may overflow; only a norm, and of a network whose zeros are known, has underflowed where it is 0.
    """
    with table.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    norms = [row for row in _of_status(rows, Status.ok) if row["quantity"] == FROBENIUS]
    underflowed = [row for row in norms if float(row["value"]) == 0.0] if _knows_zeros(table) else []
    ends = {
        "are not finite": (_of_status(rows, Status.nonfinite), "recorded as such and left out of means"),
        "did not converge": (_of_status(rows, Status.not_converged), "recorded and left out of means"),
        "are 0 where theory knows no zero": (underflowed, "smaller than the numbers' type can hold; kept as 0"),
    }
    return [
        f"{len(bad)} numbers of {len(rows)} {what}: {_where(bad, rows)}: {end}"
        for what, (bad, end) in ends.items()
        if bad
    ]


def _knows_zeros(table: Path) -> bool:
    """Return whether theory knows which blocks of this network vanish; those of a user's own network are not known."""
    manifest = table.with_name(MANIFEST)
    return not manifest.exists() or read_checked(manifest)["config"]["model"]["kind"] in COUNTED


def _of_status(rows: Iterable[Row], status: Status) -> list[Row]:
    return [row for row in rows if row["status"] == status]


def _where(bad: list[Row], rows: list[Row]) -> str:
    """Return the places of the bad rows, network by network and quantity by quantity."""
    groups = dict.fromkeys(map(_group, bad))
    return ", ".join(f"{_places(_of(bad, one), _of(rows, one))} ({one})" for one in groups)


def _group(row: Row) -> str:
    variant, quantity = row["variant"], row["quantity"]
    names = [variant, f"n_layers={row['num_layers']}", "" if quantity == FROBENIUS else quantity]
    return ", ".join(filter(None, names))


def _of(rows: Iterable[Row], group: str) -> tuple[str, list[float]]:
    """Return what the rows of a group lie along (of sigma and step what has more places), and these in rising order."""
    here = [row for row in rows if _group(row) == group]
    found = {name: len({row[name] for row in here} - {""}) for name in ("sigma", "step")}
    axis = max(found, key=lambda name: found[name]) if any(found.values()) else ""
    return axis, sorted({float(row[axis]) for row in here if row[axis]}) if axis else []


def _places(bad: tuple[str, list[float]], grid: tuple[str, list[float]]) -> str:
    """Return which places of the grid are bad: every one, an end of it, or a list."""
    (axis, found), (_, known) = bad, grid
    if not axis:
        return "at the one point measured"
    if found == known:
        return f"every {axis}"
    if found == known[-len(found) :]:
        return f"{axis} >= {found[0]:.3g}"
    if found == known[: len(found)]:
        return f"{axis} <= {found[-1]:.3g}"
    return f"{axis} {', '.join(f'{place:.3g}' for place in found)}"
