"""The settings of `hessfig verify`, read from key=value words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hessfig.errors import UserError, did_you_mean
from hessfig.theory.verify.statement import Dims

DEFAULT_SEEDS = 3
LARGEST = 10**9
_SIZES = tuple(vars(Dims()))
_KEYS = ("statement", "output_dir", "seeds", "dtype", *_SIZES)


def parse(arguments: list[str]) -> dict[str, Any]:
    """Return the keyword arguments of `verify.run`: statement=a,b output_dir=DIR seeds=N dtype=float64 L=
    d_V= d_K= d_ff=.

    Raises UserError for a word that is not key=value, an unknown key, or a size that is not a whole number.
    """
    given = dict(_key_value(word) for word in arguments)
    names = given.get("statement")
    sizes = {name: _whole_number(name, given[name]) for name in _SIZES if name in given}
    return {
        "statement_ids": None if names is None else [name.strip() for name in names.strip("[]").split(",")],
        "output_dir": Path(given.get("output_dir", "outputs")),
        "dims": Dims(**sizes),
        "seeds": _whole_number("seeds", given.get("seeds", str(DEFAULT_SEEDS))),
        "dtype": given.get("dtype", "float64"),
    }


def _key_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise UserError(
            f"verify: cannot read {word!r}",
            got=word,
            allowed="key=value",
            remedy="for example statement=thm31",
        )
    if key not in _KEYS:
        raise UserError(
            f"verify: there is no setting {key!r}",
            got=word,
            allowed=", ".join(_KEYS),
            remedy=did_you_mean(key, _KEYS) or "leave it out",
        )
    return key, value


def _whole_number(key: str, text: str) -> int:
    try:
        if abs(number := int(text)) > LARGEST:
            raise ValueError("no size is as large")
        return number
    except ValueError as error:
        example = f"for example {key}={getattr(Dims(), key, DEFAULT_SEEDS)}"
        raise UserError(f"verify: {key}", got=text[:100], allowed="a whole number", remedy=example) from error
