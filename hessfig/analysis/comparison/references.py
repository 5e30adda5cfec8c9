"""References: a folder of the authors' results, a CSV file, or another run's table."""

import csv
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.pickles import is_container, load
from hessfig.analysis.manifest import Architectures, read_manifest
from hessfig.analysis.table import read_table
from hessfig.errors import UserError, plain
from hessfig.predictions.architecture import Architecture, Attention, Kind
from hessfig.record import COLUMNS, FROBENIUS, MANIFEST, TABLE, Status
from hessfig.terms import Matrix, Part

LARGEST_FILE = 64 * 2**20  # bytes; the largest table of the paper's figures has 8 million
MOST_ROWS = 300_000
LONGEST_LINE = 10_000  # characters
LONGEST_NAME = 100
LARGEST_COUNT = 2**31
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"PK": "zip", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstandard"}
Row = Mapping[str, str]


def column_names(path: Path) -> list[str]:
    """Return the names in the first line. Raises UserError for anything that is not a CSV file in plain text."""
    with _opened(path) as handle:
        return next(_rows(path, handle))[1]


def read_columns(
    path: Path,
    words: Sequence[str],
    numbers: Mapping[str, str],
    kept: Callable[[Row], bool],
    required: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the rows that `kept` keeps: the columns `words` as text, `numbers` as floats, those that are there.

    A kind of number is `count` (whole, not negative), `scale` (positive) or `norm` (not negative; infinite or nan
    is let through, to be counted). Raises UserError for a file without one of the columns `required`, and with the line
    of the first cell that is something else.
    """
    with _opened(path) as handle:
        rows = _rows(path, handle)
        _, header = next(rows)
        _check_columns(path, header, required)
        texts: dict[str, list[str]] = {name: [] for name in words}
        floats = {name: array("d") for name in numbers if name in header}
        for line, cells in rows:
            row = dict(zip(header, cells, strict=True))
            if not kept(row):
                continue
            for name, text in texts.items():
                text.append(_word(path, line, name, row[name]))
            for name, column in floats.items():
                column.append(_number(path, line, name, row[name], numbers[name]))
    return pd.DataFrame({**texts, **{name: pd.Series(column, dtype=float) for name, column in floats.items()}})


def refused(path: Path, what: str, *, got: object = None, allowed: str = "a CSV file in plain text") -> UserError:
    """Return the error for a file that cannot serve as a reference."""
    shown = None if got is None else plain(got)
    return UserError(f"reference {path}: {what}", got=shown, allowed=allowed, remedy="fix the file, or give another")


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
        raise _bad(path, line, f"{name}={cell}", allowed=_COLUMN_KINDS[kind])
    return number


def _bad(path: Path, line: int, got: str, *, allowed: str) -> UserError:
    return refused(path, f"line {line} cannot be used", got=got, allowed=allowed)


_COLUMN_KINDS = {
    "count": f"a whole number from 0 to {LARGEST_COUNT - 1}",
    "scale": "a positive number",
    "norm": "a number that is not negative, inf or nan",
}


# `scale=` in a file name tells the sigmas its lists run along; the linear MLP's files are on the log grid.
GRIDS = {
    "log": np.logspace(-2, 1, 20),
    "log_short": np.logspace(-1, 0, 20),
    "linear": np.linspace(0.1, 10, 20),
    "linear_short": np.linspace(0.1, 1, 20),
}
_MATRICES = {Matrix.W_V: "v", Matrix.W_Q: "q"}
_PART_ENDINGS = {Part.H_o: "_outer", Part.H_f: "_func", Part.H: ""}
_COLUMNS = ["num_layers", "block", "part", "layer", "repeat", "sigma", "value"]
Quantity = tuple[int, Matrix, Part, Path]


class NothingToCompare(UserError):
    """A sweep and a reference that have nothing in common."""


def read_results(folder: Path, architectures: Architectures, sigma: np.ndarray) -> pd.DataFrame:
    """Return the published values for the networks of a sweep, in the columns of a reference table.

    `folder` is the authors' results folder, or the checkout that holds it. The grid is the one of GRIDS that
    shares most values with `sigma`. Raises NothingToCompare when no file matches, and UserError for files that
    are damaged, not shaped dict[layer][repeat] -> list, or hold anything but numbers.
    """
    folder = folder / "results" if (folder / "results").is_dir() else folder
    scale = max(GRIDS, key=lambda name: int(np.isclose(GRIDS[name][:, None], sigma, rtol=1e-6, atol=0).sum()))
    networks = {layers: network for (variant, layers), network in architectures.items() if not variant}
    wanted = [
        quantity for layers, network in networks.items() for quantity in _quantities(folder, network, layers, scale)
    ]
    found = [quantity for quantity in wanted if quantity[-1].is_file()]
    if not found:
        raise _no_file(folder, [path.name for *_, path in wanted])
    return pd.concat([_long(quantity, GRIDS[scale]) for quantity in found], ignore_index=True)


def _no_file(folder: Path, wanted: list[str]) -> NothingToCompare:
    there = sorted(path.name for path in folder.iterdir())
    unknown = "a sweep with a manifest.json and a plain variant, whose files can be named"
    return NothingToCompare(
        f"{folder} has no result file for this sweep",
        got=_some(there) if there else "an empty folder",
        allowed=_some(wanted) if wanted else unknown,
        remedy="give the `results` folder of a checkout of github.com/dalab/transformer-hessian",
    )


def _some(names: list[str]) -> str:
    """Return the first name, and how many there are next to it."""
    return plain(names[0]) + f" and {len(names) - 1} more" * (len(names) > 1)


def _quantities(folder: Path, network: Architecture, num_layers: int, scale: str) -> Iterator[Quantity]:
    """Yield (num_layers, matrix, part, path) of every file the authors may have for a network."""
    if network.kind == Kind.self_attention:
        return
    if network.kind == Kind.linear_mlp:
        yield num_layers, Matrix.W, Part.H, folder / f"mlp_num_layers={num_layers}_frob_mlp.pickle"
        return
    loss = "mse" if network.square_loss else "ce"
    stem = (
        f"norm={network.norm}_num_layers={num_layers}_scale={scale}"
        f"_residual_scaling={float(network.attention_skip)}"
        f"_linear_attention={network.attention == Attention.linear}_loss={loss}"
    )
    for matrix, letter in _MATRICES.items():
        for part, suffix in _PART_ENDINGS.items():
            yield num_layers, matrix, part, folder / f"{stem}_frob_{letter}{suffix}.pickle"


def _long(quantity: Quantity, sigma: np.ndarray) -> pd.DataFrame:
    """Return a file's numbers, one a row. The authors count layers and repeats from 0, tables layers from 1."""
    num_layers, matrix, part, path = quantity
    try:
        layers = _numbered(load(path), "layers", num_layers)
        rows = [
            (num_layers, matrix.value, part.value, layer, repeat, s, _norm(value))
            for layer, key in enumerate(sorted(layers), start=1)
            for repeat, values in sorted(_numbered(layers[key], "repeats").items())
            for s, value in zip(sigma, _list_of(sigma.size, values), strict=True)
        ]
    except _AnotherShape as error:
        raise UserError(
            f"{path} is not shaped as a result file",
            got=plain(error),
            allowed=f"dict[layer][repeat] -> list of {sigma.size} norms, {num_layers} layers",
            remedy="fetch the file again",
        ) from None
    return pd.DataFrame(rows, columns=_COLUMNS)


class _AnotherShape(Exception):
    """What a file holds in place of dict[layer][repeat] -> list of norms."""


def _numbered(things: Any, what: str, count: int | None = None) -> dict[int, Any]:
    if not isinstance(things, dict):
        raise _AnotherShape(f"{_shown(things)} in place of a dict of {what}")
    if not things or any(type(key) is not int for key in things):
        raise _AnotherShape(f"{what} that are not numbered" if things else f"no {what}")
    if count is not None and len(things) != count:
        raise _AnotherShape(f"{len(things)} {what}, not {count}")
    return things


def _list_of(length: int, things: Any) -> Any:
    if not isinstance(things, list | tuple):
        raise _AnotherShape(f"{_shown(things)} in place of a list")
    if len(things) != length:
        raise _AnotherShape(f"{len(things)} numbers, not {length}")
    return things


def _norm(value: Any) -> float:
    """Return a norm as float; zeros, infinities and NaN are let through, to be counted."""
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool) or value < 0:
        raise _AnotherShape(f"{_shown(value)} is not a norm")
    return float(value)


def _shown(thing: Any) -> str:
    """Return a few words for a thing from a file, which may hold anything and any number of it."""
    if is_container(thing):
        return f"a {type(thing).__name__} of {len(thing)}"
    return plain(repr(thing), most=60)


NUMBER = ["num_layers", "block", "part", "layer", "repeat", "sigma"]
LARGEST_MANIFEST = 8 * 2**20  # bytes
_KINDS = {"num_layers": "count", "layer": "count", "repeat": "count", "sigma": "scale", "value": "norm"}
_RUN = {"block": "row", "repeat": "seed"}  # what the table of a run calls these columns
_PARTS = [part.value for part in Part]


@dataclass(frozen=True)
class Reference:
    """What a sweep is compared with: values in the columns NUMBER and `value`, and what to call them.

    `task`: the task settings of another run, None where they are not known. `aside`: its rows that are no norm of a
    diagonal block of the plain variant.
    """

    values: pd.DataFrame
    name: str = "the published values"
    task: Mapping[str, Any] | None = None
    aside: int = 0


def read_reference(path: Path, table: pd.DataFrame, architectures: Architectures) -> Reference:
    """Return the values that `path` holds for the sweep of `table`.

    `path` is a CSV with the columns NUMBER and value (num_layers may be left out when `table` has one depth), the
    table.csv of another run, or a folder of the authors' pickles. Raises UserError for anything else.
    """
    if path.is_dir():
        values = read_results(path, architectures, table["sigma"].dropna().unique())
        return Reference(values, "the authors' files")
    if not path.exists():
        raise UserError(
            "reference: there is no such file or folder",
            got=path,
            allowed="a CSV file, the table.csv of another run, or a folder of the authors' result files",
            remedy="check the path",
        )
    if _is_run(column_names(path)):
        return _run(path)
    return Reference(_published(path, sorted(table["num_layers"].unique())))


def other_run(path: Path) -> tuple[pd.DataFrame, Mapping[str, Any] | None] | None:
    """Return the table of another run and the settings in the manifest next to it; None for any other reference."""
    if path.is_dir() or not path.exists() or not _is_run(column_names(path)):
        return None
    read_columns(path, [], {}, lambda row: False)  # within bounds, before it is read as a whole
    manifest = _manifest_beside(path)
    return read_table(path), manifest["config"] if manifest else None


def comparable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the norms of a table that are compared, in the columns of a reference: see `_is_comparable`."""
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


def _is_comparable(row: Row) -> bool:
    """Whether a row of another run's file is a norm of a diagonal block of the plain variant, along sigma."""
    return (
        row["variant"] == ""
        and row["row"] == row["col"]
        and row["layer"] == row["row_layer"]
        and row["quantity"] == FROBENIUS
        and row["status"] != Status.not_converged
        and row["step"] == ""
        and row["sigma"] != ""
    )


def _run(path: Path) -> Reference:
    """Read the table of another run, and the task from the manifest next to it if there is one."""
    aside = 0

    def kept(row: Row) -> bool:
        nonlocal aside
        aside += not (chosen := _is_comparable(row))
        return chosen

    kinds = {_RUN.get(name, name): kind for name, kind in _KINDS.items()}
    raw = read_columns(path, ["row", "part"], kinds, kept, COLUMNS)
    values = _checked(path, raw.rename(columns={there: name for name, there in _RUN.items()}))
    manifest = _manifest_beside(path)
    task = manifest["config"]["task"] if manifest else None
    return Reference(values, f"the run in {plain(path.parent)}", task, aside)


def _is_run(names: Sequence[str]) -> bool:
    return {"row", "col", "seed", "quantity"} <= set(names)


def _manifest_beside(path: Path) -> Mapping[str, Any] | None:
    manifest = path.parent / MANIFEST
    if path.name != TABLE or not manifest.exists():
        return None
    size = manifest.stat().st_size
    if size > LARGEST_MANIFEST:
        raise refused(manifest, "is too large", got=f"{size} bytes", allowed=f"at most {LARGEST_MANIFEST} bytes")
    return read_manifest(path.parent)


def _published(path: Path, depths: list[int]) -> pd.DataFrame:
    values = read_columns(path, ["block", "part"], _KINDS, lambda row: True, [*NUMBER[1:], "value"])
    if "num_layers" not in values:
        if len(depths) != 1:
            raise refused(path, "needs a column num_layers, for the sweep has several depths", got="no such column")
        values = values.assign(num_layers=depths[0])
    return _checked(path, values)


def _check_columns(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise refused(path, f"lacks columns: {', '.join(missing)}", got=", ".join(names), allowed=_ALLOWED)


def _checked(path: Path, values: pd.DataFrame) -> pd.DataFrame:
    if values.empty:
        raise refused(path, "has no rows that can be compared", allowed=_ALLOWED)
    unknown = sorted(set(values["part"]) - set(_PARTS))
    if unknown:
        raise refused(path, "unknown part", got=", ".join(unknown), allowed=", ".join(_PARTS))
    twice = values.duplicated(NUMBER)
    if twice.any():
        row = values[twice].iloc[0]
        got = ", ".join(f"{name}={row[name]}" for name in NUMBER)
        raise refused(path, "two rows claim to be the same number", got=got, allowed="one row a number")
    whole = {name: int for name, kind in _KINDS.items() if kind == "count"}
    return values.astype(whole)[[*NUMBER, "value"]]


_ALLOWED = f"a CSV with columns {', '.join(NUMBER[1:])}, value and optionally num_layers; or the table.csv of a run"
