"""Read and check the table of a sweep: one row per measured number, in the columns of the record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.errors import UserError
from hessfig.record import COLUMNS, CURVE, FROBENIUS, NETWORK, NUMBER, TABLE, Status
from hessfig.terms import Part, name_order

__all__ = ["TABLE", "in_reading_order", "read_table", "run_command"]

_COUNTS = ("num_layers", "layer", "row_layer", "seed", "num_probes")
_EMPTY_COUNTS = ("index", "step")  # empty: 0 for an index, nan for a step
_EMPTY_REALS = ("sigma", "error")
_REALS = ("value", "seconds")
_WORDS = {"part": ("", *(part.value for part in Part)), "status": tuple(status.value for status in Status)}
_LARGEST = 2.0**53  # whole numbers beyond it are none
_DEEPEST = 10_000  # layers; no network has as many


def read_table(path: Path) -> pd.DataFrame:
    """Return the table with numbers as numbers, an empty sigma, step or error as nan, an empty index as 0.

    Names of weights and quantities are open. Raises UserError for a file that is missing, empty, cut short, or not
    such a table, for a status that belies its value, for two rows that claim to be the same number, and for rows of
    several configurations that would be averaged together.
    """
    raw = _read_text(path)
    _check_columns(raw, path)
    numeric = (*_COUNTS, *_EMPTY_COUNTS, *_EMPTY_REALS, *_REALS)
    table = raw[COLUMNS].assign(**{name: _numbers(raw[name], path) for name in numeric})
    table = table.assign(index=table["index"].fillna(0)).astype(dict.fromkeys((*_COUNTS, "index"), int))
    _check_words(table, path)
    _check_values(table, path)
    _check_configs(table, path)
    _check_duplicates(table, path)
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


def run_command(folder: Path) -> str:
    """Return the command that makes the table of `folder` (outputs/<sweep>)."""
    root = "" if folder.parent.name == "outputs" else f" output_dir={folder.parent}"
    return f"hessfig run sweep={folder.name}{root}"


def _read_text(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise UserError(f"{path} is missing: the sweep was not run", remedy=run_command(path.parent))
    try:
        raw = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError, OSError) as error:
        raise _broken(path, f"cannot be read as a table ({error})") from error
    if raw.empty:
        raise _broken(path, "has no rows")
    return raw


def _check_columns(raw: pd.DataFrame, path: Path) -> None:
    missing = [name for name in COLUMNS if name not in raw.columns]
    if missing:
        raise _broken(
            path,
            f"lacks columns: {', '.join(missing)}",
            got=", ".join(raw.columns),
            allowed=", ".join(COLUMNS),
        )


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


def _check_words(table: pd.DataFrame, path: Path) -> None:
    for name, words in _WORDS.items():
        unknown = sorted(set(table[name]) - set(words))
        if unknown:
            allowed = ", ".join(filter(None, words))
            raise _broken(path, f"unknown {name}", got=", ".join(map(repr, unknown)), allowed=allowed)


def _check_values(table: pd.DataFrame, path: Path) -> None:
    """A status must tell the truth about its value, layers must be the network's, sigma a scale, step a count."""
    value, status, finite = table["value"], table["status"], np.isfinite(table["value"])
    no_block = (table["row"] == "") & (table["col"] == "")
    one_side = ((table["row"] == "") | (table["col"] == "")) & ~no_block
    depth = table["num_layers"]
    rules = {
        "the sweep is no plain name": ~table["sweep"].map(_is_plain),
        "there is no quantity": table["quantity"] == "",
        "a block has two sides": one_side,
        "unknown part": (table["part"] == "") & ~no_block,
        "sigma must be positive and finite": ~(
            table["sigma"].isna() | (np.isfinite(table["sigma"]) & (table["sigma"] > 0))
        ),
        "step must not be negative": table["step"] < 0,
        "index must not be negative": table["index"] < 0,
        "error must not be negative": table["error"] < 0,
        "status is ok but value is not finite": (status == Status.ok) & ~finite,
        "status is ok but value is no norm": (status == Status.ok)
        & (table["quantity"] == FROBENIUS)
        & (value < 0),
        "status is structural_zero but value is not 0": (status == Status.structural_zero) & (value != 0),
        "status is nonfinite but value is finite": (status == Status.nonfinite) & finite,
        "num_layers is no depth": ~depth.between(0, _DEEPEST),
        "layer lies outside the network": ~table["layer"].between(0, depth),
        "row_layer lies outside the network": ~table["row_layer"].between(0, depth),
    }
    for what, bad in rules.items():
        if bad.any():
            raise _broken(
                path, what, got=_describe(table[bad].iloc[0], ["sweep", *NUMBER, "value", "status"])
            )


def _is_plain(name: str) -> bool:
    """Return whether a name is that of one folder: nothing in a table may lead out of it."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def _check_configs(table: pd.DataFrame, path: Path) -> None:
    """Each quantity of a network is of one configuration: their settings may differ, and so may their hashes."""
    found = table.groupby([*NETWORK, "quantity"], sort=True)["config"].unique()
    for (variant, num_layers, quantity), configs in found.items():
        if len(configs) > 1:
            raise _broken(
                path,
                f"mixes several configurations in variant={variant!r}, num_layers={num_layers}, {quantity}",
                got=", ".join(sorted(configs)),
                allowed="one value of `config` for every variant, number of layers and quantity",
            )


def _check_duplicates(table: pd.DataFrame, path: Path) -> None:
    twice = table.duplicated(NUMBER)  # an empty sigma equals an empty sigma
    if twice.any():
        raise _broken(
            path, "two rows claim to be the same number", got=_describe(table[twice].iloc[0], NUMBER)
        )


def _describe(row: pd.Series, names: list[str]) -> str:
    return ", ".join(f"{name}={row[name]}" for name in names)


def _broken(path: Path, what: str, *, got: str | None = None, allowed: str = "") -> UserError:
    remedy = f"make it again: {run_command(path.parent)}"
    return UserError(f"{path}: {what}", got=got, allowed=allowed, remedy=remedy)
