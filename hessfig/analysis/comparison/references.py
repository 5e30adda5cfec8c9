"""References: CSV files of published values, and tables of other runs."""

import csv
import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from hessfig.analysis.manifest import read_manifest
from hessfig.analysis.table import read_table
from hessfig.errors import UserError, first_few, plain
from hessfig.record import FROBENIUS, MANIFEST, TABLE, Status
from hessfig.terms import Part

LARGEST_FILE = 64 * 2**20  # bytes; the largest table of the paper's figures has 8 million
MOST_ROWS = 300_000
LONGEST_LINE = 10_000  # characters
LONGEST_NAME = 100
LARGEST_COUNT = 2**31
LARGEST_MANIFEST = 8 * 2**20  # bytes
NUMBER = ["num_layers", "block", "part", "layer", "repeat", "sigma"]
_KINDS = {"num_layers": "count", "layer": "count", "repeat": "count", "sigma": "scale", "value": "norm"}
_PARTS = [part.value for part in Part]
_PICKLES = (".pickle", ".pkl")
_SCRIPT = "make CSV files of it, in a clone of hessfig: python scripts/published_values.py FOLDER published"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"PK": "zip", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstandard"}


def read_columns(path: Path) -> pd.DataFrame:
    """Return the columns NUMBER and value of a CSV file: names as text, numbers as floats; num_layers may be missing.

    A kind of number is `count` (whole, not negative), `scale` (positive) or `norm` (not negative; infinite and nan
    pass, to be counted). Raises UserError for a file without one of the columns, and with the line of the first cell
    that is something else.
    """
    with _opened(path) as handle:
        rows = _rows(path, handle)
        _, header = next(rows)
        _check_columns(path, header)
        texts: dict[str, list[str]] = {name: [] for name in NUMBER if name not in _KINDS}
        floats = {name: array("d") for name in _KINDS if name in header}
        for line, cells in rows:
            row = dict(zip(header, cells, strict=True))
            for name, text in texts.items():
                text.append(_word(path, line, name, row[name]))
            for name, column in floats.items():
                column.append(_number(path, line, name, row[name], _KINDS[name]))
    return pd.DataFrame({**texts, **{name: pd.Series(column, dtype=float) for name, column in floats.items()}})


def unusable_reference(
    path: Path, what: str, *, got: object = None, allowed: str = "a CSV file in plain text"
) -> UserError:
    """Return the error for a file that cannot serve as a reference."""
    shown = None if got is None else plain(got)
    return UserError(f"reference {path}: {what}", got=shown, allowed=allowed, remedy="fix the file, or give another")


def _opened(path: Path) -> TextIO:
    if not path.is_file():
        raise unusable_reference(path, "is not a file", got="a device or a pipe")
    try:
        with path.open("rb") as handle:
            start = handle.read(8)
        size = path.stat().st_size
    except OSError as error:
        raise unusable_reference(path, "cannot be read", got=error.strerror) from None
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise unusable_reference(path, "is compressed", got=name)
    if size > LARGEST_FILE:
        raise unusable_reference(path, "is too large", got=f"{size} bytes", allowed=f"at most {LARGEST_FILE} bytes")
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
                raise unusable_reference(path, "is too long", got="more rows", allowed=f"at most {MOST_ROWS} rows")
            yield reader.line_num, cells
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise unusable_reference(path, "cannot be read as a table", got=error) from None
    if not header:
        raise unusable_reference(path, "cannot be read as a table", got="an empty file")


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
        raise unusable_reference(path, "has two columns of one name", got=", ".join(twice))


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
        raise _bad(path, line, f"{name}={cell}", allowed=_COLUMN_KINDS[kind])
    return number


def _bad(path: Path, line: int, got: str, *, allowed: str) -> UserError:
    return unusable_reference(path, f"line {line} cannot be used", got=got, allowed=allowed)


_COLUMN_KINDS = {
    "count": f"a whole number from 0 to {LARGEST_COUNT - 1}",
    "scale": "a positive number",
    "norm": "a number that is not negative, inf or nan",
}


class NothingToCompare(UserError):
    """Raised for a sweep and a reference without common points."""


@dataclass(frozen=True)
class Reference:
    """A reference: values in the columns NUMBER and `value`, and its name.

    `run` and `config` are the table and the settings of another run, None where there is none, or no manifest; `aside`
    is the number of its rows that are no norm of a diagonal block of the plain variant.
    """

    values: pd.DataFrame
    name: str = "the published values"
    run: pd.DataFrame | None = None
    config: Mapping[str, Any] | None = None
    aside: int = 0


def reference_file(path: Path, sweep: str) -> Path:
    """Return the file of a reference: in a folder `path`, the file named after the sweep.

    Raises UserError for a path that does not exist and for pickles, NothingToCompare for a folder without that file.
    """
    if not path.exists():
        raise UserError(
            "reference: there is no such file or folder",
            got=path,
            allowed="a CSV file, the table.csv of another run, or a folder of CSV files named after sweeps",
            remedy="check the path",
        )
    if not path.is_dir():
        return _no_pickle(path)
    for pickle in sorted([*path.glob("*.pickle"), *path.glob("results/*.pickle")])[:1]:
        _no_pickle(pickle)
    file = path / f"{sweep}.csv"
    if not file.exists():
        raise NothingToCompare(
            f"{path} has no values of this sweep",
            got=first_few(sorted(plain(other.name) for other in path.glob("[!.]*")), most=1),
            allowed=file.name,
            remedy=f"{_SCRIPT}; or give a CSV file",
        )
    return file


def _no_pickle(path: Path) -> Path:
    """Return the path of a file. Raises UserError for a pickle, by its name."""
    if path.suffix in _PICKLES:
        raise UserError(
            f"reference {path}: is a pickle, which hessfig does not read",
            got=plain(path.name),
            allowed="CSV files",
            remedy=_SCRIPT,
        )
    return path


def read_reference(path: Path, table: pd.DataFrame) -> Reference:
    """Return the values of a CSV file for the sweep of `table`.

    The columns are NUMBER and value (num_layers may be left out when `table` has one depth), or those of the table.csv
    of another run. Raises UserError for anything else.
    """
    with _opened(path) as handle:
        rows = _rows(path, handle)
        is_run = {"row", "col", "seed", "quantity"} <= set(next(rows)[1])
        if is_run:
            deque(rows, maxlen=0)  # within bounds, before it is read as a whole
    if is_run:
        return _other_run(path)
    values, depths = read_columns(path), table["num_layers"].unique()
    if "num_layers" not in values:
        if len(depths) != 1:
            raise unusable_reference(
                path, "needs a column num_layers, for the sweep has several depths", got="no such column"
            )
        values = values.assign(num_layers=depths[0])
    return Reference(_checked(path, values))


def _other_run(path: Path) -> Reference:
    """Return the table of another run, and its settings from the manifest next to it."""
    table, manifest = read_table(path), path.parent / MANIFEST
    config = None
    if path.name == TABLE and manifest.exists():
        size = manifest.stat().st_size
        if size > LARGEST_MANIFEST:
            raise unusable_reference(
                manifest, "is too large", got=f"{size} bytes", allowed=f"at most {LARGEST_MANIFEST} bytes"
            )
        config = (read_manifest(path.parent) or {}).get("config")
    values = _checked(path, comparable(table))
    return Reference(values, f"the run in {plain(path.parent)}", table, config, aside=len(table) - len(values))


def comparable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the norms of diagonal blocks of the plain variant along sigma, in the columns of a reference."""
    chosen = (
        (table["variant"] == "")
        & (table["row"] == table["col"])
        & (table["layer"] == table["row_layer"])
        & (table["quantity"] == FROBENIUS)
        & (table["status"] != Status.not_converged)
        & table["step"].isna()
        & table["sigma"].notna()
    )
    return table[chosen].rename(columns={"row": "block", "seed": "repeat"})[[*NUMBER, "value"]]


def _check_columns(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in (*NUMBER[1:], "value") if name not in names]
    if missing:
        raise unusable_reference(path, f"lacks columns: {', '.join(missing)}", got=", ".join(names), allowed=_ALLOWED)


def _checked(path: Path, values: pd.DataFrame) -> pd.DataFrame:
    if values.empty:
        raise unusable_reference(path, "has no rows that can be compared", allowed=_ALLOWED)
    unknown = sorted(set(values["part"]) - set(_PARTS))
    if unknown:
        raise unusable_reference(path, "unknown part", got=", ".join(unknown), allowed=", ".join(_PARTS))
    twice = values.duplicated(NUMBER)
    if twice.any():
        row = values[twice].iloc[0]
        got = ", ".join(f"{name}={row[name]}" for name in NUMBER)
        raise unusable_reference(path, "two rows claim to be the same number", got=got, allowed="one row a number")
    whole = {name: int for name, kind in _KINDS.items() if kind == "count"}
    return values.astype(whole)[[*NUMBER, "value"]]


_ALLOWED = f"a CSV with columns {', '.join(NUMBER[1:])}, value and optionally num_layers; or the table.csv of a run"
