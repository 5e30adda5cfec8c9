"""Read and check the table of a sweep: one row per measured number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.errors import UserError
from hessfig.terms import Matrix, Part

NETWORK = ["variant", "num_layers"]
BLOCK = ["layer", "row", "col"]
CURVE = [*NETWORK, *BLOCK, "part"]
_MEASURED = ["frob", "frob_sem", "num_probes", "estimator", "dtype", "status", "seconds"]
COLUMNS = ["sweep", *CURVE, "sigma", "seed", *_MEASURED, "config"]
TABLE = "table.csv"

_WHOLE = ("num_layers", "layer", "seed", "num_probes")
_REAL = ("sigma", "frob", "frob_sem", "seconds")
_STATUSES = ("ok", "nonfinite", "structural_zero")
_MATRICES = tuple(m.value for m in Matrix)
_WORDS = {"row": _MATRICES, "col": _MATRICES, "part": tuple(p.value for p in Part), "status": _STATUSES}


def read_table(path: Path) -> pd.DataFrame:
    """Return the table with numbers as numbers and an empty variant as "".

    Raises UserError for a file that is missing, empty, cut short, or not such a table, for two rows that
    claim to be the same number, and for rows of several configurations that would be averaged together.
    """
    raw = _read_text(path)
    _check_columns(raw, path)
    table = raw[COLUMNS].assign(**{name: _numbers(raw[name], path) for name in (*_WHOLE, *_REAL)})
    table = table.astype(dict.fromkeys(_WHOLE, int))
    _check_words(table, path)
    _check_values(table, path)
    _check_configs(table, path)
    _check_duplicates(table, path)
    return table


def in_reading_order(frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return rows sorted by network (variants as they come in `table`), layer, matrix and part."""
    ranks = {
        "variant": list(table["variant"].unique()),
        "row": list(_MATRICES),
        "col": list(_MATRICES),
        "part": [part.value for part in Part],
    }

    def rank(column: pd.Series) -> pd.Series:
        order = ranks.get(str(column.name))
        return column if order is None else column.map(order.index)

    return frame.sort_values(CURVE, key=rank, kind="stable", ignore_index=True)


def run_command(folder: Path) -> str:
    """Return the command that makes the table of `folder` (outputs/<sweep>)."""
    root = "" if folder.parent.name == "outputs" else f" output_dir={folder.parent}"
    return f"hessfig run sweep={folder.name}{root}"


def _read_text(path: Path) -> pd.DataFrame:
    if not path.is_file():
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
    numbers = pd.to_numeric(column, errors="coerce")
    bad = numbers.isna() & ~column.str.strip().str.lower().isin({"nan", "-nan"})
    if column.name in _WHOLE:
        bad |= ~(np.isfinite(numbers) & (numbers % 1 == 0))
    if bad.any():
        kind = "a whole number" if column.name in _WHOLE else "a number"
        line = int(np.flatnonzero(bad)[0])
        raise _broken(
            path, f"line {line + 2}: {column.name} is not a number", got=repr(column.iloc[line]), allowed=kind
        )
    return numbers


def _check_words(table: pd.DataFrame, path: Path) -> None:
    for name, words in _WORDS.items():
        unknown = sorted(set(table[name]) - set(words))
        if unknown:
            raise _broken(
                path, f"unknown {name}", got=", ".join(map(repr, unknown)), allowed=", ".join(words)
            )


def _check_values(table: pd.DataFrame, path: Path) -> None:
    """A status must tell the truth about its number, and sigma must be a scale."""
    frob, finite = table["frob"], np.isfinite(table["frob"])
    rules = {
        "sigma must be positive and finite": ~(np.isfinite(table["sigma"]) & (table["sigma"] > 0)),
        "status is ok but frob is not a finite norm": (table["status"] == "ok") & ~(finite & (frob >= 0)),
        "status is structural_zero but frob is not 0": (table["status"] == "structural_zero") & (frob != 0),
        "status is nonfinite but frob is finite": (table["status"] == "nonfinite") & finite,
        "layer lies outside the network": ~table["layer"].between(0, table["num_layers"]),
    }
    for what, bad in rules.items():
        if bad.any():
            raise _broken(
                path, what, got=_describe(table[bad].iloc[0], [*CURVE, "sigma", "seed", "frob", "status"])
            )


def _check_configs(table: pd.DataFrame, path: Path) -> None:
    mixed = table.groupby(NETWORK, sort=True)["config"].nunique().loc[lambda count: count > 1]
    if not mixed.empty:
        variant, num_layers = mixed.index[0]
        here = table[(table["variant"] == variant) & (table["num_layers"] == num_layers)]
        raise _broken(
            path,
            f"mixes several configurations in variant={variant!r}, num_layers={num_layers}",
            got=", ".join(sorted(set(here["config"]))),
            allowed="one value of `config` for every variant and number of layers",
        )


def _check_duplicates(table: pd.DataFrame, path: Path) -> None:
    number = [*CURVE, "sigma", "seed"]
    twice = table.duplicated(number)
    if twice.any():
        raise _broken(
            path, "two rows claim to be the same number", got=_describe(table[twice].iloc[0], number)
        )


def _describe(row: pd.Series, names: list[str]) -> str:
    return ", ".join(f"{name}={row[name]}" for name in names)


def _broken(path: Path, what: str, *, got: str | None = None, allowed: str = "") -> UserError:
    remedy = f"make it again: {run_command(path.parent)}"
    return UserError(f"{path}: {what}", got=got, allowed=allowed, remedy=remedy)


def short_variant(variant: str) -> str:
    """Return a variant without its groups: 'model.temperature=0.25' becomes 'temperature=0.25'."""
    assignments = (part.partition("=") for part in variant.split(",") if part)
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in assignments)
