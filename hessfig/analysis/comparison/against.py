"""A sweep against a reference: point by point, curve by curve, and the ratios of curves of one layer."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from hessfig.analysis.comparison.batch_spread import Batches, batches
from hessfig.analysis.comparison.flaws import FLOAT32_FLOOR, count_flaws, with_logs
from hessfig.analysis.comparison.number_by_number import compare_pairs
from hessfig.analysis.comparison.outcome import Comparison
from hessfig.analysis.comparison.paired import Paired
from hessfig.analysis.comparison.points import POINT, averages, compare_points, on_grid
from hessfig.analysis.comparison.references.read import (
    NothingToCompare,
    Reference,
    comparable,
    other_run,
    read_reference,
)
from hessfig.analysis.comparison.shifts import CURVE, curve_shifts, ratio_shifts, wide
from hessfig.analysis.comparison.verdict import judge
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError, plain
from hessfig.files import write_text
from hessfig.terms import Part, name_order

_PARTS = [part.value for part in Part]


def run(folder: Path, reference: Path) -> Comparison | Paired:
    """Compare folder/table.csv with `reference`; write folder/comparison*.csv, or folder/paired*.csv."""
    comparison = read(folder, reference)
    save(comparison, folder)
    return comparison


def read(folder: Path, reference: Path) -> Comparison | Paired:
    """Compare folder/table.csv with `reference` and write nothing; number by number if both ran the same networks."""
    run = read_run(folder)
    _checked_name(run.table)
    if (other := other_run(reference)) is not None:
        named = f"the run in {plain(reference.parent)}"
        if (paired := compare_pairs(run, *other, reference=named)) is not None:
            return paired
    found = read_reference(reference, run.table, run.architectures)
    return compare(run.table, found, batches(run.architectures, run.config.get("task"), found.task))


def save(comparison: Comparison | Paired, folder: Path) -> list[Path]:
    """Write the files of a comparison beside the table; return their paths."""
    return [
        write_text(folder / name, frame.to_csv(index=False, lineterminator="\n"))
        for name, frame in comparison.files.items()
    ]


def compare(table: pd.DataFrame, reference: Reference, between: Batches) -> Comparison:
    """Compare the plain variant's diagonal blocks with a reference at the sigmas both have (to 1e-6).

    A point's z is the difference of the mean logs in standard errors, from the spread over repeats and between
    batches. A point with a zero, underflowed, infinite or NaN number on either side has no mean and no z; such
    numbers are counted. Raises NothingToCompare when nothing overlaps.
    """
    name = _checked_name(table)
    ours = with_logs(comparable(table), floor=0.0)
    theirs = with_logs(on_grid(reference.values, ours["sigma"].unique()), floor=FLOAT32_FLOOR)
    mine, other = averages(ours), averages(theirs)
    both = mine.merge(other, on=POINT, suffixes=("", "_reference"))
    if both.empty:
        raise _nothing_in_common(reference.values, ours)
    points = compare_points(both, between)
    used = points.loc[points["z"].notna(), POINT]
    wides = (wide(ours, used), wide(theirs, used))
    curves, ratios = _curves(points, curve_shifts(*wides, between)), ratio_shifts(*wides, between)
    left_out = count_flaws(
        {"ours": ours, reference.name: theirs},
        points.loc[~(points["zero"] & points["zero_reference"]), POINT],
    )
    unmatched = (len(mine) - len(both), len(reference.values[POINT].drop_duplicates()) - len(both))
    aside = (len(table) - len(ours), reference.aside)
    verdict, reasons = judge(points, curves, ratios)
    return Comparison(
        name,
        reference.name,
        points,
        curves,
        ratios,
        left_out,
        unmatched,
        aside,
        between.scale,
        verdict,
        reasons,
    )


def _checked_name(table: pd.DataFrame) -> str:
    """Return the sweep's name, by which files are named. Raises UserError for a path or a command."""
    name = str(table["sweep"].iloc[0])
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name) or len(name) > 100:
        raise UserError(
            "the table's sweep is no name",
            got=plain(name),
            allowed="letters, digits, '.', '_' and '-', not beginning with '.' or '-'",
            remedy="make the table again with `hessfig run`",
        )
    return name


def _curves(points: pd.DataFrame, shifts: pd.DataFrame) -> pd.DataFrame:
    """Return the shift of every curve, with how many of its points lie within three standard errors."""
    within = (points["z"].abs() <= 3).where(points["z"].notna()).astype(float)
    summary = (
        points.assign(within=within)
        .groupby(CURVE)
        .agg(
            num_points=("z", "count"),
            share_within_3=("within", "mean"),
            zero=("zero", "all"),
            zero_reference=("zero_reference", "all"),
        )
        .reset_index()
    )
    curves = summary.merge(shifts, on=CURVE, how="left")
    ranks = {"block": name_order(curves["block"]), "part": _PARTS.index}
    return curves.sort_values(CURVE, key=lambda c: c.map(ranks[c.name]) if c.name in ranks else c)


def _nothing_in_common(values: pd.DataFrame, ours: pd.DataFrame) -> NothingToCompare:
    return NothingToCompare(
        "the reference and the table have no point in common",
        got=_described(values),
        allowed=f"{_described(ours)} (sigma equal to 1e-6)" if len(ours) else "norms of diagonal blocks",
        remedy="compare the sweep the reference belongs to",
    )


def _described(frame: pd.DataFrame) -> str:
    blocks = sorted(set(frame["block"]))
    more = f" and {len(blocks) - 8} more" * (len(blocks) > 8)
    return f"sigma {frame['sigma'].min():g}..{frame['sigma'].max():g}, blocks {plain(', '.join(blocks[:8]))}{more}"
