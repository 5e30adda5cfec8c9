"""A configuration as plain values, for manifests and keys, and the steps of a training that are measured."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from hessfig.config.facts import IN_MANIFEST, Role
from hessfig.config.schema import Config
from hessfig.config.settings import settings, top_level, with_role

# Settings added after version 0.1. While they have their defaults, cells keep their old
# keys, and a manifest without them was made with these defaults.
ADDED = tuple(key for key, setting in settings().items() if setting.added)


def as_plain(config: Any) -> Any:
    """Return a dataclass, or anything that holds some, as what JSON can hold; choices become their text.

    Through JSON, for speed: OmegaConf.to_container gives the same, 70 times slower, and
    plans ask often.
    """
    return json.loads(json.dumps(config, default=asdict))


def without_added(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain settings by group, those of ADDED left out where they stand at their default."""
    return _without(plain, _is_untouched)


def unpinned(config: Config) -> Config:
    """Return a configuration without the hashes of its files."""
    pins = (key.split(".") for key in with_role(Role.pin))
    return replace(
        config,
        **{
            group: replace(getattr(config, group), **{name: None})
            for group, name in pins
        },
    )


def in_key(config: Config) -> dict[str, Any]:
    """Return a configuration's plain settings by group: no ADDED ones at their default, and no places.

    Places say where something is: what is there counts by its content (see
    models.protocol.Kind.source).
    """
    places = with_role(Role.place, Role.pin)
    return _without(
        as_plain(config), lambda key, value: _is_untouched(key, value) or key in places
    )


def in_manifest(config: Config) -> dict[str, Any]:
    """Return a configuration's plain settings that a manifest keeps."""
    kept = top_level(*IN_MANIFEST)
    return {key: value for key, value in as_plain(config).items() if key in kept}


def _without(
    plain: Mapping[str, Any], is_out: Callable[[str, Any], bool]
) -> dict[str, Any]:
    """Return plain settings by group, those left out that `is_out` says of their dotted key and value."""
    return {
        group: {
            name: value
            for name, value in entries.items()
            if not is_out(f"{group}.{name}", value)
        }
        if isinstance(entries, Mapping)
        else entries
        for group, entries in plain.items()
    }


@cache
def added_defaults() -> dict[str, Any]:
    """Return {dotted key: plain default} of the settings in ADDED."""
    plain = as_plain(Config())
    return {
        key: plain[group][name]
        for key in ADDED
        for group, _, name in [key.partition(".")]
    }


def _is_untouched(key: str, value: Any) -> bool:
    return key in added_defaults() and added_defaults()[key] == value


def step_values(config: Config) -> list[int]:
    """Return the steps at which a trained state is measured, in rising order."""
    asked = config.state.step
    if asked is None:
        return [config.training.steps]
    return sorted(asked) if isinstance(asked, list) else [asked]


def kept_steps(config: Config) -> list[int]:
    """Return the steps whose states this run keeps: those asked for and the listed ones below the last of them.

    Steps after the last measured one are not trained: a run of 8 000 that is measured
    at 300 ends there.
    """
    asked = step_values(config)
    return sorted(
        {*asked, *(step for step in config.training.checkpoints if step < asked[-1])}
    )
