"""What the rows of a table must obey, whoever wrote them: true statuses, names that are names, every number once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from hessfig.errors import UserError, plain
from hessfig.record import FROBENIUS, NETWORK, NUMBER, OF_WEIGHTS, Status
from hessfig.terms import Part

Broken = Callable[[str, str, str], UserError]

_WORDS = {"part": ("", *(part.value for part in Part)), "status": tuple(status.value for status in Status)}
_TEXTS = ("sweep", "variant", "row", "col", "quantity", "estimator", "dtype", "config")
_LONGEST = 1000
_TEXT_IN_WORDS = f"at most {_LONGEST} printable characters"
_DEEPEST = 10_000  # layers; no network has as many


def check_rows(table: pd.DataFrame, broken: Broken) -> None:
    """Raise `broken(what, got, allowed)` for the first rule that a row breaks."""
    _check_words(table, broken)
    _check_values(table, broken)
    _check_configs(table, broken)
    _check_duplicates(table, broken)


def _check_words(table: pd.DataFrame, broken: Broken) -> None:
    for name in _TEXTS:
        odd = [text for text in table[name].unique() if not _is_text(text)]
        if odd:
            raise broken(f"a {name} that cannot be a name", plain(odd[0]), _TEXT_IN_WORDS)
    for name, words in _WORDS.items():
        unknown = sorted(set(table[name]) - set(words))
        if unknown:
            allowed = ", ".join(filter(None, words))
            raise broken(f"unknown {name}", ", ".join(map(repr, unknown)), allowed)


def _check_values(table: pd.DataFrame, broken: Broken) -> None:
    """A status must tell the truth about its value, layers must be the network's, sigma a scale, step a count."""
    value, status, finite = table["value"], table["status"], np.isfinite(table["value"])
    no_block = (table["row"] == "") & (table["col"] == "")
    one_side = ((table["row"] == "") | (table["col"] == "")) & ~no_block
    depth = table["num_layers"]
    rules = {
        "the sweep is no plain name": ~table["sweep"].map(_is_plain),
        "there is no quantity": table["quantity"] == "",
        "there is no config: the row is cut short": table["config"] == "",
        "a block has two sides": one_side,
        "unknown part": (table["part"] == "") & ~no_block & ~table["quantity"].isin(OF_WEIGHTS),
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
            row = _describe(table[bad].iloc[0], ["sweep", *NUMBER, "value", "error", "status"])
            raise broken(what, row, "rows as `hessfig run` writes them")


def _is_plain(name: str) -> bool:
    """Return whether a name is that of one folder: nothing in a table may lead out of it."""
    return name not in ("", ".", "..") and "/" not in name


def _is_text(text: str) -> bool:
    """Return whether a text may be shown: it steers no terminal and fills no screen."""
    return len(text) <= _LONGEST and plain(text, most=_LONGEST) == text


def _check_configs(table: pd.DataFrame, broken: Broken) -> None:
    """Each quantity of a network is of one configuration: their settings may differ, and so may their hashes."""
    found = table.groupby([*NETWORK, "quantity"], sort=True)["config"].unique()
    for (variant, num_layers, quantity), configs in found.items():
        if len(configs) > 1:
            raise broken(
                f"mixes several configurations in variant={variant!r}, num_layers={num_layers}, {quantity}",
                ", ".join(sorted(configs)),
                "one value of `config` for every variant, number of layers and quantity",
            )


def _check_duplicates(table: pd.DataFrame, broken: Broken) -> None:
    twice = table.duplicated(NUMBER)  # an empty sigma equals an empty sigma
    if twice.any():
        row = _describe(table[twice].iloc[0], NUMBER)
        raise broken("two rows claim to be the same number", row, "one row a number")


def _describe(row: pd.Series, names: list[str]) -> str:
    return ", ".join(f"{name}={row[name]}" for name in names)
