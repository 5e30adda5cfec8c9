"""What a comparison of two runs of the same networks found, number by number, and the words that say it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.verdict import Verdict
from hessfig.analysis.variants import short_variant
from hessfig.errors import plain

if TYPE_CHECKING:
    from rich.table import Table

IDENTICAL, ROUNDED, AGREES, DIFFERENT, UNDECIDED = (
    "identical",
    "equal to rounding",
    "agrees",
    "different",
    "undecided",
)


@dataclass(frozen=True)
class Paired:
    """What a comparison number by number found. `points`: a row a number; `curves`: a row a curve with its verdict.

    `unmatched`: numbers of each side that the other has not.
    """

    sweep: str
    reference: str
    points: pd.DataFrame
    curves: pd.DataFrame
    unmatched: tuple[int, int]

    @property
    def files(self) -> dict[str, pd.DataFrame]:
        """The tables to be written, by name."""
        return {"paired.csv": self.points, "paired_curves.csv": self.curves}

    @cached_property
    def verdict(self) -> str:
        """The verdict on all of it: identical only if every number is."""
        found = set(self.curves["verdict"])
        if DIFFERENT in found:
            return Verdict.differs
        if found == {IDENTICAL}:
            return IDENTICAL
        return Verdict.agrees if found & {IDENTICAL, ROUNDED, AGREES} else Verdict.undecided

    def sentence(self) -> str:
        """Return the verdict and what it rests on, in one line."""
        count, same = len(self.points), int(self.points["is_identical"].sum())
        if self.verdict == IDENTICAL:
            return f"identical: all {count} numbers are equal to the bit (difference 0)"
        worst = self.curves.loc[self.curves["shift"].abs().fillna(0.0).idxmax()]
        kinds = ", ".join(
            f"{number} {word}" for word, number in self.curves["verdict"].value_counts().items()
        )
        largest = f"largest difference of a number {self.points['relative'].abs().max():.2g} (relative)"
        shift = f"largest shift of a curve {_interval(worst)} ({_name(worst)})"
        return (
            f"{self.verdict}: curves: {kinds}; {same} of {count} numbers equal to the bit; {largest}; {shift}"
        )

    def notes(self) -> list[str]:
        """Return a line for how it was compared, and one for what was not."""
        seeds = self.points["seed"].nunique()
        return [
            f"same settings and {seeds} seed{'s' * (seeds != 1)} on both sides: compared number by number",
            f"without a partner: {self.unmatched[0]} numbers of ours, {self.unmatched[1]} of {self.reference}",
        ]

    def rich_table(self) -> Table:
        """Return the curves as a table for a terminal."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        title = Text(f"{self.sweep} against {self.reference}, number by number")
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in ("curve", "numbers", "largest difference", "shift [95 %]", "verdict"):
            table.add_column(name, no_wrap=name != "curve")
        for _, row in self.curves.iterrows():
            cells = (
                _name(row),
                str(row["num_points"]),
                f"{row['largest']:.2g}",
                _interval(row),
                row["verdict"],
            )
            table.add_row(*map(Text, cells))
        return table


def _interval(row: pd.Series) -> str:
    shift, low, high = (100 * np.expm1(row[name]) for name in ("shift", "shift_low", "shift_high"))
    if row["verdict"] == IDENTICAL or not np.isfinite(shift):
        return "0" if row["verdict"] == IDENTICAL else ""
    return f"{shift:+.3g} %" + (f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else "")


def _name(row: pd.Series) -> str:
    block = row["row"] if row["row"] == row["col"] else f"({row['row']}, {row['col']})"
    number = f" {row['index']}" if row["index"] else ""
    words = [short_variant(row["variant"]), f"{row['quantity']}{number}", row["part"], block]
    return plain(" ".join(filter(None, [*words, f"layer {row['layer']}/{row['num_layers']}"])))
