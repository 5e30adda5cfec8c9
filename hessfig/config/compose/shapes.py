"""Values that composition lets through although no setting can take them: lists in lists, names that are paths."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any

from hessfig.config.own import NAME, NAME_IN_WORDS
from hessfig.config.schema import Config
from hessfig.config.settings import wrong_kind
from hessfig.errors import UserError, did_you_mean


def check_shapes(config: Config) -> None:
    """Raise UserError for a value that is not of its setting's type, an axis that is not varied, and bad names."""
    _check_fields(config, "")
    _check_axis(config)
    _check_name("sweep.name", config.sweep.name)
    for key in ("name", "sweep"):
        if getattr(config.figure, key):
            _check_name(f"figure.{key}", getattr(config.figure, key))


def _check_fields(section: Any, prefix: str) -> None:
    for name, kind in typing.get_type_hints(type(section)).items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            _check_fields(value, f"{key}.")
        elif not _is_a(value, kind):
            raise wrong_kind(key, value)


def _is_a(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if isinstance(kind, UnionType):
        return any(_is_a(value, one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return isinstance(value, list) and all(_is_a(one, typing.get_args(kind)[0]) for one in value)
    if typing.get_origin(kind) is dict:
        return isinstance(value, Mapping)
    if kind in (int, float):
        return isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    return value is None if kind is NoneType else isinstance(value, kind)


def _check_axis(config: Config) -> None:
    allowed = ["sigma", "step", "index", *config.sweep.vary]
    if config.sweep.axis not in allowed:
        raise UserError(
            "sweep.axis is not what this sweep runs along",
            got=f"sweep.axis={config.sweep.axis}",
            allowed=", ".join(allowed),
            remedy=did_you_mean(config.sweep.axis, allowed)
            or f"sweep.vary={{{config.sweep.axis}: [VALUES]}}",
        )


def _check_name(key: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise UserError(
            f"{key} is the name of a {'folder' if 'sweep' in key else 'file'}",
            got=repr(name),
            allowed=NAME_IN_WORDS,
            remedy=f"for example {key}=mine",
        )
