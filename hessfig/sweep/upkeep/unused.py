"""Cells that no table lists and no current sweep asks for, and what killed writers left: found, and removed."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessfig.files import is_file, leftovers
from hessfig.record import TABLE, digest
from hessfig.sweep.pilots import allocations, pilot_cells, settled_by
from hessfig.sweep.plan import Variants, plan, setups_of
from hessfig.sweep.store import CellStore, CorruptCell

_OF_A_CELL = ("sigma", "seed", "settled", "step")
_OF_A_QUANTITY = ("quantity", "version", "settings")
Listed = tuple[str, float | None, int]  # config, sigma, seed, as a row of a table has them


@dataclass(frozen=True)
class Unused:
    """What may go from a sweep's folder: files of cells, and leftovers of killed writers; `kept` counts sound cells."""

    folder: Path
    cells: Sequence[Path]
    leftovers: Sequence[Path]
    kept: int

    @property
    def files(self) -> list[Path]:
        return [*self.cells, *self.leftovers]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(path.stat().st_size for path in self.files if path.exists())


def unused(folder: Path, current: Variants | None) -> Unused:
    """Return what nothing uses in the folder of a sweep, whose settings are now `current` (None: there is none).

    A cell is kept when the table on disk lists it, when the current settings ask for it, when it is a pilot of a
    network of either, and when its file cannot be read (nobody knows what it is of).
    """
    store = CellStore(folder / "cells")
    listed, planned = _listed(folder / TABLE), _planned(current, store) if current else set()
    sciences = dict(_sciences(store))
    used = {key for key, science in sciences.items() if key in planned or _row(science) in listed}
    networks = {_network(sciences[key]) for key in used}
    used |= {
        key for key, science in sciences.items() if science["seed"] < 0 and _network(science) in networks
    }
    gone = [path for key in sorted(sciences.keys() - used) for path in _files(store, key)]
    return Unused(folder, gone, sorted(leftovers(folder)), len(used))


def remove(found: Unused) -> None:
    """Remove the files; a cell goes before its arrays, so that none is left without what it vouches for."""
    for path in found.files:
        with suppress(FileNotFoundError):
            path.unlink()


def sweep_folders(outputs: Path) -> list[Path]:
    """Return the folders of sweeps in `outputs`: those that hold cells."""
    return sorted(path.parent for path in outputs.glob("*/cells") if path.is_dir())


def _sciences(store: CellStore) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(store.folder.glob("*/*.json")):
        with suppress(CorruptCell, OSError, ValueError, KeyError, TypeError):
            if store.read(path.stem) is not None:
                science = json.loads(path.read_text())["science"]
                yield path.stem, {**science, "seed": int(science["seed"])}


def _listed(table: Path) -> Collection[Listed]:
    if not is_file(table):
        return set()
    with table.open(newline="", encoding="utf-8") as handle:
        rows = csv.DictReader(handle)
        return {
            (row["config"], float(row["sigma"]) if row["sigma"] else None, int(row["seed"])) for row in rows
        }


def _planned(current: Variants, store: CellStore) -> set[str]:
    """Return the keys of the cells that the current settings ask for, pilots included."""
    setups = setups_of(current)
    cells = plan(setups, settled_by(setups, allocations(setups, store)))
    return {cell.key for cell in (*cells, *pilot_cells(setups))}


def _row(science: dict[str, Any]) -> Listed:
    config = digest({key: value for key, value in science.items() if key not in _OF_A_CELL})[:12]
    sigma = science["sigma"]
    return config, None if sigma is None else float(sigma), science["seed"]


def _network(science: dict[str, Any]) -> str:
    return digest({key: value for key, value in science.items() if key not in (*_OF_A_CELL, *_OF_A_QUANTITY)})


def _files(store: CellStore, key: str) -> list[Path]:
    return [path for path in (store.path(key), store.arrays_path(key)) if path.exists()]
