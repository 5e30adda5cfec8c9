"""The folder of a training that is watched from outside: cells, table and manifest that grow while it goes on."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hessfig.config import Config
from hessfig.config.keys import as_plain, in_manifest
from hessfig.errors import UserError
from hessfig.files import write_text
from hessfig.measurements.catalogue import quantity, source_of
from hessfig.measurements.quantity import Measured
from hessfig.record import CHECKSUM, COLUMNS, MANIFEST, TABLE, checksum, digest, read_checked
from hessfig.sweep.outputs import now, provenance
from hessfig.sweep.store import CellStore, Rows

WATCHED = "monitor"  # what only the manifest of such a training has
_OF_NUMBERS = ("estimator", "spectrum", "blocks", "parts", "first_seed", "dtype")
_NOT_KEPT = "vectors"  # eigenvectors of every step would fill a disk


class OtherTraining(UserError):
    """A folder that holds something else than the training that is watched now."""


@dataclass(frozen=True)
class _Cell:
    """One quantity at one step; `arrays` is the SHA-256 of its arrays, if it has some."""

    step: int
    quantity: str
    key: str
    rows: Rows = field(repr=False)
    arrays: str | None = None


class Course:
    """What was measured along one training, in the order of its steps.

    `content` is a hash of data, loss and names of weights. What is measured is stored as a cell at once; `write` puts
    table and manifest together anew. Raises OtherTraining for a folder with other settings or of another kind, unless
    it may `overwrite`.
    """

    def __init__(self, folder: Path, config: Config, content: str, num_layers: int, *, overwrite: bool = False) -> None:
        self.folder, self.store, self._config, self._num_layers = (
            folder,
            CellStore(folder / "cells"),
            config,
            num_layers,
        )
        plain = as_plain(config)
        of_numbers = {"content": content, **{key: plain[key] for key in _OF_NUMBERS}}
        versions = {name: [quantity(name).version, source_of(name, None)] for name in config.quantities}
        self._science, self._hashes = of_numbers, {name: digest([of_numbers, name, v]) for name, v in versions.items()}
        self._hash, self._start, self._provenance = digest(self._hashes), now(), provenance(config)
        self._cells, self._unsaved, self._begun = list[_Cell](), list[tuple[_Cell, Any]](), False
        self._has_table = False
        self.seen: dict[str, Any] = {"budget": {}, "skipped": [], "failures": {}}
        if not overwrite:
            self._resume()

    def key(self, step: int, name: str, weights: str) -> str:
        """Return the key of a quantity at a step, where the weights have a certain hash."""
        return digest({"settings": self._hashes[name], "step": step, "weights": weights})

    def begin(self, step: int, weights: str) -> None:
        """Go on from `step`: what an earlier process measured after it, or at it with other weights, is left out.

        Raises OtherTraining where nothing was measured before it: then this is no restart, but another training.
        """
        if self._begun:
            return
        own = {self.key(step, name, weights) for name in self._hashes}
        is_same = any(cell.step < step or cell.key in own for cell in self._cells)
        if self._cells and not is_same:
            steps = sorted({cell.step for cell in self._cells})
            raise _other(
                self.folder,
                "the measurements of another training",
                got=f"steps {steps[0]} to {steps[-1]}, of weights that are not those of step {step} now",
            )
        self._cells = [cell for cell in self._cells if cell.step < step or cell.key in own]
        self._begun = True

    def find(self, key: str) -> Rows | None:
        """Return the rows of what was measured before, if it was."""
        return next((cell.rows for cell in self._cells if cell.key == key), None)

    def keep(self, key: str, step: int, name: str, found: Measured, *, seconds: float) -> Rows:
        """Store what was measured, and return its rows. Raises UserError when it cannot be written: it is tried again.

        A cell is on disk when this returns, whatever becomes of the process.
        """
        rows = [{"num_layers": self._num_layers, "seconds": round(seconds, 4), **row} for row in found.rows]
        arrays = {name: value for name, value in found.arrays.items() if not name.startswith(_NOT_KEPT)}
        self._unsaved.append((_Cell(step, name, key, rows), arrays))
        self._save()
        return rows

    def write(self, budget: Mapping[str, Any], *, every: int) -> None:
        """Write manifest and table, one after the other: each is whole at any time.

        The table may hold a step more or less than the manifest, which says nothing of its content.
        """
        self._save()
        self._write_manifest(budget, every)
        write_text(self.folder / TABLE, self._table())
        self._has_table = True

    def note(self, budget: Mapping[str, Any], *, every: int) -> None:
        """Write the manifest, with what was seen since the table was written: steps that were skipped or failed.

        Nothing is written next to the table of an earlier process before this one has written its own.
        """
        if self._has_table or not (self.folder / TABLE).exists():
            self._write_manifest(budget, every)

    def _write_manifest(self, budget: Mapping[str, Any], every: int) -> None:
        self.seen["budget"] = dict(budget)
        write_text(self.folder / MANIFEST, self._manifest(every))

    def _save(self) -> None:
        while self._unsaved:
            cell, arrays = self._unsaved[0]
            science = {**self._science, "quantity": cell.quantity, "step": cell.step}
            self.store.write(cell.key, science, cell.rows, arrays, self._labels(cell))
            self._cells.append(self._read(cell.step, cell.quantity, cell.key) or cell)
            del self._unsaved[0]

    def _read(self, step: int, name: str, key: str) -> _Cell | None:
        found = self.store.sound(key, warns=True)
        return None if found is None else _Cell(step, name, key, *found)

    def _resume(self) -> None:
        path = self.folder / MANIFEST
        if not path.exists():
            if (self.folder / TABLE).exists():
                raise _other(self.folder, "a table without a manifest", got=TABLE)
            return
        try:
            made = read_checked(path)
            seen, is_same = made[WATCHED], made["config_hash"] == self._hash
            listed = [(int(step), str(name), str(key)) for step, name, key in seen["cells"]]
            self.seen = {key: type(self.seen[key])(seen[key]) for key in self.seen}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise _other(self.folder, "no training that was watched", got=f"{type(error).__name__}: {error}") from error
        if not is_same:
            raise _other(self.folder, "measurements with other settings", got="other data, loss, blocks or quantities")
        self._start = str(made.get("start"))
        self._cells = [cell for one in listed if (cell := self._read(*one)) is not None]

    def _labels(self, cell: _Cell) -> dict[str, Any]:
        place = {"sigma": None, "step": cell.step, "seed": self._config.first_seed}
        return {"variant": "", "num_layers": self._num_layers, **place, "quantity": cell.quantity}

    def _table(self) -> str:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for cell in sorted(self._cells, key=lambda cell: cell.step):
            shared = {"sweep": self.folder.name, **self._labels(cell), "config": self._hashes[cell.quantity][:12]}
            writer.writerows({**shared, **row} for row in cell.rows)
        return buffer.getvalue()

    def _manifest(self, every: int) -> str:
        config = self._config
        arrays = [
            {**self._labels(cell), "file": self._file(cell), "sha256": cell.arrays}
            for cell in self._cells
            if cell.arrays
        ]
        variant = {
            "variant": "",
            "config": {name: found[:12] for name, found in self._hashes.items()},
            "model": as_plain(config)["model"],
            "probes": config.estimator.num_probes,
        }
        content = {
            "sweep": self.folder.name,
            "config": in_manifest(config),
            "config_hash": self._hash,
            "variants": [variant],
            **self._provenance,
            "command": "hessfig.Monitor",
            "start": self._start,
            "end": now(),
            "missing_cells": 0,
            "arrays": arrays,
            WATCHED: {"every": every, **self.seen, "cells": [[c.step, c.quantity, c.key] for c in self._cells]},
        }
        return json.dumps({**content, CHECKSUM: checksum(content)}, indent=1) + "\n"

    def _file(self, cell: _Cell) -> str:
        return self.store.arrays_path(cell.key).relative_to(self.folder).as_posix()


def _other(folder: Path, what: str, *, got: str) -> OtherTraining:
    return OtherTraining(
        f"{folder} holds {what}",
        got=got[:300],
        allowed="an empty folder, or the one of this training, which then continues",
        remedy="another folder=..., or overwrite=True",
    )
