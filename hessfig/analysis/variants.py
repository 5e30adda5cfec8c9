"""The text of a variant, 'group.key=value,...': its settings, its short form, and what several variants differ in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hessfig.errors import UserError, did_you_mean

_BETWEEN = re.compile(r",(?=[A-Za-z_][\w.]*=)")  # a value may hold commas of its own


def assignments(variant: str) -> dict[str, str]:
    """Return the settings of a variant by their dotted keys; none for the plain one."""
    pairs = (part.partition("=") for part in _BETWEEN.split(variant) if part)
    return {key: value for key, _, value in pairs}


def as_variant(settings: Mapping[str, str]) -> str:
    """Return the text of a variant, the inverse of `assignments`."""
    return ",".join(f"{key}={value}" for key, value in settings.items())


def short_variant(variant: str) -> str:
    """Return a variant without its groups: 'model.temperature=0.25' becomes 'temperature=0.25'."""
    return as_variant({last_word(key): value for key, value in assignments(variant).items()})


def last_word(key: str) -> str:
    """Return a setting without its groups."""
    return key.rpartition(".")[2]


def varied_setting(variants: Iterable[str]) -> tuple[str, list[str]]:
    """Return the name of what the variants vary and each one's value, e.g. ('temperature', ['0.5', '1.0'])."""
    settings = [assignments(variant) for variant in variants]
    names = dict.fromkeys(last_word(key) for one in settings for key in one)
    return ", ".join(names), [", ".join(one.values()) for one in settings]


def as_numbers(values: Iterable[str]) -> list[float] | None:
    """Return the values as numbers if all of them are, else None."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


def varied_key(word: str, variants: Iterable[str], *, asked: str, others: Iterable[str] = ()) -> str:
    """Return the varied setting that `word` names, in full or by its last word.

    Raises UserError when no variant has it; `asked` is who wants to know, `others` what may be named as well.
    """
    keys = list(dict.fromkeys(key for variant in variants for key in assignments(variant)))
    found = [key for key in keys if word in (key, last_word(key))]
    if len(found) == 1:
        return found[0]
    allowed = [*others, *keys]
    what = "there are several settings of this name" if found else "the sweep does not vary it"
    raise UserError(
        f"{asked}: {what}",
        got=word,
        allowed=", ".join(allowed),
        remedy=did_you_mean(word, allowed) or f"for example {allowed[0]}",
    )
