"""Command-line overrides, checked before Hydra sees them: unknown keys, groups and choices get a helpful error."""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum
from importlib.resources import files
from itertools import pairwise
from typing import Any

from hessfig.errors import UserError, did_you_mean

GROUPS = ("task", "model", "grid", "estimator", "sweep", "figure")
_OPEN = ("sweep.vary.", "figure.options.")


def check_overrides(arguments: list[str]) -> dict[str, Any]:
    """Return {key: value} of the overrides in `arguments` (flags are skipped).

    Raises UserError for text that is not key=value, and for keys, groups or choices that do not exist.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    words = [
        word
        for word in arguments
        if (not word.startswith("-") and "=" in word) or word.startswith(("~", "+"))
    ]
    _refuse_strays(arguments, words)
    try:
        parsed = OverridesParser.create().parse_overrides(words)
    except OverrideParseException as error:
        raise UserError(
            f"cannot read {error.override!r}",
            allowed="key=value",
            remedy="quote values with special characters",
        ) from error
    for override in parsed:
        _check_one(override.key_or_group, override.value(), override.is_sweep_override())
    return {override.key_or_group: override.value() for override in parsed}


def quote_numbers(arguments: list[str]) -> list[str]:
    """Return `arguments` with figure=6 as figure='6': Hydra takes an unquoted number for no choice of a group."""
    return [_quoted(word) if word.partition("=")[0] in GROUPS else word for word in arguments]


def choices(group: str) -> dict[str, str]:
    """Return {choice: one line about it} of a configuration group, read from the shipped files."""
    folder = files("hessfig.conf").joinpath(group)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): _about(folder.joinpath(name).read_text()) for name in names}


def keys() -> dict[str, Any]:
    """Return {dotted key: type} of every single setting."""
    from hessfig.config import Config

    return dict(_fields(Config, ""))


def _quoted(word: str) -> str:
    group, _, names = word.partition("=")
    return f"{group}=" + ",".join(f"'{name}'" if name.isdigit() else name for name in names.split(","))


def _refuse_strays(arguments: list[str], words: list[str]) -> None:
    values_of_flags = {
        after for before, after in pairwise(arguments) if before in ("--cfg", "-c", "--package", "-p")
    }
    for word in arguments:
        if not word.startswith("-") and word not in words and word not in values_of_flags:
            raise UserError(f"cannot read {word!r}", allowed="key=value", remedy=_key_hint(word))


def _check_one(key: str, value: Any, is_sweep: bool) -> None:
    if key in GROUPS:
        _check_choice(key, value, is_sweep)
    elif key not in keys() and not key.startswith(("hydra.", "hydra/", *_OPEN)):
        raise UserError(
            f"there is no setting {key!r}", got=key, allowed=_siblings(key), remedy=_key_hint(key)
        )


def _check_choice(group: str, value: Any, is_sweep: bool) -> None:
    known = choices(group)
    for entry in value.list if is_sweep and hasattr(value, "list") else [value]:
        choice = str(getattr(entry, "text", entry))
        if choice not in known:
            raise UserError(
                f"there is no {group} {choice!r}",
                got=f"{group}={choice}",
                allowed=", ".join(known),
                remedy=did_you_mean(choice, known),
            )


def _siblings(key: str) -> str:
    parent = key.rpartition(".")[0]
    names = [name for name in keys() if name.rpartition(".")[0] == parent] or [
        *GROUPS,
        *(k for k in keys() if "." not in k),
    ]
    return ", ".join(names)


def _key_hint(key: str) -> str:
    by_leaf = [
        name for name in keys() if name.rpartition(".")[2] == key and not did_you_mean(key, _top_level())
    ]
    hint = f"did you mean {by_leaf[0]!r}?" if by_leaf else did_you_mean(key, [*keys(), *GROUPS])
    return hint or "`hessfig run --help` lists the settings"


def _fields(schema: type, prefix: str) -> typing.Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _fields(kind, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", kind


def _about(text: str) -> str:
    import yaml

    comment = next(
        (line[2:] for line in text.splitlines() if line.startswith("# ") and "@package" not in line), ""
    )
    body = yaml.safe_load(text) or {}
    return (
        str((body.get("sweep") or {}).get("about") or comment)
        if isinstance(body.get("sweep"), dict)
        else comment
    )


def values_of(kind: Any) -> list[str]:
    """Return the values an enum setting may take (empty for other settings)."""
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _top_level() -> list[str]:
    return [name for name in keys() if "." not in name]
