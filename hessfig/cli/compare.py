"""Implements `hessfig compare`: two tables, or a table and published values, number by number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.cli.flags import own_words
from hessfig.cli.terminal import print_plain, show
from hessfig.errors import UserError, plain
from hessfig.record import NUMBER
from hessfig.register import publish
from hessfig.verbs import VERBS

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from hessfig.analysis.comparison import Comparison

TOLERANCE = 5e-4  # relative: what single precision explains in a norm


def compare_verb(arguments: Sequence[str]) -> int:
    """Compare two tables and print how many numbers agree, and how closely; return 1 if any differs, else 0."""
    from hessfig.analysis.comparison import compared, numbers_at

    first, other, given = _asked(arguments)
    tolerance = _tolerance(given)
    comparison = compared(numbers_at(first), numbers_at(other))
    different = comparison.different(tolerance)
    show(_table(comparison))
    print_plain(*_lines(comparison, different, tolerance))
    if "rows" in given:
        publish(
            {
                Path(given["rows"]): comparison.pairs.to_csv(
                    index=False, lineterminator="\n"
                )
            },
            "comparison",
        )
        print_plain(f"written: {given['rows']}")
    if len(different) or comparison.lost:
        return 1
    return 0


def _asked(arguments: Sequence[str]) -> tuple[Path, Path, dict[str, str]]:
    places = [word for word in arguments if "=" not in word]
    given = own_words(VERBS["compare"], [word for word in arguments if "=" in word])
    missing = [place for place in places if not Path(place).exists()]
    if len(places) != 2 or missing:
        raise UserError(
            f"compare: {'two tables are needed' if len(places) != 2 else 'there is no such table'}",
            got=plain(", ".join(places if len(places) != 2 else missing) or "none"),
            allowed="two of: the folder of a run, a table.csv, a CSV file of published values",
            remedy=f"for example {VERBS['compare'].examples[0]}",
        )
    return Path(places[0]), Path(places[1]), given


def _tolerance(given: dict[str, str]) -> float:
    text = given.get("tolerance", str(TOLERANCE))
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < 1:
        raise UserError(
            "compare: tolerance is a relative difference",
            got=f"tolerance={plain(text)}",
            allowed="a number from 0 to below 1",
            remedy=f"tolerance={TOLERANCE:g}",
        )
    return tolerance


def _table(comparison: Comparison) -> Table:
    from hessfig.analysis.presented import terminal_table

    total = max(1, len(comparison.judged))
    rows = [
        [words, str(count), f"{100 * count / total:.1f} %"]
        for words, count in comparison.counts.items()
    ]
    return terminal_table(["numbers", "count", "share"], rows)


def _lines(
    comparison: Comparison, different: pd.DataFrame, tolerance: float
) -> list[str]:
    """Return what is compared, what differs, what is left out, and the largest difference with its place."""
    pairs = comparison.pairs
    lines = [
        f"{len(comparison.judged)} numbers compared, {len(different)} differ by more than {tolerance:g}"
    ]
    if comparison.lost or comparison.more:
        lines.append(
            f"only in the first table: {comparison.lost}; only in the second: {comparison.more}"
        )
    for reason, count in (
        pairs.loc[pairs["left_out"] != "", "left_out"].value_counts().items()
    ):
        lines.append(f"left out, {reason}: {count}")
    worst = pairs.loc[pairs["relative"].fillna(-1.0).idxmax()]
    if worst["relative"] > 0:
        values = f"{worst['value']:.9g} and {worst['value_other']:.9g}"
        lines.append(
            f"largest difference {worst['relative']:.3g}: {values} at {_place(worst)}"
        )
    return lines


def _place(row: pd.Series) -> str:
    """Return where a number belongs, such as 'row=W_Q, part=H, sigma=0.1, seed=1234'."""
    named = {name: str(row[name]) for name in NUMBER if name in row}
    return plain(
        ", ".join(
            f"{name}={text}" for name, text in named.items() if text not in ("", "nan")
        ),
        most=300,
    )
