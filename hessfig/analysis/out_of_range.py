"""Numbers of a table that are not finite, did not converge, or underflowed to 0: how many, and where they lie."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

from hessfig.errors import first_few
from hessfig.predictions.architecture import COUNTED
from hessfig.record import FROBENIUS, MANIFEST, Status, read_checked

Row = dict[str, str]


def out_of_range(table: Path) -> list[str]:
    """Return a line for each kind of number that is out of range; none if all is well.

    Any quantity may overflow. Only a norm, of a network whose zeros are known, has
    underflowed where it is 0.
    """
    with table.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    kinds: list[tuple[str, Callable[[Row], bool], str]] = [
        (
            "are not finite",
            lambda row: row["status"] == Status.nonfinite,
            "recorded as such and left out of means",
        ),
        (
            "did not converge",
            lambda row: row["status"] == Status.not_converged,
            "recorded and left out of means",
        ),
    ]
    if _knows_zeros(table):
        end = "0 in every product: an underflow on the way, or a zero that theory does not state; kept as 0"
        kinds.append(("are 0 where theory knows no zero", _is_zero_norm, end))
    lines = []
    for what, is_bad, end in kinds:
        if bad := [row for row in rows if is_bad(row)]:
            lines.append(
                f"{len(bad)} numbers of {len(rows)} {what}: {_where(bad, rows)}: {end}"
            )
    return lines


def _is_zero_norm(row: Row) -> bool:
    return (
        row["quantity"] == FROBENIUS
        and row["status"] == Status.ok
        and float(row["value"]) == 0.0
    )


def _knows_zeros(table: Path) -> bool:
    """Return whether theory knows which blocks of this network vanish; those of a user's own network are not known."""
    manifest = table.with_name(MANIFEST)
    return (
        not manifest.exists()
        or read_checked(manifest)["config"]["model"]["kind"] in COUNTED
    )


def _where(bad: Iterable[Row], rows: Iterable[Row]) -> str:
    """Return the places of the bad rows, network by network and quantity by quantity."""
    words = []
    for group in dict.fromkeys(map(_group, bad)):
        places = _places(_of_group(bad, group), _of_group(rows, group))
        words.append(f"{places} ({group})")
    return first_few(words)


def _group(row: Row) -> str:
    quantity = "" if row["quantity"] == FROBENIUS else row["quantity"]
    return ", ".join(
        filter(None, [row["variant"], f"n_layers={row['num_layers']}", quantity])
    )


def _of_group(rows: Iterable[Row], group: str) -> tuple[str, list[float]]:
    """Return what the rows of a group lie along (of sigma and step what has more places), and these in rising order."""
    here = [row for row in rows if _group(row) == group]
    sigmas = {row["sigma"] for row in here} - {""}
    steps = {row["step"] for row in here} - {""}
    if len(steps) > len(sigmas):
        return "step", sorted(set(map(float, steps)))
    return "sigma" if sigmas else "", sorted(set(map(float, sigmas)))


def _places(bad: tuple[str, list[float]], grid: tuple[str, list[float]]) -> str:
    """Return which places of the grid are bad: every one, an end of it, or a list."""
    (axis, places), (_, every) = bad, grid
    if not axis:
        return "at the one point measured"
    if places == every:
        return f"every {axis}"
    if places == every[-len(places) :]:
        return f"{axis} >= {places[0]:.3g}"
    if places == every[: len(places)]:
        return f"{axis} <= {places[-1]:.3g}"
    return f"{axis} {', '.join(f'{place:.3g}' for place in places)}"
