"""The settings of `hessfig verify`, read from key=value words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hessfig.errors import UserError, did_you_mean
from hessfig.theory.verify.statement import Dims

DEFAULT_SEEDS = 3
_SIZES = tuple(vars(Dims()))
_KEYS = ("statement", "output_dir", "seeds", "dtype", *_SIZES)


def parse(arguments: list[str]) -> dict[str, Any]:
    """Return the keyword arguments of `verify.run`: statement=a,b output_dir=DIR seeds=N dtype=float64 L=
    d_V= d_K= d_ff=.

    Raises UserError for a word that is not key=value, an unknown key, or a size that is not a whole number.
    """
    given = dict(_key_value(word) for word in arguments)
    names = given.get("statement", "").strip("[]")
    sizes = {name: _whole_number(name, given[name]) for name in _SIZES if name in given}
    return {
        "statement_ids": [name.strip() for name in names.split(",")] if names else None,
        "output_dir": Path(given.get("output_dir", "outputs")),
        "dims": Dims(**sizes),
        "seeds": _whole_number("seeds", given.get("seeds", str(DEFAULT_SEEDS))),
        "dtype": given.get("dtype", "float64"),
    }


def _key_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise UserError(
            f"verify: cannot read {word!r}", allowed="key=value", remedy=f"for example statement={word}"
        )
    if key not in _KEYS:
        raise UserError(
            f"verify: there is no setting {key!r}",
            got=word,
            allowed=", ".join(_KEYS),
            remedy=did_you_mean(key, _KEYS),
        )
    return key, value


def _whole_number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"verify: {key}", got=text, allowed="a whole number") from error
