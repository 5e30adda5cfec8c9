"""Values to compare with: a CSV of published values, the table of another run, or the authors' result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.comparison.references.plain_csv import Row, column_names, read_columns, refused
from hessfig.analysis.comparison.references.results_folder import NothingToCompare, read_results
from hessfig.analysis.manifest import Architectures, read_manifest
from hessfig.analysis.table import read_table
from hessfig.errors import UserError, plain
from hessfig.record import COLUMNS, FROBENIUS, MANIFEST, TABLE, Status
from hessfig.terms import Part

__all__ = ["NothingToCompare", "Reference", "comparable", "read_reference"]

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
    names = column_names(path)
    if _is_run(names):
        return _run(path, names)
    return Reference(_published(path, names, sorted(table["num_layers"].unique())))


def other_run(path: Path) -> tuple[pd.DataFrame, Mapping[str, Any] | None] | None:
    """Return the table of another run and the settings in the manifest beside it; None for any other reference."""
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


def _run(path: Path, names: list[str]) -> Reference:
    """Read the table of another run, and the task from the manifest beside it if there is one."""
    _check_columns(path, names, COLUMNS)
    aside = 0

    def kept(row: Row) -> bool:
        nonlocal aside
        aside += not (chosen := _is_comparable(row))
        return chosen

    kinds = {_RUN.get(name, name): kind for name, kind in _KINDS.items()}
    raw = read_columns(path, ["row", "part"], kinds, kept)
    values = _checked(path, raw.rename(columns={there: name for name, there in _RUN.items()}))
    return Reference(values, f"the run in {plain(path.parent)}", _task_beside(path), aside)


def _is_run(names: Sequence[str]) -> bool:
    return {"row", "col", "seed", "quantity"} <= set(names)


def _task_beside(path: Path) -> Mapping[str, Any] | None:
    """Return the task settings of the run whose table this is, None if no manifest says."""
    found = _manifest_beside(path)
    return found["config"]["task"] if found else None


def _manifest_beside(path: Path) -> Mapping[str, Any] | None:
    manifest = path.parent / MANIFEST
    if path.name != TABLE or not manifest.exists():
        return None
    size = manifest.stat().st_size
    if size > LARGEST_MANIFEST:
        raise refused(
            manifest, "is too large", got=f"{size} bytes", allowed=f"at most {LARGEST_MANIFEST} bytes"
        )
    return read_manifest(path.parent)


def _published(path: Path, names: list[str], depths: list[int]) -> pd.DataFrame:
    _check_columns(path, names, [name for name in (*NUMBER, "value") if name != "num_layers"])
    kinds = {name: kind for name, kind in _KINDS.items() if name in names}
    values = read_columns(path, ["block", "part"], kinds, lambda row: True)
    if "num_layers" not in names:
        if len(depths) != 1:
            raise refused(
                path, "needs a column num_layers, for the sweep has several depths", got="no such column"
            )
        values = values.assign(num_layers=depths[0])
    return _checked(path, values)


def _check_columns(path: Path, names: list[str], wanted: list[str]) -> None:
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


_ALLOWED = (
    f"a CSV with columns {', '.join(NUMBER[1:])}, value and optionally num_layers; or the table.csv of a run"
)
