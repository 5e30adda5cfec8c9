"""Whether two sets of values could come from one distribution, by a rule with a stated rate of error."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.student import smallest_found
from hessfig.errors import plain

# Of 1000 comparisons of equals, how many each family of tests calls different (Bonferroni; in all 20).
CURVES, RATIOS, POINTS = 0.012, 0.006, 0.002
TOO_COARSE = np.log(2.0)


class Verdict(StrEnum):
    """Whether two sets of values could come from one distribution.

    differs     some curve's shift, some ratio of two curves of a layer, or some point lies outside what chance and
                the batches explain, or a curve is zero on one side only; 2 of 100 comparisons of equals, at most
    agrees      nothing does, and some curve would have shown a factor of two
    undecided   nothing does, but no curve would have: too few repeats, or nothing but numbers left out
    """

    agrees = "agrees"
    differs = "differs"
    undecided = "undecided"


def judge(points: pd.DataFrame, curves: pd.DataFrame, ratios: pd.DataFrame) -> tuple[Verdict, list[str]]:
    """Return the verdict and what is outside, a line a kind."""
    reasons = list(_outside(points, curves, ratios))
    if reasons:
        return Verdict.differs, reasons
    found = found_from(curves)
    enough = curves["zero"].all() if found.isna().all() else found.min() <= TOO_COARSE
    return (Verdict.agrees if enough else Verdict.undecided), []


def found_from(curves: pd.DataFrame) -> pd.Series:
    """Return the smallest shift of each curve that would be called different, as a log; nan where there is no test."""
    level = CURVES / max(int(curves["p"].notna().sum()), 1)
    return pd.Series(
        smallest_found(curves["shift_se"].to_numpy(), curves["dof"].to_numpy(), level), curves.index
    )


def curve_name(row: pd.Series) -> str:
    """Return 'H_o of W_Q in layer 1/1'."""
    return f"{row['part']} of {plain(row['block'])} in layer {row['layer']}/{row['num_layers']}"


def percent(log: float) -> str:
    """Return a log ratio as '+4.1 %', or as a factor where percents are hard to read."""
    return f"{100 * np.expm1(log):+.1f} %" if abs(log) < TOO_COARSE else f"a factor of {np.exp(log):.3g}"


def _outside(points: pd.DataFrame, curves: pd.DataFrame, ratios: pd.DataFrame) -> Iterator[str]:
    for rows, rate, what, size in (
        (curves, CURVES, "curve", "shift"),
        (ratios, RATIOS, "ratio", "shift"),
        (points, POINTS, "point", "log_ratio"),
    ):
        beyond = rows[rows["p"] < rate / max(int(rows["p"].notna().sum()), 1)]
        if len(beyond):
            row = beyond.loc[beyond["z"].abs().idxmax()]
            many = f"{len(beyond)} {what}s" if len(beyond) > 1 else f"1 {what}"
            yield f"{many} outside, the worst {percent(row[size])} (z {row['z']:+.1f}, {_which(row, what)})"
    one_sided = curves[curves["zero"] != curves["zero_reference"]]
    if len(one_sided):
        yield f"zero on one side only: {', '.join(curve_name(row) for _, row in one_sided.iterrows())}"


def _which(row: pd.Series, what: str) -> str:
    if what == "ratio":
        return f"{curve_name(row)} over {row['over_part']} of {plain(row['over_block'])}"
    return curve_name(row) + (f" at sigma {row['sigma']:.3g}" if what == "point" else "")
