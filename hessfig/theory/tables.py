"""Small CSV tables, written so that no reader ever sees half of one."""

from __future__ import annotations

import csv
import io
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from hessfig.errors import UserError


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Header and rows; floats keep all their digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def write_text(path: Path, text: str) -> Path:
    """Write beside `path`, then move into place. Raises UserError when the folder cannot be written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}", got=error.strerror, remedy="choose another output_dir"
        ) from error
    return path


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive")
