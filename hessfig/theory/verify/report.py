"""What `verify` leaves behind: a table on the terminal, statements.csv, and report.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from hessfig.files import write_text
from hessfig.theory.verify.errata import markdown, number, summary
from hessfig.theory.verify.statement import Dims, Outcome, Verdict
from hessfig.theory.verify.tables import csv_text

COLUMNS = ("statement", "reference", "holds_as_printed", "error_as_printed", "error_corrected", "note")

_COLOURS = {Verdict.yes: "green", Verdict.no: "red", Verdict.ill_typed: "red", Verdict.left_out: "yellow"}


def write(outcomes: list[Outcome], directory: Path, sizes: list[Dims], seeds: int) -> list[Path]:
    """Write statements.csv and report.md; return their paths."""
    texts = {"statements.csv": statements_csv(outcomes), "report.md": markdown(outcomes, sizes, seeds)}
    return [write_text(directory / name, text) for name, text in texts.items()]


def statements_csv(outcomes: list[Outcome]) -> str:
    """Columns as in `COLUMNS`; an error is empty where there is no such formula or it is ill-typed."""
    return csv_text(COLUMNS, (_row(outcome) for outcome in outcomes))


def print_table(outcomes: list[Outcome], paths: list[Path], show: Callable[[Table], None]) -> None:
    """Print one row per statement (by `show`), the count of verdicts, and what differs from the record."""
    console = Console()
    table = Table(
        *(Column(name, no_wrap=True, overflow="fold") for name in ("statement", "reference", "as printed")),
        *("error as printed", "error corrected"),
    )
    for outcome in outcomes:
        statement, reference, verdict, *errors, _ = _row(outcome)
        table.add_row(statement, reference, f"[{_COLOURS[outcome.verdict]}]{verdict}[/]", *errors)
    show(table)
    console.print(
        f"{summary(outcomes)}; {sum(o.seconds for o in outcomes):.0f} s", soft_wrap=True, highlight=False
    )
    for outcome in outcomes:
        if not outcome.as_recorded:
            console.print(f"[bold red]changed:[/] {_change(outcome)}")
    console.print("written: " + ", ".join(map(str, paths)), soft_wrap=True, highlight=False)


def _row(outcome: Outcome) -> tuple[str, ...]:
    s = outcome.statement
    errors = (number(outcome.error_as_printed), number(outcome.error_corrected))
    return (s.id, s.reference, outcome.verdict.value, *errors, s.note)


def _change(outcome: Outcome) -> str:
    if outcome.verdict != outcome.statement.recorded:
        return f"{outcome.statement.id} is recorded as {outcome.statement.recorded}, found {outcome.verdict}"
    return f"{outcome.statement.id}: the correction is off by {number(outcome.error_corrected)}"
