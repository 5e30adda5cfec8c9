"""What a comparison with a reference found, and the words that say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.verdict import Verdict, curve_name, found_from, percent
from hessfig.errors import plain

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Comparison", "Verdict"]


@dataclass(frozen=True)
class Comparison:
    """The outcome, with what the reference is called.

    `points`: a row a sigma; `curves`: a row a curve, `shift` = mean log ratio; `ratios`: a row for two curves of a
    layer; `left_out`: how many numbers of which side and network are zero, underflowed, infinite or NaN, and where;
    `unmatched`: points of each side that the other has not; `aside`: rows of each side that are no norms of diagonal
    blocks of the plain variant; `batch_scale`: 0 if both sides measure one batch; `reasons`: what differs.
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
    verdict: Verdict
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
        """Return the verdict and what it rests on, in one line."""
        found = self.reasons or [_largest_shift(self.curves), _reach(self.curves)]
        return f"{self.verdict}: {'; '.join(filter(None, [_share(self), *found]))}"

    def notes(self) -> list[str]:
        """Return a line for what was compared with what, and one a side and network for numbers left out."""
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
        from rich import box
        from rich.table import Table
        from rich.text import Text

        title = Text(f"{self.sweep} against {self.reference}")
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in ("layer", "block", "part", "points", "|z| ≤ 3", "mean shift ± se", "z of the shift"):
            table.add_column(name, no_wrap=True)
        for row in self.curves.itertuples():
            table.add_row(*map(Text, _cells(row)))  # as Text, nothing in a name is markup
        return table

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
    if comparison.verdict == Verdict.undecided:
        return "no point has standard errors on both sides"
    return "" if comparison.reasons else "every curve is zero on both sides"


def _largest_shift(curves: pd.DataFrame) -> str:
    known = curves[curves["z"].notna()]
    if known.empty:
        return ""
    row = known.loc[known["z"].abs().idxmax()]
    return f"largest shift {percent(row['shift'])} (z {row['z']:+.1f}, {curve_name(row)})"


def _reach(curves: pd.DataFrame) -> str:
    """Return which shifts of a curve would have been called different: of the best known curve and of the worst."""
    found = found_from(curves).dropna()
    if found.empty:
        return ""
    best, worst = (percent(found.agg(which)).lstrip("+") for which in ("min", "max"))
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
