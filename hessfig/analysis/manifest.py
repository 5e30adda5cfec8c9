"""Reads the manifest next to a table: settings, axis, and the architectures that predictions need."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pandas import DataFrame

from hessfig.analysis.axis import SIGMA, Axis, settings_of, varied_settings
from hessfig.analysis.table import read_table
from hessfig.errors import UserError, run_command
from hessfig.predictions.architecture import Architecture
from hessfig.record import (
    MANIFEST,
    NETWORK,
    OF_ARCHITECTURE,
    SEAL,
    SEAL_BEFORE,
    TABLE,
    UNREADABLE,
    manifest_in,
)

Architectures = dict[tuple[str, int], Architecture]
Found = TypeVar("Found")

# Retries and pause; a run needs far less time between the two renames.
_LOOKS, _PAUSE = (20, 0.02)

_BOOLEANS = {"true": True, "false": False}
_OPEN = "options"  # a user's own settings need not be in the base configuration


class Disagreement(UserError):
    """Raised for a table and a manifest of different runs."""


@dataclass(frozen=True)
class RecordedRun:
    """A sweep on disk: its checked table, and networks, axis and seeds from the manifest, whose settings are `config`.

    `unchanged` holds, as texts, the values of settings that only some variants change,
    for the other variants.
    """

    table: DataFrame
    architectures: Architectures
    axis: Axis = SIGMA
    first_seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    unchanged: Mapping[str, str] = field(default_factory=dict)


def read_run(folder: Path) -> RecordedRun:
    """Return the checked table of `folder` with the architecture of each (variant, num_layers), axis and first seed.

    Without a manifest, the axis is sigma, and there are no architectures and no
    predictions.
    """
    table, manifest = _agreeing(folder, _read_both)
    if manifest is None:
        return RecordedRun(table, {})
    config = manifest["config"]
    axis = (config.get("sweep") or {}).get("axis")
    first_seed = config.get("first_seed")
    networks = architectures(table, manifest)
    axis = Axis(axis or SIGMA.name)
    unchanged = dict(_unchanged(table["variant"].unique(), manifest))
    return RecordedRun(table, networks, axis, first_seed or 0, config, unchanged)


def _unchanged(
    variants: Iterable[str], manifest: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each setting that some variants change with its value in a variant that does not, if the manifest has it.

    The manifest's config belongs to the first variant; the others have their own model,
    task and state, or the same.
    """
    config = manifest["config"]
    every = manifest.get("variants") or [{"variant": ""}]
    for key in varied_settings(variants):
        group, _, name = key.partition(".")
        for entry in every if group in OF_ARCHITECTURE else every[:1]:
            section = entry.get(group, config.get(group))
            if (
                key not in settings_of(entry.get("variant", ""))
                and isinstance(section, Mapping)
                and name in section
            ):
                yield key, str(section[name])
                break


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return manifest.json, or None if there is none.

    Raises UserError for an invalid manifest, and if its SEAL differs from the hash of
    the table next to it.
    """
    return _agreeing(folder, _read_checked)


def architectures(table: DataFrame, manifest: Mapping[str, Any]) -> Architectures:
    """Return the architecture of every (variant, num_layers) in the table."""
    networks = table[NETWORK].drop_duplicates().itertuples(index=False)
    return {
        (variant, layers): _architecture(manifest, variant, layers)
        for variant, layers in networks
    }


def varied(
    config: Mapping[str, Any], variant: str, *, num_layers: int
) -> dict[str, Any]:
    """Return `config` with the settings 'group.key=value,...' of a variant and its number of layers.

    Raises KeyError or TypeError for a setting that `config` does not have.
    """
    changed = deepcopy(dict(config))
    changed["model"]["n_layers"] = num_layers
    for key, value in settings_of(variant).items():
        *groups, name = key.split(".")
        section = changed
        for group in groups:
            section = section[group]
        if name not in section and _OPEN not in groups:
            raise KeyError(key)
        section[name] = _BOOLEANS.get(value.lower(), value)
    return changed


def _architecture(
    manifest: Mapping[str, Any], variant: str, num_layers: int
) -> Architecture:
    """Return the architecture of one variant.

    The manifest's config belongs to the first variant; the settings of each variant are
    listed in `variants`. If a manifest has no such list, the changes of the variant are
    applied to the config.
    """
    try:
        config = varied(manifest["config"], variant, num_layers=num_layers)
        for entry in manifest.get("variants", []):
            if (
                entry["variant"] == variant
                and entry.get("model", {}).get("n_layers") == num_layers
            ):
                config.update(
                    {group: entry[group] for group in OF_ARCHITECTURE if group in entry}
                )
        return Architecture.from_config(config)
    except UNREADABLE as error:
        raise UserError(
            f"the settings in {MANIFEST} do not fit a variant of the table",
            got=f"{variant} ({type(error).__name__}: {error})",
            allowed="settings that the manifest's config has, with values of this version",
            remedy="run the sweep again (finished cells are reused); of a table that is put together by hand, name the "
            "parts variant='model.options.NAME=VALUE'",
        ) from error


def _agreeing(folder: Path, read: Callable[[Path], Found]) -> Found:
    """Return read(folder), with retries while a run replaces table and manifest one after the other."""
    for _ in range(_LOOKS - 1):
        try:
            return read(folder)
        except Disagreement:
            time.sleep(_PAUSE)
    return read(folder)


def _read_both(folder: Path) -> tuple[DataFrame, dict[str, Any] | None]:
    """Read manifest, table and the table's hash in this order: if the hash fits the manifest, so does the table."""
    # An early check, because the table takes longer to read.
    manifest = _read_checked(folder)
    table = read_table(folder / TABLE)
    _check_table(manifest or {}, folder)
    return table, manifest


def _read_checked(folder: Path) -> dict[str, Any] | None:
    manifest = manifest_in(
        *(folder, "model", "task"),
        check=lambda manifest: Architecture.from_config(manifest["config"]),
        allowed="what `hessfig run` writes next to its table",
    )
    _check_table(manifest or {}, folder)
    return manifest


def _check_table(manifest: Mapping[str, Any], folder: Path) -> None:
    path = folder / TABLE
    recorded = manifest.get(SEAL)
    if recorded is None or not path.is_file():
        return
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual not in (recorded, manifest.get(SEAL_BEFORE)):
        raise Disagreement(
            f"{path} is a table from another config or run than the manifest next to it",
            got=f"sha256 {actual[:12]}...",
            allowed=f"sha256 {recorded[:12]}... (manifest.json)",
            remedy=f"{run_command(folder)} once both are moved away, or take the manifest away",
        )
