"""Compares a sweep's curves with published values, point by point."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hessfig.analysis.comparison import agreement
from hessfig.analysis.comparison.one_by_one import OneByOne, compare_numbers, is_published
from hessfig.analysis.comparison.paired import FLOAT32_FLOOR, Paired, compare_pairs
from hessfig.analysis.comparison.references import (
    NothingToCompare,
    Reference,
    comparable,
    read_reference,
    reference_file,
)
from hessfig.analysis.manifest import read_run
from hessfig.analysis.presented import terminal_table
from hessfig.errors import UserError, plain
from hessfig.register import publish
from hessfig.terms import Part, name_order

if TYPE_CHECKING:
    from rich.table import Table


_GROUP = ["side", "num_layers", "flaw"]
_KEPT = [*_GROUP, "count_", "sigma_low", "sigma_high"]


def with_logs(values: pd.DataFrame, *, floor: float) -> pd.DataFrame:
    """Return the values with their logs, nan where a flaw keeps one from being compared, and the flaw ("" if none)."""
    flaw_names = flaws(values["value"], floor)
    return values.assign(flaw=flaw_names, log=np.log(values["value"].where(flaw_names == "")))


def flaws(values: pd.Series, floor: float) -> pd.Series:
    """Return why each number cannot be compared; empty if it can."""
    tests = {
        "NaN": values.isna(),
        "infinite": np.isinf(values),
        "negative": values < 0,
        "zero": values == 0,
        "underflowed": values < floor,
    }
    return pd.Series(np.select(list(tests.values()), list(tests), ""), index=values.index)


def count_flaws(sides: Mapping[str, pd.DataFrame], compared: pd.DataFrame) -> pd.DataFrame:
    """Return how many numbers of each side, network and flaw there are at the points compared, and at which sigmas."""
    labelled = [values.merge(compared).assign(side=side) for side, values in sides.items()]
    everything = pd.concat(labelled, ignore_index=True)
    flawed = everything[everything["flaw"] != ""]
    counted = flawed.groupby(_GROUP, sort=False)["sigma"].agg(["size", "min", "max"]).reset_index()
    return counted.set_axis(_KEPT, axis=1)


POINT = [*agreement.CURVE, "sigma"]
SAME_SIGMA = 1e-6


def on_grid(values: pd.DataFrame, sigma: np.ndarray) -> pd.DataFrame:
    """Return the rows whose sigma is one of `sigma`, spelt as there. Raises UserError for two that become one."""
    grid = np.sort(sigma)
    if not len(grid):
        return values.iloc[:0]
    theirs = values["sigma"].to_numpy()
    above = np.clip(np.searchsorted(grid, theirs), 1, len(grid) - 1) if len(grid) > 1 else np.zeros(len(theirs), int)
    below = np.maximum(above - 1, 0)
    nearest = np.where(theirs - grid[below] < grid[above] - theirs, grid[below], grid[above])
    kept = values.assign(sigma=nearest)[np.isclose(nearest, theirs, rtol=SAME_SIGMA, atol=0)]
    if kept.duplicated([*POINT, "repeat"]).any():
        raise UserError(
            "the reference has two sigmas that are one to a millionth",
            got=f"{kept[kept.duplicated([*POINT, 'repeat'])]['sigma'].iloc[0]:g}",
            allowed="one number a repeat at each sigma",
            remedy="fix the file, or give another",
        )
    return kept


def averages(values: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard error of value and log over repeats; nan where a repeat cannot be compared."""
    points = (
        values.groupby(POINT)
        .agg(
            mean=("value", "mean"),
            sem=("value", "sem"),
            count=("value", "size"),
            largest=("value", "max"),
            usable=("log", "count"),
            log_mean=("log", "mean"),
            log_se=("log", "sem"),
        )
        .reset_index()
    )
    whole = points.pop("usable") == points["count"]
    averages = points[["mean", "sem", "log_mean", "log_se"]].where(whole)
    return points.assign(zero=points.pop("largest") < FLOAT32_FLOOR, **averages)


def compare_points(both: pd.DataFrame, between: agreement.Batches) -> pd.DataFrame:
    """Return the points with log ratio, its error including that of batches, p and z; nan if undefined."""
    spreads = [between.spread(row.num_layers, row.block, row.part) for row in both.itertuples()]
    shifts = agreement.difference_of_means(
        *(_sample(both, side) for side in ("", "_reference")),
        batch_sd=np.array([spread.point for spread in spreads]),
        batch_dof=np.array([spread.dof for spread in spreads]),
    )
    return both.assign(log_ratio=shifts.shift, log_ratio_se=shifts.error, dof=shifts.dof, p=shifts.p, z=shifts.z)


def _sample(both: pd.DataFrame, side: str) -> agreement.Sample:
    count, mean, error = (both[f"{name}{side}"].to_numpy(float) for name in ("count", "log_mean", "log_se"))
    return agreement.Sample(count, mean, error**2 * count * (count - 1))


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison, with the name of the reference.

    `points`: one row per sigma; `curves`: one row per curve, `shift` = mean log ratio; `ratios`: a row for two curves
    of a layer; `left_out`: how many numbers of which side and network are zero, underflowed, infinite or NaN, and
    where; `unmatched`: points of each side that the other has not; `aside`: rows of each side that are no norms of
    diagonal blocks of the plain variant; `batch_scale`: 0 if both sides measure one batch; `reasons`: what differs.
    """

    sweep: str
    reference: str
    points: pd.DataFrame
    curves: pd.DataFrame
    ratios: pd.DataFrame
    left_out: pd.DataFrame
    unmatched: tuple[int, int]
    aside: tuple[int, int]
    batch_scale: float
    verdict: agreement.AgreementVerdict
    reasons: list[str]

    @property
    def files(self) -> dict[str, pd.DataFrame]:
        """The tables to be written, by name."""
        frames = {"": self.points, "_curves": self.curves, "_ratios": self.ratios}
        return {f"comparison{name}.csv": frame for name, frame in frames.items()}

    @property
    def share_within_3(self) -> float:
        """Return the share of points whose difference is at most three standard errors."""
        return float((self.points["z"].dropna().abs() <= 3).mean())

    def sentence(self) -> str:
        """Return the verdict and its reasons in one line."""
        evidence = self.reasons or [_largest_shift(self.curves), _reach(self.curves)]
        return f"{self.verdict}: {'; '.join(filter(None, [_share(self), *evidence]))}"

    def notes(self) -> list[str]:
        """Return a line about what was compared, and one per side and network about omitted numbers."""
        ours, theirs = self.unmatched
        lines = [
            f"without a partner: {ours} points of ours, {theirs} of {self.reference}",
            "one batch, shared by both sides"
            if self.batch_scale == 0
            else "two batches: their spread is allowed for (data/batch_spread.csv)",
        ]
        if any(self.aside):
            lines.append(
                f"no norms of diagonal blocks of the plain variant, so not compared: {self.aside[0]} rows of ours, "
                f"{self.aside[1]} of {self.reference}"
            )
        return [*lines, *self._left_out_lines()]

    def rich_table(self) -> Table:
        """Return the curves as a table for a terminal."""
        from rich.text import Text

        heads = ("layer", "block", "part", "points", "|z| ≤ 3", "mean shift ± se", "z of the shift")
        rows = [list(map(Text, _cells(row))) for row in self.curves.itertuples()]  # as Text, no name is markup
        return terminal_table(heads, rows, title=Text(f"{self.sweep} against {self.reference}"))

    def _left_out_lines(self) -> list[str]:
        groups = self.left_out.groupby(["side", "num_layers"], sort=False)
        return [
            f"left out of {side} at n_layers={layers}: {', '.join(map(_flawed, rows.itertuples()))}"
            for (side, layers), rows in groups
        ]


def _share(comparison: Comparison) -> str:
    count = int(comparison.points["z"].notna().sum())
    if count:
        return f"{100 * comparison.share_within_3:.1f} % of {count} points within 3 standard errors"
    if comparison.verdict == agreement.AgreementVerdict.undecided:
        return "no point has standard errors on both sides"
    return "" if comparison.reasons else "every curve is zero on both sides"


def _largest_shift(curves: pd.DataFrame) -> str:
    known = curves[curves["z"].notna()]
    if known.empty:
        return ""
    row = known.loc[known["z"].abs().idxmax()]
    return f"largest shift {agreement.percent(row['shift'])} (z {row['z']:+.1f}, {agreement.curve_name(row)})"


def _reach(curves: pd.DataFrame) -> str:
    """Return the smallest detectable shifts: of the most precise curve and of the least precise one."""
    sizes = agreement.found_from(curves).dropna()
    if sizes.empty:
        return ""
    best, worst = (agreement.percent(sizes.agg(which)).lstrip("+") for which in ("min", "max"))
    return f"a shift of {best} (best known curve) to {worst} (worst) would have been found"


def _flawed(row: Any) -> str:
    return f"{row.count_} {row.flaw} (sigma {row.sigma_low:.3g} to {row.sigma_high:.3g})"


def _cells(row: Any) -> list[str]:
    names = [f"{row.layer}/{row.num_layers}", plain(row.block), row.part]
    if row.zero or row.zero_reference:
        both = row.zero and row.zero_reference
        return [*names, "", "", "both are zero" if both else "one side is zero", ""]
    if not row.num_points:
        return [*names, "0", "", "left out", ""]
    shift = f"{100 * np.expm1(row.shift):+.1f} ± {100 * row.shift_se:.1f} %"
    return [*names, str(row.num_points), f"{100 * row.share_within_3:.0f} %", shift, f"{row.z:+.1f}"]


_PARTS = [part.value for part in Part]


def compare_folder(folder: Path, reference: Path) -> Comparison | Paired | OneByOne:
    """Compare folder/table.csv with `reference` and write nothing; number by number if both have the same networks."""
    run = read_run(folder)
    path = reference_file(reference, _checked_name(run.table))
    values = read_reference(path, run.table)
    if values.run is not None:
        paired = compare_pairs(run, values.run, values.config, reference=values.name)
        if paired is not None:
            return paired
    elif is_published(run.config):
        ours = comparable(run.table)
        theirs = on_grid(values.values, ours["sigma"].unique())
        return compare_numbers(ours, theirs, run.config, sweep=_checked_name(run.table), reference=values.name)
    task = (values.config or {}).get("task")
    return compare(run.table, values, agreement.batches(run.architectures, run.config.get("task"), task))


def save_comparison(comparison: Comparison | Paired | OneByOne, folder: Path) -> list[Path]:
    """Write the files of a comparison next to the table; return their paths."""
    texts = {name: frame.to_csv(index=False, lineterminator="\n") for name, frame in comparison.files.items()}
    return publish({folder / name: text for name, text in texts.items()}, "comparison")


def compare(table: pd.DataFrame, reference: Reference, between: agreement.Batches) -> Comparison:
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
    wides = (agreement.logs_by_curve(ours, used), agreement.logs_by_curve(theirs, used))
    curves, ratios = _curves(points, agreement.curve_shifts(*wides, between)), agreement.ratio_shifts(*wides, between)
    left_out = count_flaws(
        {"ours": ours, reference.name: theirs}, points.loc[~(points["zero"] & points["zero_reference"]), POINT]
    )
    unmatched = (len(mine) - len(both), len(reference.values[POINT].drop_duplicates()) - len(both))
    aside = (len(table) - len(ours), reference.aside)
    verdict, reasons = agreement.agreement_verdict(points, curves, ratios)
    return Comparison(
        name, reference.name, points, curves, ratios, left_out, unmatched, aside, between.scale, verdict, reasons
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
        .groupby(agreement.CURVE)
        .agg(
            num_points=("z", "count"),
            share_within_3=("within", "mean"),
            zero=("zero", "all"),
            zero_reference=("zero_reference", "all"),
        )
        .reset_index()
    )
    curves = summary.merge(shifts, on=agreement.CURVE, how="left")
    ranks = {"block": name_order(curves["block"]), "part": _PARTS.index}
    return curves.sort_values(agreement.CURVE, key=lambda c: c.map(ranks[c.name]) if c.name in ranks else c)


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
