"""How results are presented: frames as CSV files, and rows as tables for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hessfig.files import write_text

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def as_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV, numbers with ten digits."""
    return str(frame.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as CSV, in one move."""
    write_text(path, as_csv(frame))


def terminal_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | Text | None = None,
    wrapped: Collection[str] = (),
    fold: bool = False,
) -> Table:
    """Return rows under their heads; only columns that are `wrapped` break lines. Texts are markup, as rich has it."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, no_wrap=head not in wrapped, overflow="fold" if fold else "ellipsis")
    for row in rows:
        table.add_row(*row)
    return table
