"""Compares two tables, or a table with published values, number by number."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from pandas import DataFrame, read_csv

from hessfig.analysis.manifest import read_run
from hessfig.analysis.table import read_table
from hessfig.errors import UserError, plain
from hessfig.files import read_small
from hessfig.record import FROBENIUS, MANIFEST, NUMBER, TABLE

FIRST_SEED = 1234  # of the published repeats: repeat r is the network of seed 1234 + r
# Relative: most norms of equal networks in float32, and all of them.
CLOSE, ROUNDED = (1e-6, 5e-4)
# Norms in float32 are roots of sums of squares: below the root of the smallest normal
# number, squares lose digits.
FLOAT32_FLOOR = float(np.sqrt(np.finfo(np.float32).tiny))
_PUBLISHED = {"block", "part", "layer", "sigma", "value"}
# Bytes of a file of published values; those of the paper have at most 8 million.
_LARGEST = 2**26
_ON_BOTH_SIDES = ["value", "error", "status"]


def numbers_at(place: Path) -> DataFrame:
    """Return the numbers of a run's folder, a table.csv, or a CSV file of published values, with the columns of NUMBER.

    Published values have the columns block, part, layer, sigma, value, and may have
    repeat and num_layers. They have no errors. Columns that a file lacks are left out,
    and do not identify its numbers.

    Raises UserError for a file that is none of these.
    """
    if place.is_dir():
        return read_run(place).table
    if place.name == TABLE and (place.parent / MANIFEST).is_file():
        return read_run(place.parent).table
    values = _columns(place)
    if set(NUMBER) <= set(values):
        return read_table(place)
    if set(values) >= _PUBLISHED:
        return _published(place, values)
    raise _unusable(place, f"the columns {', '.join(values)}")


def _columns(place: Path) -> DataFrame:
    try:
        return read_csv(
            io.BytesIO(read_small(place, _LARGEST)),
            keep_default_na=False,
            na_values=["nan"],
        )
    except (OSError, ValueError) as error:
        raise _unusable(place, f"{type(error).__name__}: {error}") from error


def _published(place: Path, values: DataFrame) -> DataFrame:
    try:
        names = values.columns.intersection(["layer", "sigma", "value", "repeat"])
        numeric = values.astype(dict.fromkeys(names, float))
    except ValueError as error:
        raise _unusable(place, str(error)) from error
    columns = {
        "row": numeric["block"],
        "col": numeric["block"],
        "row_layer": numeric["layer"],
    }
    if "repeat" in values:
        columns["seed"] = numeric["repeat"] + FIRST_SEED
    return numeric.assign(
        **columns, quantity=FROBENIUS, error=0.0, status="", dtype="float32"
    )


def _unusable(place: Path, got: str) -> UserError:
    return UserError(
        f"{place} is not a table to compare",
        got=plain(got),
        allowed=f"the folder of a run, a {TABLE}, or a CSV file with {', '.join(sorted(_PUBLISHED))}",
        remedy="name another file; pickles of the authors: python scripts/published_values.py FOLDER published",
    )


@dataclass(frozen=True)
class Comparison:
    """Numbers of two tables with equal places.

    Attributes
    ----------
    pairs : DataFrame
        A row for every number that both have: its place, `value`, `error` and `status`
        of the first table, those of the second with `_other`, `relative` (|a - b| /
        |b|, nan where `left_out`), and `errors`: |a - b| in standard errors of both.
    lost, more : int
        Numbers that only the first table has, and only the second.
    """

    pairs: DataFrame
    lost: int
    more: int

    @cached_property
    def judged(self) -> DataFrame:
        """The pairs that are compared: all but those that are `left_out`."""
        return self.pairs[self.pairs["left_out"] == ""]

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many of the `judged` numbers agree, by how closely; all lines include the first."""
        relative, errors = self.judged["relative"], self.judged["errors"]
        is_equal = self.judged["value"] == self.judged["value_other"]
        return {
            "equal to the bit": int(is_equal.sum()),
            f"within {CLOSE:g}": int((relative <= CLOSE).sum()),
            f"within {ROUNDED:g}": int((relative <= ROUNDED).sum()),
            "within 2 standard errors": int((errors <= 2).sum()),
            "within 3 standard errors": int((errors <= 3).sum()),
        }

    def different(self, tolerance: float) -> DataFrame:
        """Return the numbers that differ by more than `tolerance`, relative to the second table, or in their status.

        Published values have no status.
        """
        pairs = self.judged
        is_far = ~(pairs["relative"] <= tolerance)
        has_status = pairs["status_other"] != ""
        is_other = has_status & (pairs["status"] != pairs["status_other"])
        return pairs[is_far | is_other]


def compared(first: DataFrame, other: DataFrame) -> Comparison:
    """Pair the numbers of two tables by the columns of NUMBER that both have, sigma and step to nine digits.

    A number is `left_out` of what is called different where the second table holds a
    norm in float32 that overflowed or is below FLOAT32_FLOOR, or where both are not
    finite.

    Raises UserError for tables without a common number, and for several numbers of one
    place.
    """
    keys = [name for name in NUMBER if name in first and name in other]
    left, right = (_placed(table, keys) for table in (first, other))
    for table in (left, right):
        if table.duplicated(keys).any():
            raise UserError(
                "several numbers have the same place in one of the tables",
                got=f"places by {', '.join(keys)}",
                allowed="one number per place",
                remedy="add the columns that tell them apart, such as num_layers or repeat",
            )
    pairs = left.merge(right, on=keys, suffixes=("", "_other"))
    if pairs.empty:
        raise UserError(
            "the tables have no number in common",
            got=f"{len(left)} and {len(right)} numbers, compared by {', '.join(keys)}",
            allowed="tables of the same networks, seeds and values of sigma",
            remedy="published networks: hessfig run sweep=NAME state=published estimator=published",
        )
    return Comparison(_judged(pairs), len(left) - len(pairs), len(right) - len(pairs))


def _placed(table: DataFrame, keys: list[str]) -> DataFrame:
    """Return places, values, errors and statuses; sigma and step as texts of nine digits."""
    placed = table.assign(error=table["error"].fillna(0.0))
    for name in ("sigma", "step"):
        if name in keys:
            placed[name] = table[name].map("{:.9g}".format)
    return placed[[*keys, *_ON_BOTH_SIDES, "dtype"]]


def _judged(pairs: DataFrame) -> DataFrame:
    a = pairs["value"].to_numpy(float)
    b = pairs["value_other"].to_numpy(float)
    both_lost = ~np.isfinite(a) & ~np.isfinite(b)
    in_float32 = (pairs["dtype_other"] == "float32").to_numpy()
    is_small = in_float32 & (np.abs(b) < FLOAT32_FLOOR)
    is_large = in_float32 & np.isinf(b)
    left_out = np.select(
        [both_lost, is_large, is_small & (a != b)],
        ["not finite", "overflowed", "underflowed"],
        "",
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.abs(a - b)
        both = np.hypot(pairs["error"], pairs["error_other"])
        relative = np.where(a == b, 0.0, gap / np.abs(b))
        errors = np.where(a == b, 0.0, gap / both)
    relative = np.where(left_out == "", relative, np.nan)
    return pairs.assign(left_out=left_out, relative=relative, errors=errors)
