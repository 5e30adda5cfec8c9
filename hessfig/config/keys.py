"""A configuration as plain values, for manifests and keys, and the steps of a training that are measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from hessfig.config.enums import Data
from hessfig.config.schema import Config

# What the files of a run are by content, filled in when it is planned (see states.point.pinned).
PINS = ("task.sha256", "model.sha256", "state.sha256")
# Settings of network and task that version 0.1 had not. A cell keeps the key it had before them as long as they stand
# at their default, and a manifest without them was made with that default. Add every new one here.
ADDED: tuple[str, ...] = (
    "model.initialisation",
    "model.sink",
    "model.sink_beta",
    "model.scaled_weight",
    "model.weight_scale",
    "model.patch",
    *("model.path", "model.random", "model.download", "model.architecture", "model.vocabulary"),
    "task.path",
    "task.length",
    "task.first_scored",
    "training.curvature",
    "training.refresh",
    "task.base",
    *PINS,
)
# Settings that say where something is: what is there counts by its content (see models.protocol.Kind.source).
PLACES = ("model.path", "model.download", "task.path", *PINS)


def as_plain(config: Any) -> Any:
    """Return a dataclass, or anything that holds some, as what JSON can hold; choices become their text.

    Through JSON, for speed: OmegaConf.to_container gives the same, 70 times slower, and plans ask often.
    """
    return json.loads(json.dumps(config, default=asdict))


def without_added(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain settings by group, those of ADDED left out where they stand at their default."""
    return {
        group: {name: value for name, value in entries.items() if not _is_untouched(f"{group}.{name}", value)}
        if isinstance(entries, Mapping)
        else entries
        for group, entries in plain.items()
    }


def unpinned(config: Config) -> Config:
    """Return a configuration without the hashes of its files."""
    bare = {group: replace(getattr(config, group), sha256=None) for group, _, _ in (key.partition(".") for key in PINS)}
    return replace(config, **bare)


def in_key(config: Config) -> dict[str, Any]:
    """Return a configuration's plain settings by group: no ADDED ones at their default, and no PLACES."""
    plain = without_added(as_plain(config))
    return {
        group: {name: value for name, value in entries.items() if f"{group}.{name}" not in PLACES}
        if isinstance(entries, Mapping)
        else entries
        for group, entries in plain.items()
    }


@cache
def added_defaults() -> dict[str, Any]:
    """Return {dotted key: plain default} of the settings in ADDED."""
    plain = as_plain(Config())
    return {key: plain[group][name] for key in ADDED for group, _, name in [key.partition(".")]}


def _is_untouched(key: str, value: Any) -> bool:
    return key in added_defaults() and added_defaults()[key] == value


TRAINABLE = (Data.addition, Data.digits)


def step_values(config: Config) -> list[int]:
    """Return the steps at which a trained state is measured, in rising order."""
    asked = config.state.step
    if asked is None:
        return [config.training.steps]
    return sorted(asked) if isinstance(asked, list) else [asked]


def kept_steps(config: Config) -> list[int]:
    """Return the steps whose states this run keeps: those asked for and the listed ones below the last of them.

    Steps that nobody asks for are not trained: a run of 8 000 that is measured at 300 ends there.
    """
    asked = step_values(config)
    return sorted({*asked, *(step for step in config.training.checkpoints if step < asked[-1])})
