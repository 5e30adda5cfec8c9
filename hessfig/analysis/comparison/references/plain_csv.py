"""Read columns of a CSV file that others wrote: plain text only, bounded, and every bad cell named by its line."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TextIO

import pandas as pd

from hessfig.errors import UserError, plain

LARGEST_FILE = 64 * 2**20  # bytes; the largest table of the paper's figures has 8 million
MOST_ROWS = 300_000
LONGEST_LINE = 10_000  # characters
LONGEST_NAME = 100
LARGEST_COUNT = 2**31
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"PK": "zip",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "zstandard",
}
Row = Mapping[str, str]


def column_names(path: Path) -> list[str]:
    """Return the names in the first line. Raises UserError for anything that is not a CSV file in plain text."""
    with _opened(path) as handle:
        return next(_rows(path, handle))[1]


def read_columns(
    path: Path, words: Sequence[str], numbers: Mapping[str, str], kept: Callable[[Row], bool]
) -> pd.DataFrame:
    """Return the rows that `kept` keeps: the columns `words` as text, `numbers` as floats.

    A kind of number is `count` (whole, not negative), `scale` (positive) or `norm` (not negative; infinite or nan
    is let through, to be counted). Raises UserError with the line of the first cell that is something else.
    """
    texts: dict[str, list[str]] = {name: [] for name in words}
    floats = {name: array("d") for name in numbers}
    with _opened(path) as handle:
        rows = _rows(path, handle)
        _, header = next(rows)
        for line, cells in rows:
            row = dict(zip(header, cells, strict=True))
            if not kept(row):
                continue
            for name, text in texts.items():
                text.append(_word(path, line, name, row[name]))
            for name, column in floats.items():
                column.append(_number(path, line, name, row[name], numbers[name]))
    return pd.DataFrame(
        {**texts, **{name: pd.Series(column, dtype=float) for name, column in floats.items()}}
    )


def refused(
    path: Path, what: str, *, got: object = None, allowed: str = "a CSV file in plain text"
) -> UserError:
    """Return the error for a file that cannot serve as a reference."""
    shown = None if got is None else plain(got)
    return UserError(
        f"reference {path}: {what}", got=shown, allowed=allowed, remedy="mend the file, or give another"
    )


def _opened(path: Path) -> TextIO:
    if not path.is_file():
        raise refused(path, "is not a file", got="a device or a pipe")
    try:
        with path.open("rb") as handle:
            start = handle.read(8)
        size = path.stat().st_size
    except OSError as error:
        raise refused(path, "cannot be read", got=error.strerror) from None
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise refused(path, "is compressed", got=name)
    if size > LARGEST_FILE:
        raise refused(path, "is too large", got=f"{size} bytes", allowed=f"at most {LARGEST_FILE} bytes")
    return path.open(encoding="utf-8-sig", newline="")


def _rows(path: Path, handle: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells), the header first; empty lines are skipped, every other row is as long as the header."""
    reader = csv.reader(_lines(path, handle), strict=True)
    header: list[str] = []
    try:
        for number, cells in enumerate(filter(None, reader)):
            if number == 0:
                header = cells
                _check_header(path, header)
            if len(cells) != len(header):
                raise _bad(path, reader.line_num, f"{len(cells)} cells", allowed=f"{len(header)} cells")
            if number > MOST_ROWS:
                raise refused(path, "is too long", got="more rows", allowed=f"at most {MOST_ROWS} rows")
            yield reader.line_num, cells
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise refused(path, "cannot be read as a table", got=error) from None
    if not header:
        raise refused(path, "cannot be read as a table", got="an empty file")


def _lines(path: Path, handle: TextIO) -> Iterator[str]:
    for number in count(1):
        line = handle.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise _bad(path, number, "a longer line", allowed=f"at most {LONGEST_LINE} characters")
        if not line:
            return
        yield line


def _check_header(path: Path, header: list[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise refused(path, "has two columns of one name", got=", ".join(twice))


def _word(path: Path, line: int, name: str, cell: str) -> str:
    if not cell or len(cell) > LONGEST_NAME or plain(cell) != cell:
        raise _bad(path, line, f"{name}={cell!r}", allowed=f"a name of 1 to {LONGEST_NAME} printable letters")
    return cell


def _number(path: Path, line: int, name: str, cell: str, kind: str) -> float:
    try:
        number = math.nan if "_" in cell else float(cell)  # Python would read 1_000
    except ValueError:
        number = -1.0
    spelt = cell.strip().lower().lstrip("+-")
    infinite_or_nan = spelt in ("inf", "infinity", "nan")
    fine = {
        "count": 0 <= number < LARGEST_COUNT and number % 1 == 0,
        "scale": 0 < number < math.inf,
        "norm": number >= 0 or spelt == "nan",
    }[kind]
    if not fine or (math.isinf(number) and not infinite_or_nan):
        raise _bad(path, line, f"{name}={cell}", allowed=_KINDS[kind])
    return number


def _bad(path: Path, line: int, got: str, *, allowed: str) -> UserError:
    return refused(path, f"line {line} cannot be used", got=got, allowed=allowed)


_KINDS = {
    "count": f"a whole number from 0 to {LARGEST_COUNT - 1}",
    "scale": "a positive number",
    "norm": "a number that is not negative, inf or nan",
}
