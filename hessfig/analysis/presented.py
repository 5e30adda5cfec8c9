"""How results are presented: frames as CSV files, and rows as tables for a terminal or a Markdown page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hessfig.register import publish

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def as_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV, numbers with ten digits."""
    return str(frame.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def write_csv(frames: Mapping[Path, pd.DataFrame], kind: str) -> None:
    """Write frames as CSV, all or none. Raises UserError for a file in their place that is not hessfig's."""
    publish({path: as_csv(frame) for path, frame in frames.items()}, kind)


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


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table; characters that would end a cell or open a tag are escaped."""
    head = list(heads)
    return [markdown_row(head), markdown_row("---" for _ in head), *map(markdown_row, rows)]


def markdown_row(cells: Iterable[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(map(markdown_text, cells))} |"


def markdown_text(text: str) -> str:
    """Return a text of which no character ends a cell or opens a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def between_marks(page: str, name: str, text: str, command: str) -> str:
    """Return a page with `text` between the marks of this name, which tell the command that writes it.

    Raises ValueError for a page without them.
    """
    return text.join(_around(page, name, command)[::2])


def marked(page: str, name: str, command: str) -> str:
    """Return what stands between the marks of this name. Raises ValueError for a page without them."""
    return _around(page, name, command)[1]


def _around(page: str, name: str, command: str) -> tuple[str, str, str]:
    begin, end = f"<!-- {name}: {command} -->\n", f"<!-- end of the {name} -->\n"
    before, found, rest = page.partition(begin)
    within, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page lacks the marks around the {name}")
    return before + begin, within, end + after
