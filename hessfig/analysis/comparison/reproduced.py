"""Compares a table and its arrays with a repetition, number by number, and the machines and versions of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hessfig.analysis.arrays import ANY, HESSIAN, Entry, Stored, entries_of, read
from hessfig.analysis.comparison.paired import DIFFERENT as SHIFTED
from hessfig.analysis.comparison.paired import ROUNDING, Paired, compare_pairs, curve_words, placed
from hessfig.analysis.manifest import RecordedRun
from hessfig.analysis.presented import terminal_table
from hessfig.errors import UserError, first_few, plain
from hessfig.record import NUMBER

if TYPE_CHECKING:
    from rich.table import Table

IDENTICAL, ROUNDED, WITHIN = "equal to the bit", "within 1e-9", "within stated errors"
DIFFERENT, MISSING = "different", "missing"
VERDICTS = (IDENTICAL, ROUNDED, WITHIN, DIFFERENT, MISSING)
_OF_A_SIZE, _NEGLIGIBLE = 100.0, 1e-6  # residual norms: their ratio, and their size beside the eigenvalue's
_WRITTEN = ["value", "error", "num_probes", "estimator", "dtype", "status"]
# Entries of a manifest about machine and software, in words.
_MADE_BY = {
    **{"hessfig": "hessfig", "git_commit": "commit", "versions.torch": "torch", "versions.numpy": "numpy"},
    **{"python": "Python", "platform": "platform", "cpu": "CPU", "device": "device"},
    **{"threads_per_worker": "threads per worker", "byte_order": "byte order"},
}


@dataclass(frozen=True)
class Reproduction:
    """Two tables of the same settings, number by number.

    `rows` has one row per number of the first table: both values, errors and statuses (`_again` for the second), the
    relative `difference`, the absolute difference that is `allowed`, the `verdict`, one of VERDICTS, and what else
    `departs` from the second: how the number was measured, or its error. `extra` counts the numbers that only the
    second table has (of a repetition they are rows of their own, and missing); `paired` holds the numbers by curve.
    """

    rows: pd.DataFrame
    paired: Paired
    extra: int

    @property
    def is_reproduced(self) -> bool:
        """Whether no number is different or missing, and no curve as a whole is shifted beyond chance."""
        return not (self.counts[DIFFERENT] or self.counts[MISSING] or self.shifted)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of numbers per verdict."""
        counted = self.rows["verdict"].value_counts()
        return {verdict: int(counted.get(verdict, 0)) for verdict in VERDICTS}

    @cached_property
    def shifted(self) -> list[str]:
        """Names of curves whose numbers lie within their errors, but not around the others: a shift beyond chance."""
        curves = self.paired.curves
        return [
            curve_words(row) for _, row in curves[curves["verdict"] == SHIFTED].iterrows() if not row["num_outside"]
        ]

    def csv(self) -> str:
        """Return the rows as CSV, numbers with all their digits."""
        return str(self.rows.to_csv(index=False, lineterminator="\n"))

    def sentence(self, beside: Sequence[str] = ()) -> str:
        """Return in one line whether the table was reproduced, and why.

        `beside` says what else of a bundle was not.
        """
        counted = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items() if count)
        word = "reproduced" if self.is_reproduced and not beside else "not reproduced"
        return "; ".join([f"{word}: of {len(self.rows)} numbers {counted}", *beside])

    def notes(self) -> list[str]:
        """Return a line for the largest difference, for curves that are shifted, and for numbers without a partner."""
        worst = self.rows.loc[self.rows["difference"].abs().fillna(0.0).idxmax()]
        lines, departs = [], self.rows["departs"][self.rows["departs"] != ""]
        if len(departs):
            lines.append(f"not as measured again, in {len(departs)} rows: {first_few(list(departs.unique()), most=3)}")
        if unplanned := int((self.rows["verdict"].eq(MISSING) & self.rows["value"].isna()).sum()):
            lines.append(f"{unplanned} numbers that the plan has are not in the table")
        if worst["difference"] != 0:
            known = [name for name in ("sigma", "step", "seed") if pd.notna(worst[name])]
            place = ", ".join(f"{name}={worst[name]:.9g}" for name in known)
            lines.append(f"largest difference {worst['difference']:+.3g} (relative): {curve_words(worst)}, {place}")
        if self.shifted:
            lines.append(f"shifted as a whole, beyond chance: {first_few(self.shifted, most=3)}")
        return [*lines, *([f"{self.extra} numbers are in the second table only"] if self.extra else [])]

    def table(self) -> Table:
        """Return the verdicts by quantity as a table for a terminal."""
        counted = pd.crosstab(self.rows["quantity"], self.rows["verdict"]).reindex(columns=VERDICTS, fill_value=0)
        largest = self.rows.groupby("quantity")["difference"].agg(lambda column: column.abs().max())
        rows = [[plain(name), *map(str, counted.loc[name]), f"{largest[name]:.2g}"] for name in counted.index]
        return terminal_table(["quantity", *VERDICTS, "largest difference"], rows)


def compare_repeat(first: RecordedRun, second: RecordedRun, *, is_repeat: bool) -> Reproduction:
    """Compare a table with its repetition, number by number (a place is a sigma or step to nine digits).

    A number is equal to the bit; or within 1e-9 of its size; or, where a stated error covers it, within both errors
    (see compare_pairs; single precision counts as an error of 1e-3 of the number, and of all of it below 1e-19); or
    else different, as is a number whose status differs. Exact numbers, and numbers from the same test vectors, have no
    error that covers a difference. Without `is_repeat` both manifests (or hashes of cells) must say that the settings
    are the same.

    A repetition (`is_repeat`) has the same test vectors, and must have everything else that the plan says: a number is
    different, too, where estimator, number of probes, type or error are not those of the second table, and missing
    where the first table has not got it.

    Raises UserError for tables that have no number in common, or are of different networks.
    """
    paired = compare_pairs(first, second.table, second.config or None, reference="the second", is_repeat=is_repeat)
    if paired is None:
        raise UserError(
            "these tables do not hold the same numbers",
            got="other networks, batches, seeds or places (or settings that are in no manifest)",
            allowed="two tables of one sweep, with their manifests",
            remedy="`hessfig compare` compares means of different seeds",
        )
    points = paired.points.rename(columns={f"{name}_reference": f"{name}_again" for name in _WRITTEN})
    departs = _departures(paired.points) if is_repeat else ""
    points = points.rename(columns={"relative": "difference"}).assign(verdict=_verdicts(paired.points), departs=departs)
    points.loc[points["departs"] != "", "verdict"] = DIFFERENT
    kept = [*NUMBER, *(both for name in _WRITTEN for both in (name, f"{name}_again"))]
    matched = points[[*kept, "difference", "allowed", "z", "verdict", "departs"]]
    lost, more = _without_partner(first.table, second.table), _without_partner(second.table, first.table)
    unplanned = more.rename(columns={name: f"{name}_again" for name in _WRITTEN}) if is_repeat else more[:0]
    alone = [others.assign(verdict=MISSING, departs="") for others in (lost, unplanned) if len(others)]
    rows = pd.concat([matched, *alone], ignore_index=True) if alone else matched
    return Reproduction(rows, paired, extra=0 if is_repeat else len(more))


def _verdicts(points: pd.DataFrame) -> np.ndarray:
    same_status = points["status"] == points["status_reference"]
    covered = (points["value"] - points["value_reference"]).abs() <= points["allowed"]
    tests = {
        IDENTICAL: points["is_identical"],
        ROUNDED: same_status & (points["relative"].abs() <= ROUNDING["float64"]),
        WITHIN: same_status & covered,
    }
    return np.select(list(tests.values()), list(tests), DIFFERENT)


def _departures(points: pd.DataFrame) -> list[str]:
    """Return in words, for every number, which columns other than the value differ in the repetition."""
    words = pd.Series("", index=points.index)
    for name in ("estimator", "num_probes", "dtype", "status"):
        first, again = (points[both].map(str) for both in (name, f"{name}_reference"))
        words = words.mask(first != again, words + f" {name} " + first + ", again " + again + ";")
    far = ~_have_one_error(points)
    errors = [points[name].map("{:.3g}".format) for name in ("error", "error_reference")]
    words = words.mask(far, words + " error " + errors[0] + ", again " + errors[1] + ";")
    return [plain(text.strip(" ;")) for text in words]


def _have_one_error(points: pd.DataFrame) -> pd.Series:
    """Whether the stated errors are equal to rounding.

    Residual norms of eigenvalues, which rounding changes by orders of magnitude, must be of a size, or both negligible.
    """
    a, b = points["error"], points["error_reference"]
    size = points[["value", "value_reference", "error", "error_reference"]].abs().max(axis=1)
    is_residual = points["quantity"].str.contains("eigenvalue") & (points["num_probes_reference"] == 0)
    of_a_size = (a <= _OF_A_SIZE * b) & (b <= _OF_A_SIZE * a)
    return (
        (a == b)
        | (a.isna() & b.isna())
        | ((a - b).abs() <= points["rounding"] * size)
        | (is_residual & (a > 0) & (b > 0) & (of_a_size | ((a - b).abs() <= _NEGLIGIBLE * size)))
    )


def _without_partner(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the first table without a number in the second."""
    keys = [f"{name}_text" if name in ("sigma", "step") else name for name in NUMBER]
    places = placed(second)[keys].drop_duplicates()
    merged = placed(first).merge(places, on=keys, how="left", indicator=True)
    return merged.loc[merged["_merge"] == "left_only", [*NUMBER, *_WRITTEN]]


def machines(first: Mapping[str, Any], second: Mapping[str, Any]) -> Table:
    """Return machine and versions of two manifests as a table for a terminal, with differences marked."""
    rows = []
    for key, words in _MADE_BY.items():
        before, after = (_said(manifest, key) for manifest in (first, second))
        if before or after:
            differs = "differs" if before and after and before != after else ""
            rows.append([words, before or "unknown", after or "unknown", differs])
    return terminal_table(["measured with", "the table", "again", ""], rows)


def _said(manifest: Mapping[str, Any], key: str) -> str:
    entry: Any = manifest
    for name in key.split("."):
        entry = entry.get(name) if isinstance(entry, Mapping) else None
    return "" if entry is None else plain(entry)


# Differences relative to the largest entry: rounding in float64, and of what is stored in float32.
_ROUNDING = {"float64": 1e-9, "float32": 1e-6}
_VECTORS, _OF_VECTORS = "vectors", 1e-3  # eigenvectors: up to their signs, and by how much rounding turns them
_LABEL = "label"
_NAMED = ("variant", "num_layers", "sigma", "step", "seed", "quantity")


def unequal_arrays(first: Path, second: Path) -> tuple[int, list[str]]:
    """Return the number of files of arrays in two sweeps' folders, and in words those that differ.

    Raises UserError for a file that is damaged, or not the one of its manifest.
    """
    ours, theirs = ({_place(entry): entry for entry in entries_of(folder)} for folder in (first, second))
    both = ours.keys() & theirs.keys()
    other = [place for place in both if not _are_equal(_content(first, ours[place]), _content(second, theirs[place]))]
    lost = [(*place, "missing") for place in ours.keys() ^ theirs.keys()]
    return len(ours.keys() | theirs.keys()), [", ".join(place) for place in sorted([*other, *lost])]


def _place(entry: Entry) -> tuple[str, ...]:
    """Return what identifies a file of arrays; a place is a sigma to nine digits."""
    return tuple(f"{name}={_text(entry[name])}" for name in _NAMED if entry[name] not in ("", None))


def _text(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _content(folder: Path, entry: Entry) -> dict[str, np.ndarray]:
    return read(folder, entry, replace(ANY, large=HESSIAN), _every)


def _every(stored: Stored) -> dict[str, np.ndarray]:
    return {name: np.asarray(stored[name]) for name in stored if name != _LABEL}


def _are_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    return ours.keys() == theirs.keys() and all(_is_equal(name, ours[name], theirs[name]) for name in ours)


def _is_equal(name: str, a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f" or not a.size:
        return bool(np.array_equal(a, b))
    if name.startswith(_VECTORS):
        a, b = np.abs(a), np.abs(b)
    size = max(np.abs(b[np.isfinite(b)]).max(initial=0.0), np.finfo(b.dtype).tiny)
    most = _OF_VECTORS if name.startswith(_VECTORS) else _ROUNDING.get(a.dtype.name, _ROUNDING["float32"])
    return bool(np.allclose(a, b, rtol=0.0, atol=most * size, equal_nan=True))
