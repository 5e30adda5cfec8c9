"""Compares norms of the published networks with the published values, number by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.paired import FLOAT32_FLOOR
from hessfig.analysis.comparison.references import NUMBER
from hessfig.analysis.presented import terminal_table
from hessfig.errors import plain

if TYPE_CHECKING:
    from rich.table import Table

FIRST_SEED = 1234  # of the published repeats: repeat r is the network of seed 1234 + r
ROUNDING, CLOSE = 5e-4, 1e-6  # relative: what float32 explains in a norm, and what it explains in most
_CURVE = ["num_layers", "layer", "block", "part"]
ZERO, OVERFLOWED, UNDERFLOWED = "zero on both sides", "overflowed in float32", "underflowed in float32"


def is_published(config: Mapping[str, Any]) -> bool:
    """Whether the settings of a run are those of published networks."""
    return (config.get("state") or {}).get("draw") == "published"


def compare_numbers(
    ours: pd.DataFrame, theirs: pd.DataFrame, config: Mapping[str, Any], *, sweep: str, reference: str
) -> OneByOne:
    """Pair numbers of equal network, block, part, repeat and sigma; `ours` counts repeats by their seeds.

    `relative` is the difference over the published value. It is nan where a published norm has a `reason` not to agree:
    it is infinite, or so small that squares of its entries lose digits in float32 or vanish.
    """
    mine = ours.assign(repeat=ours["repeat"] - FIRST_SEED)
    pairs = mine.merge(theirs, on=NUMBER, suffixes=("", "_reference"))
    value, other = (pairs[name].to_numpy(float) for name in ("value", "value_reference"))
    entries = float(config["model"]["d_model"])  # the root of the number of entries of a block's vectors
    reasons = {
        ZERO: (value == 0) & (other == 0),
        OVERFLOWED: ~np.isfinite(other),
        UNDERFLOWED: other < FLOAT32_FLOOR * entries,
    }
    reason = np.select(list(reasons.values()), list(reasons), "")
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = np.where(np.isfinite(value), np.abs(value - other) / other, np.inf)
    relative = np.where(reason == "", difference, np.nan)
    points = pairs.assign(relative=relative, reason=reason)
    shares_probes = (config.get("estimator") or {}).get("probes") == "published"
    return OneByOne(
        sweep, reference, points, (len(ours) - len(pairs), len(theirs) - len(pairs)), shares_probes=shares_probes
    )


@dataclass(frozen=True)
class OneByOne:
    """The result: one row of `points` per number, with `relative` and `reason`.

    `unmatched`: numbers of each side that the other has not. `shares_probes`: both sides have the published probes, so
    that numbers can be equal; else they differ by the sampling error of the published probes.
    """

    sweep: str
    reference: str
    points: pd.DataFrame
    unmatched: tuple[int, int]
    shares_probes: bool

    @property
    def files(self) -> dict[str, pd.DataFrame]:
        """The tables to be written, by name; the first columns of numbers.csv are those of the published values."""
        return {"numbers.csv": self.points, "numbers_curves.csv": self.curves}

    @property
    def curves(self) -> pd.DataFrame:
        """How many numbers of each curve agree, their root mean square difference, and the worst."""
        relative = self.points["relative"]
        counted = self.points.assign(close=relative <= CLOSE, within=relative <= ROUNDING, square=relative**2)
        curves = counted.groupby(_CURVE, sort=False).agg(
            compared=("relative", "count"),
            close=("close", "sum"),
            within=("within", "sum"),
            rms=("square", lambda squares: squares.mean() ** 0.5),
            worst=("relative", "max"),
        )
        return curves.reset_index()

    def sentence(self) -> str:
        """Return how many numbers are equal, and the worst of them."""
        relative = self.points["relative"]
        compared, within, close = (
            int(mask.sum()) for mask in (relative.notna(), relative <= ROUNDING, relative <= CLOSE)
        )
        if not compared:
            return "undecided: no number can be compared"
        verdict = "equal" if within == compared else "not equal"
        if not self.shares_probes:
            verdict = "published networks, other probes"
        counts = f"{within} of {compared} numbers within {ROUNDING:g} (relative), {close} within {CLOSE:g}"
        return f"{verdict}: {counts}; worst {relative.max():.2g} ({_place(self.points.loc[relative.idxmax()])})"

    def notes(self) -> list[str]:
        """Return a line on what was left out and why, and one on numbers without a partner."""
        kinds = self.points[self.points["reason"] != ""].groupby("reason", sort=False)
        lines = [
            f"not compared: {len(rows)} {reason} (sigma {rows['sigma'].min():.3g} to {rows['sigma'].max():.3g}, ours "
            f"{rows['value'].min():.2g} to {rows['value'].max():.2g})"
            for reason, rows in kinds
        ]
        mine, other = self.unmatched
        return [*lines, f"without a partner: {mine} numbers of ours, {other} of {self.reference}"]

    def rich_table(self) -> Table:
        """Return the curves as a table for a terminal."""
        heads = ("layer", "block", "part", "numbers", f"≤ {CLOSE:g}", f"≤ {ROUNDING:g}", "rms", "worst")
        rows = [
            (
                *(f"{row.layer}/{row.num_layers}", plain(row.block), row.part),
                *(f"{count:.0f}" for count in (row.compared, row.close, row.within)),
                *(f"{size:.2g}" if row.compared else "" for size in (row.rms, row.worst)),
            )
            for row in self.curves.itertuples()
        ]
        return terminal_table(heads, rows, title=f"{self.sweep} against {self.reference}, number by number")


def _place(row: pd.Series) -> str:
    return (
        f"{row['part']} of {plain(row['block'])}, layer {row['layer']}/{row['num_layers']}, "
        f"repeat {row['repeat']}, sigma {row['sigma']:.4g}"
    )
