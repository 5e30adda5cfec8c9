"""What a comparison with published values found, and the words that say it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from rich.table import Table


class Verdict(StrEnum):
    """Whether two sets of values could come from one distribution.

    agrees      at least 97 % of the points lie within 3 standard errors and no curve is shifted
    differs     otherwise, or a curve is zero on one side only
    undecided   no point has a standard error on both sides (one repeat, or nothing but numbers left out)
    """

    agrees = "agrees"
    differs = "differs"
    undecided = "undecided"


@dataclass(frozen=True)
class Comparison:
    """The outcome. `points`: a row per sigma; `curves`: a row per curve, `shift` = mean log ratio.

    `left_out`: how many numbers of which side and network are zero, underflowed, infinite or NaN, and where.
    """

    sweep: str
    points: pd.DataFrame
    curves: pd.DataFrame
    left_out: pd.DataFrame
    share_within_3: float
    verdict: Verdict

    def sentence(self) -> str:
        """Return the verdict and what it rests on, in one line."""
        evidence = [_share(self), _largest_shift(self.curves), _one_sided(self.curves)]
        return f"{self.verdict}: {'; '.join(filter(None, evidence))}"

    def left_out_lines(self) -> list[str]:
        """Return one line for each side and network with numbers that were not compared."""
        groups = self.left_out.groupby(["side", "num_layers"], sort=False)
        return [
            f"left out of {side} at n_layers={layers}: {', '.join(map(_flawed, rows.itertuples()))}"
            for (side, layers), rows in groups
        ]

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


def _share(comparison: Comparison) -> str:
    count = int(comparison.points["z"].notna().sum())
    if count:
        return f"{100 * comparison.share_within_3:.1f} % of {count} points within 3 standard errors"
    zeros = comparison.verdict != Verdict.undecided
    return "every curve is zero on both sides" if zeros else "no point has standard errors on both sides"


def _largest_shift(curves: pd.DataFrame) -> str:
    known = curves[curves["z"].notna()]
    if known.empty:
        return ""
    row = known.loc[known["z"].abs().idxmax()]
    return f"largest shift {100 * np.expm1(row['shift']):+.1f} % (z {row['z']:+.1f}, {_name(row)})"


def _one_sided(curves: pd.DataFrame) -> str:
    rows = curves[curves["zero"] != curves["zero_published"]]
    return (
        f"zero on one side only: {', '.join(_name(row) for _, row in rows.iterrows())}" if len(rows) else ""
    )


def _name(row: pd.Series) -> str:
    return f"{row['part']} of {row['block']} in layer {row['layer']}/{row['num_layers']}"


def _flawed(row: Any) -> str:
    return f"{row.count_} {row.flaw} (sigma {row.sigma_low:.3g} to {row.sigma_high:.3g})"


def _cells(row: Any) -> list[str]:
    names = [f"{row.layer}/{row.num_layers}", row.block, row.part]
    if row.zero or row.zero_published:
        both = row.zero and row.zero_published
        return [*names, "", "", "both are zero" if both else "one side is zero", ""]
    if not row.num_points:
        return [*names, "0", "", "left out", ""]
    shift = f"{100 * np.expm1(row.shift):+.1f} ± {100 * row.shift_se:.1f} %"
    return [*names, str(row.num_points), f"{100 * row.share_within_3:.0f} %", shift, f"{row.z:+.1f}"]
