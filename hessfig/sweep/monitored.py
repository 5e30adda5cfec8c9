"""The folder of a monitored training: cells, table and manifest, which grow during the training."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hessfig.config.keys import as_plain, in_manifest
from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import write_text
from hessfig.measurements.catalogue import quantity, source_of_quantity
from hessfig.measurements.quantity import Measured
from hessfig.record import (
    MANIFEST,
    SEAL,
    SEAL_BEFORE,
    TABLE,
    UNREADABLE,
    digest,
    read_checked,
    sealed_text,
)
from hessfig.sweep.outputs import now, provenance, table_text
from hessfig.sweep.store import CellStore, Rows

WATCHED = "monitor"  # only in the manifest of a monitored training
_OF_NUMBERS = ("estimator", "spectrum", "blocks", "parts", "first_seed", "dtype")
_NOT_KEPT = "vectors"  # eigenvectors of every step would fill a disk
# Buffers that every training moves.
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


Measurement = tuple[int, str]  # step, quantity


class OtherTraining(UserError):
    """Raised for a folder that holds something else than the present training."""


@dataclass(frozen=True)
class _Cell:
    """One quantity at one step; `arrays` is the SHA-256 of its arrays, if it has some."""

    step: int
    quantity: str
    key: str
    rows: Rows = field(repr=False)
    arrays: str | None = None

    @property
    def measurement(self) -> Measurement:
        return self.step, self.quantity


class MonitoredTraining:
    """What was measured along one training, in the order of its steps.

    `content` is a hash of data and names of weights. What is measured is stored as a
    cell at once; `write` puts table and manifest together anew, and seals the table.
    Raises OtherTraining for a folder with other settings or of another kind, unless it
    may `overwrite`. Warns of measurements that the folder has lost.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        content: str,
        num_layers: int,
        *,
        overwrite: bool = False,
    ) -> None:
        self.folder, self.store = folder, CellStore(folder / "cells")
        self._config, self._num_layers = config, num_layers
        plain = as_plain(config)
        of_numbers = {"content": content, **{key: plain[key] for key in _OF_NUMBERS}}
        versions = {
            name: [quantity(name).version_of(config), source_of_quantity(name, None)]
            for name in config.quantities
        }
        self._science = of_numbers
        self._hashes = {
            name: digest([of_numbers, name, v]) for name, v in versions.items()
        }
        # Of data, settings.
        self.hash = digest(self._hashes)
        self._start = now()
        self._provenance = provenance(config)
        self._cells = list[_Cell]()
        self._unsaved = list[tuple[_Cell, Any]]()
        self._begun = False
        self._has_table = False
        self._parts = dict[str, str]()
        self._moved = set[str]()
        self._lost = list[Measurement]()
        self._sealed: str | None = None  # the hash of the existing table
        self.witness: Mapping[str, Any] = {}  # the record of the copy's comparison
        self.seen: dict[str, Any] = {"budget": {}, "skipped": [], "failures": {}}
        if not overwrite:
            self._resume()

    def key(self, step: int, name: str, point: str) -> str:
        """Return the key of a quantity at a step, given the hash of function and weights."""
        return digest({"settings": self._hashes[name], "step": step, "point": point})

    def begin(
        self, step: int, points: Mapping[str, str], parts: Mapping[str, str]
    ) -> None:
        """Go on from `step`: what an earlier process measured after it, or at it of another function, is left out.

        `points` are hashes of function and weights by quantity, `parts` of what network
        and loss are made of. Raises OtherTraining where nothing was measured before
        `step`, or where a part is another that did not change along the steps measured
        before: then this is not a restart, but another training.
        """
        if not self._begun:
            own = {self.key(step, name, points[name]) for name in self._hashes}
            if self._cells and not any(cell.key in own for cell in self._cells):
                self._check_same(step, parts)
            self._cells = [
                cell for cell in self._cells if cell.step < step or cell.key in own
            ]
            self._begun = True
        if self._parts:
            for name in {*self._parts, *parts}:
                if self._parts.get(name) != parts.get(name):
                    self._moved.add(name)
        self._parts = dict(parts)

    def _check_same(self, step: int, parts: Mapping[str, str]) -> None:
        """Raise OtherTraining unless the measurements before `step` may be of the training that is at it now."""
        steps = sorted({cell.step for cell in self._cells})
        measured = f"steps {steps[0]} to {steps[-1]}"
        other = []
        for name in dict.fromkeys([*self._parts, *parts]):
            is_free = name in self._moved or name.endswith(_RUNNING)
            if not is_free and self._parts.get(name) != parts.get(name):
                other.append(name)
        if other or steps[0] >= step:
            what = f"not of what step {step} is now"
            if other:
                what = f"where these were others: {first_few(other)}"
            raise _other(
                self.folder,
                "the measurements of another training",
                got=f"{measured}, {what}",
            )

    def find(self, key: str) -> Rows | None:
        """Return the rows of an earlier measurement, if there is one."""
        return next((cell.rows for cell in self._cells if cell.key == key), None)

    def keep(
        self, key: str, step: int, name: str, measured: Measured, *, seconds: float
    ) -> Rows:
        """Store a measurement and return its rows. Raises UserError if it cannot be written; it is retried later.

        When this returns, the cell is on disk.
        """
        rows = [
            {"num_layers": self._num_layers, "seconds": round(seconds, 4), **row}
            for row in measured.rows
        ]
        arrays = {
            name: value
            for name, value in measured.arrays.items()
            if not name.startswith(_NOT_KEPT)
        }
        self._unsaved.append((_Cell(step, name, key, rows), arrays))
        self._save()
        return rows

    def write(self, budget: Mapping[str, Any], *, every: int) -> None:
        """Write manifest and table, one after the other: each is whole at any time.

        The manifest has the hash of the table that follows it, and that of the one
        before: a kill between the two leaves a table that it vouches for.
        """
        self._save()
        table = self._table()
        self._write_manifest(budget, every, following=_sha256(table.encode()))
        write_text(self.folder / TABLE, table)
        self._has_table, self._sealed = True, _sha256(table.encode())

    def note(self, budget: Mapping[str, Any], *, every: int) -> None:
        """Write the manifest, with what was seen since the table was written: steps that were skipped or failed.

        Nothing is written next to the table of an earlier process before this one has
        written its own.
        """
        if self._has_table or not (self.folder / TABLE).exists():
            self._write_manifest(budget, every)

    def _write_manifest(
        self, budget: Mapping[str, Any], every: int, following: str | None = None
    ) -> None:
        self.seen["budget"] = dict(budget)
        tables = [sha256 for sha256 in (following, self._sealed) if sha256]
        seal = dict(zip((SEAL, SEAL_BEFORE), dict.fromkeys(tables), strict=False))
        write_text(self.folder / MANIFEST, self._manifest(every, seal))

    def _save(self) -> None:
        while self._unsaved:
            cell, arrays = self._unsaved[0]
            science = {**self._science, "quantity": cell.quantity, "step": cell.step}
            self.store.write(cell.key, science, cell.rows, arrays, self._labels(cell))
            self._cells.append(self._read(cell.step, cell.quantity, cell.key) or cell)
            del self._unsaved[0]

    def _read(self, step: int, name: str, key: str) -> _Cell | None:
        content = self.store.sound(key, warns=True)
        return None if content is None else _Cell(step, name, key, *content)

    def _resume(self) -> None:
        path = self.folder / MANIFEST
        if not path.exists():
            if (self.folder / TABLE).exists():
                raise _other(self.folder, "a table without a manifest", got=TABLE)
            return
        try:
            manifest = read_checked(path)
            seen = manifest[WATCHED]
            is_same = manifest["config_hash"] == self.hash
            listed = [
                (int(step), str(name), str(key)) for step, name, key in seen["cells"]
            ]
            self._parts, self._moved = dict(seen["parts"]), set(seen["moved"])
            self.seen = {key: type(self.seen[key])(seen[key]) for key in self.seen}
        except UNREADABLE as error:
            raise _other(
                self.folder,
                "no training that was watched",
                got=f"{type(error).__name__}: {error}",
            ) from error
        if not is_same:
            raise _other(
                self.folder,
                "measurements with other settings",
                got="other data, blocks, quantities or version",
            )
        self._start = str(manifest.get("start"))
        self._sealed = _sealed_table(self.folder, manifest)
        self._cells = [
            cell for entry in listed if (cell := self._read(*entry)) is not None
        ]
        self._tell_lost(
            [(step, name) for step, name, _ in listed], list(map(tuple, seen["lost"]))
        )

    def _tell_lost(self, listed: list[Measurement], before: list[Measurement]) -> None:
        """Warn of measurements whose cells are lost, so that the table lacks them."""
        lost = self._gone(listed)
        self._lost = self._gone(before) + lost
        if lost:
            distinct = dict.fromkeys(str(step) for step, _ in lost)
            steps = first_few(list(distinct), most=10)
            words = (
                f"{len(lost)} of {len(listed)} measurements are lost: "
                f"their cells are gone, or damaged (steps {steps})"
            )
            warnings.warn(
                f"{self.folder}: {words}; the table goes on without them",
                RuntimeWarning,
                stacklevel=4,
            )

    def _labels(self, cell: _Cell) -> dict[str, Any]:
        return {
            "variant": "",
            "num_layers": self._num_layers,
            "sigma": None,
            "step": cell.step,
            "seed": self._config.first_seed,
            "quantity": cell.quantity,
        }

    def _table(self) -> str:
        rows: list[dict[str, Any]] = []
        for cell in sorted(self._cells, key=lambda cell: cell.step):
            config = self._hashes[cell.quantity][:12]
            place = {"sweep": self.folder.name, "config": config, **self._labels(cell)}
            rows.extend({**place, **row} for row in cell.rows)
        return table_text(rows)

    def _manifest(self, every: int, seal: Mapping[str, str]) -> str:
        # Except what was measured again since.
        config = self._config
        lost = self._gone(self._lost)
        arrays = [self._array(cell) for cell in self._cells if cell.arrays]
        variant = {
            "variant": "",
            "config": {name: sha256[:12] for name, sha256 in self._hashes.items()},
            "model": as_plain(config)["model"],
            "probes": config.estimator.num_probes,
        }
        content = {
            "sweep": self.folder.name,
            "config": in_manifest(config),
            "config_hash": self.hash,
            "variants": [variant],
            **self._provenance,
            "command": "hessfig.Monitor",
            "start": self._start,
            "end": now(),
            "missing_cells": len(lost),
            "arrays": arrays,
            **seal,
            WATCHED: {
                "every": every,
                **self.seen,
                "witness": self.witness,
                "cells": [[cell.step, cell.quantity, cell.key] for cell in self._cells],
                "lost": lost,
                "parts": self._parts,
                "moved": sorted(self._moved),
            },
        }
        return sealed_text(content)

    def _gone(self, measurements: list[Measurement]) -> list[Measurement]:
        """Return the measurements without a cell."""
        stored = {cell.measurement for cell in self._cells}
        return [
            measurement for measurement in measurements if measurement not in stored
        ]

    def _array(self, cell: _Cell) -> dict[str, Any]:
        file = self.store.arrays_path(cell.key).relative_to(self.folder).as_posix()
        return {**self._labels(cell), "file": file, "sha256": cell.arrays}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sealed_table(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    """Return the hash of the existing table if it agrees with its manifest."""
    path = folder / TABLE
    sha256 = _sha256(path.read_bytes()) if path.is_file() else None
    return sha256 if sha256 in (manifest.get(SEAL), manifest.get(SEAL_BEFORE)) else None


def _other(folder: Path, what: str, *, got: str) -> OtherTraining:
    return OtherTraining(
        f"{folder} holds {what}",
        got=got[:300],
        allowed="an empty folder, or the one of this training, which then continues",
        remedy="another folder=..., or overwrite=True",
    )
