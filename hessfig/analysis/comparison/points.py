"""Compare a sweep with published values: point by point in standard errors, and curve by curve in percent."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.flaws import FLOAT32_FLOOR, count_flaws, flaws
from hessfig.analysis.comparison.outcome import Comparison, Verdict
from hessfig.analysis.comparison.reference import NothingToCompare, on_grid, read_reference
from hessfig.analysis.manifest import read_sweep
from hessfig.files import write_text
from hessfig.terms import Matrix, Part

CURVE = ["num_layers", "layer", "block", "part"]
POINT = [*CURVE, "sigma"]
ENOUGH_WITHIN_3 = 0.97
_MATRICES, _PARTS = [matrix.value for matrix in Matrix], [part.value for part in Part]


def run(folder: Path, reference: Path) -> Comparison:
    """Compare folder/table.csv with `reference`; write folder/comparison*.csv."""
    comparison = read(folder, reference)
    save(comparison, folder)
    return comparison


def read(folder: Path, reference: Path) -> Comparison:
    """Compare folder/table.csv with `reference` and write nothing."""
    table, architectures = read_sweep(folder)
    return compare(table, read_reference(reference, table, architectures))


def save(comparison: Comparison, folder: Path) -> None:
    """Write folder/comparison.csv (points) and folder/comparison_curves.csv."""
    write_text(folder / "comparison.csv", comparison.points.to_csv(index=False, lineterminator="\n"))
    write_text(folder / "comparison_curves.csv", comparison.curves.to_csv(index=False, lineterminator="\n"))


def compare(table: pd.DataFrame, reference: pd.DataFrame) -> Comparison:
    """Compare the plain variant's diagonal blocks with published values at the sigmas both have (to 1e-6).

    A point's z is the difference of the mean logs over the root of the summed squares of their standard
    errors, each from the spread over repeats. A point with a zero, underflowed, infinite or NaN number on either
    side has no mean and no z; such numbers are counted. Raises NothingToCompare when nothing overlaps.
    """
    ours, theirs = _ours(table), _with_logs(on_grid(reference, table["sigma"].unique()), floor=FLOAT32_FLOOR)
    both = _points(ours).merge(_points(theirs), on=POINT, suffixes=("", "_published"))
    if both.empty:
        raise NothingToCompare(
            "the reference and the table have no point in common",
            got=f"sigma {_span(reference)}, blocks {sorted(set(reference['block']))}",
            allowed=f"sigma {_span(table)} (equal to 1e-6), blocks {sorted(set(table['row']))}",
            remedy="compare the sweep the reference belongs to",
        )
    points = _with_z(both)
    curves = _curves(points, ours, theirs)
    share = float((points["z"].dropna().abs() <= 3).mean())
    named = {"ours": ours, "the published numbers": theirs}
    left_out = count_flaws(named, points.loc[~(points["zero"] & points["zero_published"]), POINT])
    return Comparison(
        str(table["sweep"].iloc[0]), points, curves, left_out, share, _verdict(points, share, curves)
    )


def _ours(table: pd.DataFrame) -> pd.DataFrame:
    plain = table[(table["variant"] == "") & (table["row"] == table["col"])]
    named = plain.rename(columns={"row": "block", "seed": "repeat", "frob": "value"})
    return _with_logs(named[[*POINT, "repeat", "value"]], floor=0.0)


def _with_logs(values: pd.DataFrame, *, floor: float) -> pd.DataFrame:
    flaw = flaws(values["value"], floor)
    return values.assign(flaw=flaw, log=np.log(values["value"].where(flaw == "")))


def _points(values: pd.DataFrame) -> pd.DataFrame:
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
    known = side.merge(compared, on=POINT)
    distance = (known["log"] - known["log_mean_published"]).rename("distance")
    averages = distance.groupby([known[name] for name in [*CURVE, "repeat"]]).mean()
    return averages.groupby(level=CURVE).agg(["mean", "sem"])


def _verdict(points: pd.DataFrame, share: float, curves: pd.DataFrame) -> Verdict:
    """Shifted: |z| beyond what the largest of so many curves reaches in 0.3 % of cases (3 for one curve)."""
    limit = NormalDist().inv_cdf(1 - 0.00135 / len(curves))
    shifted = (curves["z"].abs() > limit).any()
    if shifted or share < ENOUGH_WITHIN_3 or (curves["zero"] != curves["zero_published"]).any():
        return Verdict.differs
    return Verdict.agrees if points["z"].notna().any() or curves["zero"].all() else Verdict.undecided


def _span(frame: pd.DataFrame) -> str:
    return f"{frame['sigma'].min():g}..{frame['sigma'].max():g}"
