"""The ledger as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hessfig.analysis.claims.ledger.judging import NOT_RUN, Judged
from hessfig.analysis.claims.ledger.page import contrasts, effect, explanation, interval
from hessfig.analysis.claims.rule import Verdict

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {
    **{Verdict.holds.value: "green", Verdict.does_not_hold.value: "red"},
    **{Verdict.holds_only_if.value: "yellow", NOT_RUN: "dim"},
}


def verdict_table(judged: Sequence[Judged]) -> Table:
    """Return a row a claim: effect, interval, verdict, what it states, and below it a note or what to run."""
    rows = [
        (one.claim.id, effect(one), interval(one), _coloured(one.verdict), _stated(one)) for one in judged
    ]
    heads = ("claim", "effect", "95 % interval", "verdict", "statement; note, or what to run")
    return _table(heads, rows, wrapped=4)


def explanation_table(one: Judged) -> Table:
    """Return what one claim says, its rule and its verdict."""
    rows = [(word, _safe(text)) for word, text in explanation(one)]
    return _table(("", one.claim.id), rows, wrapped=1)


def contrast_table(one: Judged) -> Table:
    """Return the intervals behind the verdict."""
    rows = [(_safe(name), *numbers) for name, *numbers in contrasts(one)]
    return _table(("contrast", "mean", "interval", "seeds"), rows, wrapped=0)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, wrapped: int) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        table.add_column(head, no_wrap=place != wrapped, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _stated(one: Judged) -> str:
    return "\n".join(_safe(text) for text in (one.claim.statement, one.words) if text)


def _coloured(verdict: str) -> str:
    colour = _COLOURS.get(verdict)
    return f"[{colour}]{verdict}[/]" if colour else verdict


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)
