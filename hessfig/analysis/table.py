"""Read and check the table of a sweep: one row per measured number, in the columns of the record."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from pandas import DataFrame, Series, read_csv, to_numeric

from hessfig.analysis.axis import variants_in_order
from hessfig.errors import UserError, plain, run_command
from hessfig.files import is_file
from hessfig.record import COLUMNS, CURVE, FROBENIUS, NETWORK, NUMBER, Status
from hessfig.registry import facts_of
from hessfig.terms import Part, name_order

Broken = Callable[[str, str, str], UserError]

_WORDS = {
    "part": ("", *(part.value for part in Part)),
    "status": tuple(status.value for status in Status),
}
_TEXTS = ("sweep", "variant", "row", "col", "quantity", "estimator", "dtype", "config")
_LONGEST = 1000
_TEXT_IN_WORDS = f"at most {_LONGEST} printable characters"
_DEEPEST = 10_000  # largest number of layers that is plausible


def check_rows(table: DataFrame, broken: Broken) -> None:
    """Raise `broken(what, got, allowed)` for the first rule that a row breaks."""
    _check_words(table, broken)
    _check_values(table, broken)
    _check_configs(table, broken)
    _check_duplicates(table, broken)


def _check_words(table: DataFrame, broken: Broken) -> None:
    for name in _TEXTS:
        odd = [text for text in table[name].unique() if not _is_text(text)]
        if odd:
            raise broken(
                f"a {name} that cannot be a name", plain(odd[0]), _TEXT_IN_WORDS
            )
    for name, words in _WORDS.items():
        unknown = sorted(set(table[name]) - set(words))
        if unknown:
            allowed = ", ".join(filter(None, words))
            raise broken(f"unknown {name}", ", ".join(map(repr, unknown)), allowed)


def _check_values(table: DataFrame, broken: Broken) -> None:
    """Check that the status fits the value, layers exist in the network, sigma is a scale, and step is a count."""
    value, status = table["value"], table["status"]
    is_ok = status == Status.ok
    finite = np.isfinite(value)
    no_block = (table["row"] == "") & (table["col"] == "")
    one_side = ((table["row"] == "") | (table["col"] == "")) & ~no_block
    depth, sigma = table["num_layers"], table["sigma"]
    without_part = [
        name for name in table["quantity"].unique() if _may_lack_part(str(name))
    ]
    rules = {
        "the sweep is not a plain name": ~table["sweep"].map(_is_plain),
        "there is no quantity": table["quantity"] == "",
        "there is no config: the row is cut short": table["config"] == "",
        "a block has two sides": one_side,
        "unknown part": (table["part"] == "")
        & ~no_block
        & ~table["quantity"].isin(without_part),
        "sigma must be positive and finite": ~(
            sigma.isna() | (np.isfinite(sigma) & (sigma > 0))
        ),
        "step must not be negative": table["step"] < 0,
        "index must not be negative": table["index"] < 0,
        "error must not be negative": table["error"] < 0,
        "status is ok but value is not finite": is_ok & ~finite,
        "status is ok but value is not a norm": is_ok
        & (table["quantity"] == FROBENIUS)
        & (value < 0),
        "status is structural_zero but value is not 0": (
            status == Status.structural_zero
        )
        & (value != 0),
        "status is nonfinite but value is finite": (status == Status.nonfinite)
        & finite,
        "num_layers is not a depth": ~depth.between(0, _DEEPEST),
        "layer lies outside the network": ~table["layer"].between(0, depth),
        "row_layer lies outside the network": ~table["row_layer"].between(0, depth),
    }
    for what, bad in rules.items():
        if bad.any():
            row = _describe(
                table[bad].iloc[0], ["sweep", *NUMBER, "value", "error", "status"]
            )
            raise broken(what, row, "rows as `hessfig run` writes them")


def _may_lack_part(quantity: str) -> bool:
    """Return whether rows of a block may lack a part: by the facts of the quantity; users' quantities may lack it."""
    facts = facts_of(quantity)
    return facts is None or not facts.has_part


def _is_plain(name: str) -> bool:
    """Return whether a name is that of a single folder, so that no name in a table leads out of the outputs."""
    return name not in ("", ".", "..") and "/" not in name and not name.startswith("-")


def _is_text(text: str) -> bool:
    """Return whether a text may be printed: it has no control characters and is not too long."""
    return len(text) <= _LONGEST and plain(text, most=_LONGEST) == text


def _check_configs(table: DataFrame, broken: Broken) -> None:
    """Check that each quantity of a network has one configuration; different quantities may have different ones."""
    by_network = table.groupby([*NETWORK, "quantity"], sort=True)["config"].unique()
    for (variant, num_layers, quantity), configs in by_network.items():
        if len(configs) > 1:
            raise broken(
                f"mixes several configurations in variant={variant!r}, num_layers={num_layers}, {quantity}",
                ", ".join(sorted(configs)),
                "one value of `config` for every variant, number of layers and quantity",
            )


def _check_duplicates(table: DataFrame, broken: Broken) -> None:
    twice = table.duplicated(NUMBER)  # two empty values of sigma are equal
    if twice.any():
        row = _describe(table[twice].iloc[0], NUMBER)
        raise broken("two rows describe the same number", row, "one row per number")


def _describe(row: Series, names: list[str]) -> str:
    return ", ".join(f"{name}={row[name]}" for name in names)


_COUNTS = ("num_layers", "layer", "row_layer", "seed", "num_probes")
_EMPTY_COUNTS = ("index", "step")  # empty: 0 for an index, nan for a step
_EMPTY_REALS = ("sigma", "error")
_REALS = ("value", "seconds")
_LARGEST = 2.0**53  # float64 holds all integers up to here


def read_table(path: Path) -> DataFrame:
    """Return the table with parsed numbers; an empty sigma, step or error is nan, an empty index is 0.

    Weights and quantities may have any names. Raises UserError for a file that is
    missing, empty, truncated or not such a table, for a status that contradicts its
    value, for two rows of the same number, and for rows of several configurations that
    would be averaged together.
    """
    raw = _with_header(_read_text(path), path)
    numeric = (*_COUNTS, *_EMPTY_COUNTS, *_EMPTY_REALS, *_REALS)
    table = raw[COLUMNS].assign(**{name: _numbers(raw[name], path) for name in numeric})
    table = table.assign(index=table["index"].fillna(0)).astype(
        dict.fromkeys((*_COUNTS, "index"), int)
    )
    check_rows(
        table, lambda what, got, allowed: _broken(path, what, got=got, allowed=allowed)
    )
    return table


def in_reading_order(frame: DataFrame, table: DataFrame) -> DataFrame:
    """Return rows sorted by network, layer, weights, part, quantity.

    Variants are in natural order (width 8, 16, 128), other names in the order of their
    appearance.
    """
    weight = name_order([*table["row"].unique(), *table["col"].unique()])
    ranks = {
        "variant": variants_in_order(table["variant"]).index,
        "row": weight,
        "col": weight,
        "part": [*(part.value for part in Part), ""].index,
        "quantity": list(table["quantity"].unique()).index,
    }

    def rank(column: Series) -> Series:
        order = ranks.get(str(column.name))
        return column if order is None else column.map(order)

    return frame.sort_values(CURVE, key=rank, kind="stable", ignore_index=True)


def _read_text(path: Path) -> DataFrame:
    if path.exists() and not is_file(path):
        raise _broken(
            path, "cannot be read as a table", got="a folder, a pipe or a device"
        )
    if not is_file(path):
        raise UserError(
            f"{path} is missing: the sweep was not run",
            got="no such file",
            allowed="the table that `hessfig run` writes",
            remedy=run_command(path.parent),
        )
    try:
        raw = read_csv(
            path,
            dtype=str,
            keep_default_na=False,
            header=None,
            encoding="utf-8",
            compression=None,
        )
    except (ValueError, OSError, MemoryError) as error:
        # What pandas raises for broken text are ValueErrors.
        raise _broken(path, "cannot be read as a table", got=str(error)) from error
    if len(raw) < 2:
        raise _broken(path, "has no rows", got=f"{len(raw)} lines")
    return raw


def _with_header(raw: DataFrame, path: Path) -> DataFrame:
    """Return the rows with the names of the first row, and check that every column occurs once."""
    names = [str(name) for name in raw.iloc[0]]
    missing = [name for name in COLUMNS if name not in names]
    twice = [n for n in COLUMNS if names.count(n) > 1]
    if missing or twice:
        what = f"has columns twice: {', '.join(twice)}"
        if missing:
            what = f"lacks columns: {', '.join(missing)}"
        raise _broken(path, what, got=", ".join(names), allowed=", ".join(COLUMNS))
    return raw.iloc[1:].set_axis(names, axis=1).reset_index(drop=True)


def _numbers(column: Series, path: Path) -> Series:
    """Return a column as floats. An empty cell is nan if the column allows it; the text 'nan' is for reals only."""
    name = str(column.name)
    numbers = to_numeric(column, errors="coerce").astype(float)
    words = column.str.strip()
    whole = name in (*_COUNTS, *_EMPTY_COUNTS)
    empty = name in (*_EMPTY_COUNTS, *_EMPTY_REALS)
    if whole:
        bad = ~((numbers.abs() < _LARGEST) & (numbers % 1 == 0))
    else:
        bad = numbers.isna() & ~words.str.lower().isin({"nan", "-nan"})
    bad &= ~(words == "") if empty else True
    if bad.any():
        line = int(np.flatnonzero(bad)[0])
        kind = ("a whole number" if whole else "a number") + " or nothing" * empty
        raise _broken(
            path,
            f"line {line + 2}: {name} is not a number",
            got=repr(column.iloc[line]),
            allowed=kind,
        )
    return numbers


def _broken(
    path: Path,
    what: str,
    *,
    got: str,
    allowed: str = "a table as `hessfig run` writes it",
) -> UserError:
    remedy = f"move it away, and make it again: {run_command(path.parent)}"
    return UserError(f"{path}: {what}", got=got, allowed=allowed, remedy=remedy)
