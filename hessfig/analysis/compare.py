"""Compare a sweep with published values: point by point in standard errors, and curve by curve in percent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hessfig.analysis.atomic import write_text
from hessfig.analysis.manifest import read_sweep
from hessfig.analysis.reference import on_grid, read_reference
from hessfig.errors import UserError
from hessfig.terms import Matrix, Part

if TYPE_CHECKING:
    from rich.table import Table

CURVE = ["num_layers", "layer", "block", "part"]
POINT = [*CURVE, "sigma"]
ENOUGH_WITHIN_3 = 0.97
_MATRICES, _PARTS = [matrix.value for matrix in Matrix], [part.value for part in Part]


class Verdict(StrEnum):
    """Whether two sets of values could come from one distribution.

    agrees    at least 97 % of the points lie within 3 standard errors and no curve is shifted
    differs   otherwise, or a curve vanishes on one side only
    """

    agrees = "agrees"
    differs = "differs"


@dataclass(frozen=True)
class Comparison:
    """The outcome. `points`: a row per sigma; `curves`: a row per curve, `shift` = mean log ratio."""

    sweep: str
    points: pd.DataFrame
    curves: pd.DataFrame
    share_within_3: float
    verdict: Verdict

    def rich_table(self) -> Table:
        """Return the curves as a table for a terminal."""
        from rich import box
        from rich.table import Table

        title = f"{self.sweep} against the published values"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in ("layer", "block", "part", "points", "|z| ≤ 3", "mean shift ± se", "z of the shift"):
            table.add_column(name, no_wrap=True)
        for row in self.curves.itertuples():
            table.add_row(*_cells(row))
        return table


def run(folder: Path, reference: Path) -> Comparison:
    """Compare folder/table.csv with `reference`; write folder/comparison*.csv."""
    table, architectures = read_sweep(folder)
    comparison = compare(table, read_reference(reference, table, architectures))
    write_text(folder / "comparison.csv", comparison.points.to_csv(index=False, lineterminator="\n"))
    write_text(folder / "comparison_curves.csv", comparison.curves.to_csv(index=False, lineterminator="\n"))
    return comparison


def compare(table: pd.DataFrame, reference: pd.DataFrame) -> Comparison:
    """Compare the plain variant's diagonal blocks with published values at the sigmas both have (to 1e-6).

    A point's z is the difference of the mean logs over the root of the summed squares of their standard
    errors, each from the spread over repeats. Points with a zero or a non-finite value on either side carry
    no z. Raises UserError when nothing overlaps.
    """
    ours, theirs = _ours(table), on_grid(reference, table["sigma"].unique())
    both = _points(ours).merge(_points(theirs), on=POINT, suffixes=("", "_published"))
    if both.empty:
        raise UserError(
            "the reference and the table have no point in common",
            got=f"sigma {_span(reference)}, blocks {sorted(set(reference['block']))}",
            allowed=f"sigma {_span(table)} (equal to 1e-6), blocks {sorted(set(table['row']))}",
            remedy="compare the sweep the reference belongs to",
        )
    points = _with_z(both)
    curves = _curves(points, ours, theirs)
    share = float((points["z"].dropna().abs() <= 3).mean())
    return Comparison(str(table["sweep"].iloc[0]), points, curves, share, _verdict(share, curves))


def _ours(table: pd.DataFrame) -> pd.DataFrame:
    plain = table[(table["variant"] == "") & (table["row"] == table["col"])]
    return plain.rename(columns={"row": "block", "seed": "repeat", "frob": "value"})[
        [*POINT, "repeat", "value"]
    ]


def _points(values: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard error of log value over repeats; nan where a value is zero or not finite."""
    points = (
        _with_logs(values)
        .groupby(POINT)
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
    logs = points[["log_mean", "log_se"]].where(whole)
    return points.assign(zero=points.pop("largest") == 0, log_mean=logs["log_mean"], log_se=logs["log_se"])


def _with_logs(values: pd.DataFrame) -> pd.DataFrame:
    usable = np.isfinite(values["value"]) & (values["value"] > 0)
    return values.assign(log=np.log(values["value"].where(usable)))


def _with_z(both: pd.DataFrame) -> pd.DataFrame:
    difference = both["log_mean"] - both["log_mean_published"]
    error = np.hypot(both["log_se"], both["log_se_published"])
    return both.assign(log_ratio=difference, log_ratio_se=error, z=difference / error.where(error > 0))


def _curves(points: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return share within 3 and mean shift of every curve.

    Points of one repeat share their weights along sigma: so each repeat is first averaged over sigma (its logs minus
    the published mean logs), and the standard error comes from the spread of these averages over repeats.
    """
    within = (points["z"].abs() <= 3).where(points["z"].notna())
    summary = (
        points.assign(within=within.astype(float))
        .groupby(CURVE)
        .agg(
            num_points=("z", "count"),
            share_within_3=("within", "mean"),
            zero=("zero", "all"),
            zero_published=("zero_published", "all"),
        )
    )
    mine, published = (_repeat_averages(side, points) for side in (ours, theirs))
    shift, error = mine["mean"] - published["mean"], np.hypot(mine["sem"], published["sem"])
    curves = summary.assign(shift=shift, shift_se=error, z=shift / error.where(error > 0)).reset_index()
    order = [*_MATRICES, *_PARTS].index
    return curves.sort_values(CURVE, key=lambda c: c.map(order) if c.name in ("block", "part") else c)


def _repeat_averages(side: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Return mean and sem over repeats of each repeat's average log distance from the published mean curve."""
    compared = points.loc[points["z"].notna(), [*POINT, "log_mean_published"]]
    known = _with_logs(side).merge(compared, on=POINT)
    distance = (known["log"] - known["log_mean_published"]).rename("distance")
    averages = distance.groupby([known[name] for name in [*CURVE, "repeat"]]).mean()
    return averages.groupby(level=CURVE).agg(["mean", "sem"])


def _verdict(share: float, curves: pd.DataFrame) -> Verdict:
    """Shifted: |z| beyond what the largest of so many curves reaches in 0.3 % of cases (3 for one curve)."""
    limit = NormalDist().inv_cdf(1 - 0.00135 / len(curves))
    shifted = (curves["z"].abs() > limit).any()
    one_sided = (curves["zero"] != curves["zero_published"]).any()
    return (
        Verdict.differs
        if share < ENOUGH_WITHIN_3 or np.isnan(share) or shifted or one_sided
        else Verdict.agrees
    )


def _span(frame: pd.DataFrame) -> str:
    return f"{frame['sigma'].min():g}..{frame['sigma'].max():g}"


def _cells(row: Any) -> list[str]:
    names = [f"{row.layer}/{row.num_layers}", row.block, row.part]
    if row.zero or row.zero_published:
        return [
            *names,
            "",
            "",
            "both are zero" if row.zero and row.zero_published else "one side is zero",
            "",
        ]
    shift = f"{100 * np.expm1(row.shift):+.1f} ± {100 * row.shift_se:.1f} %"
    return [*names, str(row.num_points), f"{100 * row.share_within_3:.0f} %", shift, f"{row.z:+.1f}"]
