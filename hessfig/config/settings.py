"""Every single setting by its dotted key: its type and its line of help, read from the schema."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any

from hessfig.config.schema import Config
from hessfig.config.shipped_files import GROUPS
from hessfig.errors import UserError, did_you_mean

# Settings whose entries have names of the user's own, and the one that --config-dir sets.
OPEN = ("sweep.vary", "figure.options", "model.options")
NOT_GIVEN = "config_dir"


@dataclass(frozen=True)
class Setting:
    """`kind` is its type in words, `default` what one would type for its default; a choice has `choices`."""

    kind: str
    about: str
    default: str
    choices: tuple[str, ...]


@cache
def settings() -> dict[str, Setting]:
    """Return {dotted key: setting} in the order of the schema, those of a group first."""
    return {key: value for key, value in _fields(Config(), "") if key != NOT_GIVEN}


def is_setting(key: str) -> bool:
    """Whether `key` is a setting, or an entry of one that takes any names."""
    return key in settings() or any(key.startswith(f"{name}.") for name in OPEN)


def siblings(key: str) -> list[str]:
    """Return the settings beside `key`: those of its group, or groups and single settings."""
    group = key.rpartition(".")[0]
    beside = [name for name in settings() if name.rpartition(".")[0] == group]
    return beside if group and beside else [*GROUPS, *(name for name in settings() if "." not in name)]


def meant(key: str) -> str:
    """Return which setting was meant by `key`, which is none: one of another group, one spelt alike, or the list."""
    top = [name for name in settings() if "." not in name]
    same = [name for name in settings() if name.rpartition(".")[2] == key and not did_you_mean(key, top)]
    hint = f"did you mean {same[0]!r}?" if same else did_you_mean(key, [*settings(), *GROUPS])
    return hint or "`hessfig run --help` lists the settings"


def wrong_kind(key: str, got: object, *, where: str = "") -> UserError:
    """Return the error to show for a value that setting `key` cannot take; `where`: the file it stands in."""
    setting = settings()[key]
    kind = f"one of {', '.join(setting.choices)}" if setting.choices else setting.kind
    return UserError(
        f"{where}{key} must be {kind}",
        got=got,
        allowed=", ".join(setting.choices) or setting.kind,
        remedy=f"for example {key}={setting.default}",
    )


def _fields(section: Any, prefix: str) -> Iterator[tuple[str, Setting]]:
    for name, kind in typing.get_type_hints(type(section), include_extras=True).items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{key}.")
        else:
            bare, about, *words = typing.get_args(kind)
            yield key, Setting("".join(words) or _words(bare), about, _text(value), _choices(bare))


def _choices(kind: Any) -> tuple[str, ...]:
    is_choice = isinstance(kind, type) and issubclass(kind, Enum)
    return tuple(str(member.value) for member in kind) if is_choice else ()


def _words(kind: Any) -> str:
    """Return a type as a user would write it: int or null, list of text."""
    if isinstance(kind, UnionType):
        return " or ".join(_words(one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return f"a list of {_plural(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is dict:
        return "{name: value}"
    return _WORDS.get(kind, "|".join(_choices(kind)))


def _plural(kind: Any) -> str:
    return {float: "numbers", str: "names", Any: "entries"}.get(kind, _words(kind))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "anything",
}
