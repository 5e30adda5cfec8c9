"""Presentation of results: frames as CSV files and in notebooks, rows as tables for terminals and pages."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pandas import DataFrame, option_context

from hessfig.register import publish

if TYPE_CHECKING:
    import rich.table
    from rich.text import Text


def as_csv(frame: DataFrame) -> str:
    """Return a frame as CSV, with ten digits per number."""
    return str(frame.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def as_json(content: Mapping[str, Any]) -> str:
    """Return facts as JSON; a frame among them becomes a list of its rows, and a number that is not finite null."""
    return json.dumps(
        {key: _plain(value) for key, value in content.items()},
        indent=1,
        allow_nan=False,
    )


def _plain(value: Any) -> Any:
    if not isinstance(value, DataFrame):
        return value
    finite = value.replace([math.inf, -math.inf], math.nan)
    return finite.astype(object).where(finite.notna(), None).to_dict("records")


def write_csv(frames: Mapping[Path, DataFrame], kind: str) -> None:
    """Write frames as CSV, all or none. Raises UserError if this would overwrite a file that hessfig did not write."""
    publish({path: as_csv(frame) for path, frame in frames.items()}, kind)


def terminal_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | Text | None = None,
    wrapped: Collection[str] = (),
) -> rich.table.Table:
    """Return rows under their heads; only columns that are `wrapped` break lines. Texts are markup, as rich has it."""
    from rich import box
    from rich.table import Table as TerminalTable

    table = TerminalTable(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for head in heads:
        table.add_column(head, no_wrap=head not in wrapped)
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table; characters that would end a cell or open a tag are escaped."""
    head = list(heads)
    return [
        markdown_row(head),
        markdown_row("---" for _ in head),
        *map(markdown_row, rows),
    ]


def markdown_row(cells: Iterable[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(map(markdown_text, cells))} |"


def markdown_text(text: str) -> str:
    """Return a text with escapes for characters that would end a cell or open a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def unmarked(text: str) -> str:
    """Return a text with all Markdown characters escaped, for a cell of a table."""
    return re.sub(r"([\\*_~`\[\]])", r"\\\1", text)


_OF_LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    **{
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    },
    **{"<": "$<$", ">": "$>$", "|": "$|$"},
    **{"±": r"$\pm$", "σ": r"$\sigma$", "≤": r"$\le$", "≥": r"$\ge$", "−": "$-$"},
}


def latex_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a tabular with booktabs rules; special characters of LaTeX are escaped."""
    lines = [latex_row(heads), r"\midrule", *map(latex_row, rows)]
    return [
        rf"\begin{{tabular}}{{{'l' * len(heads)}}}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def latex_row(cells: Iterable[str]) -> str:
    """Return one line of a tabular."""
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(cell: str) -> str:
    """Return a cell in LaTeX: special characters escaped, minus signs and powers of ten as mathematics."""
    signed = re.sub(r"(?<![\w.-])-(?=[\d.])", "−", cell)
    escaped = "".join(_OF_LATEX.get(mark, mark) for mark in signed)
    return re.sub(r"\b(\d(?:\.\d+)?)e\+?(-?)0*(\d+)\b", r"\1$\\cdot10^{\2\3}$", escaped)


def between_marks(page: str, name: str, text: str, command: str) -> str:
    """Return a page with `text` between the marks of this name, which state the command that writes it.

    Raises ValueError for a page without them.
    """
    return text.join(_around(page, name, command)[::2])


def marked(page: str, name: str, command: str) -> str:
    """Return the text between the marks of this name. Raises ValueError for a page without them."""
    return _around(page, name, command)[1]


def _around(page: str, name: str, command: str) -> tuple[str, str, str]:
    begin, end = f"<!-- {name}: {command} -->\n", f"<!-- end of the {name} -->\n"
    before, opened, rest = page.partition(begin)
    within, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"the page lacks the marks around the {name}")
    return before + begin, within, end + after


_FIRST = ["value", "error", "quantity", "row", "col", "part"]
_PRINTED = ["row", "col", "part", "quantity", "value", "error", "status"]
_LAST = ["sweep", "config", "seconds", "dtype", "estimator", "num_probes"]
_MOST = 30  # largest number of rows in HTML


class Table(DataFrame):
    """A table of measured numbers: a pandas DataFrame that shows block, quantity, value and error first.

    The order of its columns stays that of the file.
    """

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def _repr_html_(self) -> str:
        return table_html(self)

    def __repr__(self) -> str:
        """Return the text that is printed; of a selection of columns, in its own order."""
        frame = DataFrame(self)
        if not {*_PRINTED, *_LAST[:1]} <= {*frame.columns}:
            return repr(frame)
        shown = frame[[*_PRINTED, *_differing(frame, _PRINTED)]]
        with option_context(
            "display.max_columns", None, "display.show_dimensions", False
        ):
            return f"{shown}\n[{len(frame)} rows x {len(frame.columns)} columns]"


def _differing(frame: DataFrame, first: Sequence[str]) -> list[str]:
    """Return the columns, besides the `first` and the technical ones, whose entries are not all the same."""
    others = [name for name in frame.columns if name not in {*first, *_LAST}]
    return [name for name in others if len(frame) < 2 or len(frame[name].unique()) > 1]


def table_html(table: DataFrame) -> str:
    """Return the first 30 rows of a table as HTML: value and error first, then the columns that distinguish rows."""
    shown = DataFrame(table).head(_MOST)
    frame = shown[
        [*(name for name in _FIRST if name in shown), *_differing(shown, _FIRST)]
    ]
    if len(table) > _MOST:
        more = f"<p>{len(table)} rows, of which the first {_MOST} are shown</p>"
    else:
        more = ""
    return (
        frame.to_html(
            index=False, float_format=lambda number: f"{number:.4g}", na_rep=""
        )
        + more
    )


def described_html(title: str, facts: dict[str, object]) -> str:
    """Return a title and a list of facts as HTML."""
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(str(fact))}</td></tr>"
        for key, fact in facts.items()
    )
    return f"<p><b>{html.escape(title)}</b></p><table>{rows}</table>"
