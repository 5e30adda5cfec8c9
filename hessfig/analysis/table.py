"""Read and check the table of a sweep: one row per measured number, in the columns of the record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.rules import check_rows
from hessfig.errors import UserError, run_command
from hessfig.files import is_file
from hessfig.record import COLUMNS, CURVE, TABLE
from hessfig.terms import Part, name_order

__all__ = ["TABLE", "in_reading_order", "read_table"]

_COUNTS = ("num_layers", "layer", "row_layer", "seed", "num_probes")
_EMPTY_COUNTS = ("index", "step")  # empty: 0 for an index, nan for a step
_EMPTY_REALS = ("sigma", "error")
_REALS = ("value", "seconds")
_LARGEST = 2.0**53  # whole numbers beyond it are none


def read_table(path: Path) -> pd.DataFrame:
    """Return the table with numbers as numbers, an empty sigma, step or error as nan, an empty index as 0.

    Names of weights and quantities are open. Raises UserError for a file that is missing, empty, cut short, or not
    such a table, for a status that belies its value, for two rows that claim to be the same number, and for rows of
    several configurations that would be averaged together.
    """
    raw = _with_header(_read_text(path), path)
    numeric = (*_COUNTS, *_EMPTY_COUNTS, *_EMPTY_REALS, *_REALS)
    table = raw[COLUMNS].assign(**{name: _numbers(raw[name], path) for name in numeric})
    table = table.assign(index=table["index"].fillna(0)).astype(dict.fromkeys((*_COUNTS, "index"), int))
    check_rows(table, lambda what, got, allowed: _broken(path, what, got=got, allowed=allowed))
    return table


def in_reading_order(frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return rows sorted by network, layer, weights, part, quantity; open names come as they do in `table`."""
    weight = name_order([*table["row"].unique(), *table["col"].unique()])
    ranks = {
        "variant": list(table["variant"].unique()).index,
        "row": weight,
        "col": weight,
        "part": [*(part.value for part in Part), ""].index,
        "quantity": list(table["quantity"].unique()).index,
    }

    def rank(column: pd.Series) -> pd.Series:
        order = ranks.get(str(column.name))
        return column if order is None else column.map(order)

    return frame.sort_values(CURVE, key=rank, kind="stable", ignore_index=True)


def _read_text(path: Path) -> pd.DataFrame:
    if path.exists() and not is_file(path):
        raise _broken(path, "cannot be read as a table", got="a folder, a pipe or a device")
    if not is_file(path):
        raise UserError(
            f"{path} is missing: the sweep was not run",
            got="no such file",
            allowed="the table that `hessfig run` writes",
            remedy=run_command(path.parent),
        )
    try:
        raw = pd.read_csv(
            path, dtype=str, keep_default_na=False, header=None, encoding="utf-8", compression=None
        )
    except (ValueError, OSError, MemoryError) as error:  # what pandas raises for broken text are ValueErrors
        raise _broken(path, "cannot be read as a table", got=str(error)) from error
    if len(raw) < 2:
        raise _broken(path, "has no rows", got=f"{len(raw)} lines")
    return raw


def _with_header(raw: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the rows under the names of the first; every column once."""
    names = [str(name) for name in raw.iloc[0]]
    missing, twice = (
        [name for name in COLUMNS if name not in names],
        [n for n in COLUMNS if names.count(n) > 1],
    )
    if missing or twice:
        what = f"lacks columns: {', '.join(missing)}" if missing else f"has columns twice: {', '.join(twice)}"
        raise _broken(path, what, got=", ".join(names), allowed=", ".join(COLUMNS))
    return raw.iloc[1:].set_axis(names, axis=1).reset_index(drop=True)


def _numbers(column: pd.Series, path: Path) -> pd.Series:
    """Return a column as floats. An empty cell is nan where the column allows it, the words 'nan' are for reals."""
    name, numbers = str(column.name), pd.to_numeric(column, errors="coerce").astype(float)
    words = column.str.strip()
    whole, empty = name in (*_COUNTS, *_EMPTY_COUNTS), name in (*_EMPTY_COUNTS, *_EMPTY_REALS)
    if whole:
        bad = ~((numbers.abs() < _LARGEST) & (numbers % 1 == 0))
    else:
        bad = numbers.isna() & ~words.str.lower().isin({"nan", "-nan"})
    bad &= ~(words == "") if empty else True
    if bad.any():
        line = int(np.flatnonzero(bad)[0])
        kind = ("a whole number" if whole else "a number") + " or nothing" * empty
        raise _broken(
            path, f"line {line + 2}: {name} is not a number", got=repr(column.iloc[line]), allowed=kind
        )
    return numbers


def _broken(
    path: Path, what: str, *, got: str, allowed: str = "a table as `hessfig run` writes it"
) -> UserError:
    remedy = f"make it again: {run_command(path.parent)}"
    return UserError(f"{path}: {what}", got=got, allowed=allowed, remedy=remedy)
