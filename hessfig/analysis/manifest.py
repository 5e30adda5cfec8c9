"""The manifest beside a table: which settings made it, hence which network its predictions are for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.table import NETWORK, TABLE, read_table, run_command
from hessfig.errors import UserError
from hessfig.predictions.architecture import Architecture

MANIFEST = "manifest.json"
Architectures = dict[tuple[str, int], Architecture]
_BOOLEANS = {"true": True, "false": False}


def read_sweep(folder: Path) -> tuple[pd.DataFrame, Architectures]:
    """Return the checked table of `folder` and the architecture of each (variant, num_layers) in it.

    Without a manifest the table is read all the same, and no architecture (so no prediction) is known.
    """
    table = read_table(folder / TABLE)
    manifest = read_manifest(folder)
    return table, {} if manifest is None else architectures(table, manifest)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return manifest.json, or None if there is none.

    Raises UserError if it is no manifest, or if its `table_sha256` is not that of the table beside it.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    manifest = _parse(path)
    _check_table(manifest, folder)
    return manifest


def architectures(table: pd.DataFrame, manifest: Mapping[str, Any]) -> Architectures:
    """Return the architecture of every (variant, num_layers) in the table."""
    networks = table[NETWORK].drop_duplicates().itertuples(index=False)
    return {
        (variant, layers): Architecture.from_config(varied(manifest["config"], variant, num_layers=layers))
        for variant, layers in networks
    }


def varied(config: Mapping[str, Any], variant: str, *, num_layers: int) -> dict[str, Any]:
    """Return `config` with a variant's 'group.key=value,...' and its number of layers put in."""
    changed = deepcopy(dict(config))
    changed["model"]["n_layers"] = num_layers
    for assignment in filter(None, variant.split(",")):
        key, _, value = assignment.partition("=")
        *groups, name = key.split(".")
        section = changed
        for group in groups:
            section = section[group]
        section[name] = _BOOLEANS.get(value.lower(), value)
    return changed


def _parse(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text())
        Architecture.from_config(manifest["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a manifest of this version",
            got=f"{type(error).__name__}: {error}",
            remedy=f"{run_command(path.parent)} (finished cells are reused)",
        ) from error
    return manifest


def _check_table(manifest: Mapping[str, Any], folder: Path) -> None:
    path, recorded = folder / TABLE, manifest.get("table_sha256")
    if recorded is None or not path.is_file():
        return
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != recorded:
        raise UserError(
            f"{path} is a table from another config or run than the manifest beside it",
            got=f"sha256 {found[:12]}...",
            allowed=f"sha256 {recorded[:12]}... (manifest.json)",
            remedy=f"{run_command(folder)} (finished cells are reused), or take the manifest away",
        )
