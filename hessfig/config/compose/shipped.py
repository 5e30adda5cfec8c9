"""Compositions of the shipped files without Hydra, many times as fast: the same settings, or none where it must ask.

Hydra reads every file anew and copies it several times. Where words choose files and set values, as nearly all do, the
files are merged here as Hydra merges them, each choice once a process. What is written in any other way, and what is
refused, is left to Hydra, whose errors `refusals` puts into words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from hessfig.config.compose.overrides import as_override
from hessfig.config.compose.refusals import REFUSED
from hessfig.config.presets import figures, names
from hessfig.config.schema import GROUPS, Config

_HEADER = "# @package _global_\n"  # a file with this line sets anything, one without it what is of its group
Choices = tuple[tuple[str, str], ...]  # group and name


class _Unusual(Exception):
    """Words or a file that are left to Hydra."""


def shipped(words: Sequence[str]) -> DictConfig | None:
    """Return what words make of the shipped files, a copy to change at will; None where Hydra is to compose them."""
    try:
        overrides = [as_override(word) for word in words]
        choices = dict(_choice(override) for override in overrides if override.key_or_group in GROUPS)
        composed: DictConfig = _chosen(tuple(choices.items())).copy()
        for override in overrides:
            if override.key_or_group not in GROUPS:
                _set(composed, override)
    except (_Unusual, *REFUSED):
        return None
    return composed


def _choice(override: Override) -> tuple[str, str]:
    """Return the group and the name of group=NAME."""
    group, name = override.key_or_group, override.value()
    if override.package is not None or override.is_delete() or override.is_add() or override.is_force_add():
        raise _Unusual
    if not isinstance(name, str) or name not in names(group):
        raise _Unusual
    return group, name


def _set(composed: DictConfig, override: Override) -> None:
    """Set the value of key=value or ++key=value."""
    if override.package is not None or override.is_delete() or override.is_add() or override.is_sweep_override():
        raise _Unusual
    key, value = override.key_or_group, override.value()
    OmegaConf.update(composed, key, value, merge=True, force_add=override.is_force_add())


@lru_cache(maxsize=256)
def _chosen(given: Choices) -> DictConfig:
    """Return the settings that these choices make, the other groups' as the sweep or else the defaults choose."""
    defaults, words = _defaults(), dict(given)
    *others, figure, sweep = (defaults | _chosen_by(words.get("sweep", defaults["sweep"])) | words).items()
    composed = _merged(tuple(others)).copy()
    for group, name in (figure, sweep):
        composed.merge_with(_file(group, name).settings)
    OmegaConf.set_struct(composed, True)
    return composed


@lru_cache(maxsize=256)
def _merged(choices: Choices) -> DictConfig:
    """Return the settings of these files in their order, on top of the defaults of `Config`."""
    composed = _schema().copy()
    for group, name in choices:
        file = _file(group, name)
        if file.defaults:
            raise _Unusual
        composed.merge_with(file.settings)
    return composed


@cache
def _schema() -> DictConfig:
    made = OmegaConf.merge(OmegaConf.create(), OmegaConf.structured(Config))
    assert isinstance(made, DictConfig)
    return made


def _defaults() -> dict[str, str]:
    """Return {group: name} of config.yaml, in the order in which files are merged."""
    file = _file("", "config")
    schema, *chosen, last = file.defaults
    if schema != "schema" or last != "_self_" or file.settings:
        raise _Unusual
    return {group: name for entry in chosen for group, name in entry.items()}


def _chosen_by(sweep: str) -> dict[str, str]:
    """Return {group: name} of the choices in a sweep's file, each of them `- override /GROUP: NAME`."""
    chosen: dict[str, str] = {}
    for entry in _file("sweep", sweep).defaults:
        ((key, name),) = entry.items()
        group = key.removeprefix("override /")
        if group == key or group not in GROUPS:
            raise _Unusual
        chosen[group] = name
    return chosen


@dataclass(frozen=True)
class _File:
    """What a shipped file chooses and what it sets."""

    defaults: list[Any]
    settings: DictConfig


@cache
def _file(group: str, name: str) -> _File:
    """Read a file of a group, or config.yaml of none; the figures share a file."""
    if group == "figure":
        body = {key: value for key, value in figures()[name].items() if key != "about"}
        return _File([], OmegaConf.create({group: body}))
    text = files("hessfig.conf").joinpath(*filter(None, [group]), f"{name}.yaml").read_text("utf-8")
    if "@package" in text.removeprefix(_HEADER):
        raise _Unusual
    settings = OmegaConf.create(text)
    assert isinstance(settings, DictConfig)
    defaults = OmegaConf.to_container(settings.pop("defaults", OmegaConf.create([])))
    assert isinstance(defaults, list)
    is_global = not group or text.startswith(_HEADER)
    return _File(defaults, settings if is_global else OmegaConf.create({group: settings}))
