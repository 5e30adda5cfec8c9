"""Finds and removes cells that neither a table nor a current sweep needs, and leftovers of killed processes."""

import csv
import hashlib
import io
import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessfig.config.enums import Kind
from hessfig.config.schema import Config
from hessfig.config.user.user_code import specs_of
from hessfig.errors import UserError
from hessfig.files import age, clock_of, leftovers, read_small, unwritable
from hessfig.record import MANIFEST, TABLE, digest, read_checked
from hessfig.sweep.plan import Sweep
from hessfig.sweep.store import CellStore, CorruptCell, is_at_work

YOUNG = 24 * 3600.0  # seconds; younger cells may belong to a run that will be resumed
_LARGEST_TABLE = 2**31  # bytes
_OF_A_CELL = ("sigma", "seed", "settled", "step", "content")
_OF_A_QUANTITY = ("quantity", "version", "settings")
Variants = Sequence[tuple[str, Config]]
Listed = tuple[str, float | None, int]  # config, sigma, seed, as a row of a table has them


@dataclass(frozen=True)
class Unused:
    """What may go from a sweep's folder: files of cells, and leftovers of killed writers; `kept` counts sound cells.

    `young` of these are in no table and in no sweep; `why` says why none at all may go, if so.
    """

    folder: Path
    cells: Sequence[Path]
    leftovers: Sequence[Path]
    kept: int
    young: int = 0
    why: str = ""

    @property
    def files(self) -> list[Path]:
        return [*self.cells, *self.leftovers]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(path.stat().st_size for path in self.files if path.exists())

    def lines(self) -> list[str]:
        """Return lines about the files to be removed, and about unused cells that are kept."""
        lines = []
        if self.why:
            lines.append(f"{self.folder}: every cell stays: {self.why}")
        if self.young:
            lines.append(
                f"{self.folder}: {self.young} unused cells stay: they were written less than a day ago, perhaps by a "
                "run that will be resumed"
            )
        if self.files:
            size = f"{self.size / 1e6:.1f} MB" if self.size >= 1e5 else f"{self.size / 1e3:.1f} kB"
            rest = f", {len(self.leftovers)} leftovers of interrupted writers" * bool(self.leftovers)
            files = f"{len(self.cells)} files of unused cells{rest}, {size}"
            lines.append(f"{self.folder}: {files}; {self.kept} cells stay")
        return [*lines, *(f"  {path}" for path in self.files)]


def unused_files(folder: Path, current: Variants | None) -> Unused:
    """Return the unused files in the folder of a sweep with the settings `current` (None: no such sweep any more).

    A cell is kept when the table on disk lists it, when the current settings ask for it, when it is a pilot of a
    network of either, when its file cannot be read (nobody knows what it is of), and when it was written less than a
    day ago (YOUNG). Every cell is kept while a run is at work in the folder, and when it is not known what the table
    lists or what the settings ask for: no code of the user's is run to find out.
    """
    store = CellStore(folder / "cells")
    sciences, old = dict(_sciences(store)), sorted(leftovers(folder))
    why = "a run is at work there" if is_at_work(folder) else ""
    try:
        listed, planned = _listed(folder), _planned(current) if current else set()
    except UserError as error:
        why = why or f"what its settings ask for is not known ({error.what})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
        why = why or f"what its table lists is not known ({type(error).__name__}: {error})"
    if why:
        return Unused(folder, [], old, len(sciences), why=why)
    used = {key for key, science in sciences.items() if key in planned or _row(science) in listed}
    networks = {_network(sciences[key]) for key in used}
    used |= {key for key, science in sciences.items() if science["seed"] < 0 and _network(science) in networks}
    now = clock_of(store.folder)
    young = {key for key in sciences.keys() - used if not _is_old(store, key, now)}
    gone = [path for key in sorted(sciences.keys() - used - young) for path in _files(store, key)]
    return Unused(folder, gone, old, len(used | young), len(young))


def remove_unused(unused: Unused) -> int:
    """Remove the files and return their number; a cell is removed before its arrays.

    Nothing goes when a run has begun meanwhile, and nothing that it has written. Raises UserError when it cannot.
    """
    store, count = CellStore(unused.folder / "cells"), 0
    now, is_busy = clock_of(store.folder), is_at_work(unused.folder)
    cells = [] if is_busy else [path for path in unused.cells if _is_old(store, path.stem, now)]
    for path in [*cells, *unused.leftovers]:
        try:
            path.unlink(missing_ok=True)
            count += 1
        except OSError as error:
            raise unwritable(path, error) from error
    return count


def sweep_folders(outputs: Path) -> list[Path]:
    """Return the folders of sweeps in `outputs`: those that hold cells."""
    return sorted(path.parent for path in outputs.glob("*/cells") if path.is_dir())


def _sciences(store: CellStore) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(store.folder.glob("*/*.json")):
        with suppress(CorruptCell, OSError, ValueError, KeyError, TypeError):
            if store.read(path.stem) is not None:
                science = json.loads(path.read_text())["science"]
                yield path.stem, {**science, "seed": int(science["seed"])}


def _listed(folder: Path) -> Collection[Listed]:
    """Return the keys that the table lists; empty if there never was a table.

    Raises an error of reading, and ValueError for a table that its manifest does not vouch for: it may be cut short.
    """
    table, manifest = folder / TABLE, folder / MANIFEST
    if not (os.path.lexists(table) or os.path.lexists(manifest)):
        return set()
    content = read_small(table, _LARGEST_TABLE)
    if hashlib.sha256(content).hexdigest() != read_checked(manifest).get("table_sha256"):
        raise ValueError("it is not the table of its manifest")
    rows = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
    return {(row["config"], float(row["sigma"]) if row["sigma"] else None, int(row["seed"])) for row in rows}


def _is_old(store: CellStore, key: str, now: float) -> bool:
    """Whether a cell, and its arrays, were written longer ago than YOUNG; what is not there any more was."""
    return all(age(path, now) > YOUNG for path in _files(store, key))


def _planned(current: Variants) -> set[str]:
    """Return the keys of the cells that the settings ask for, pilots included.

    Raises UserError where these cannot be found, or not without running code of the user's.
    """
    if any(config.model.kind == Kind.python or specs_of(config) for _, config in current):
        raise UserError(
            "they name code, which is not run here",
            got=[spec for _, config in current for spec in specs_of(config)],
            allowed="settings that name no code",
            remedy="remove by hand what no table lists, or leave it",
        )
    sweep = Sweep(current)
    return {cell.key for cell in (*sweep.cells, *sweep.pilots)}


def _row(science: dict[str, Any]) -> Listed:
    config = digest({key: value for key, value in science.items() if key not in _OF_A_CELL})[:12]
    sigma = science["sigma"]
    return config, None if sigma is None else float(sigma), science["seed"]


def _network(science: dict[str, Any]) -> str:
    return digest({key: value for key, value in science.items() if key not in (*_OF_A_CELL, *_OF_A_QUANTITY)})


def _files(store: CellStore, key: str) -> list[Path]:
    return [path for path in (store.path(key), store.arrays_path(key)) if path.exists()]
