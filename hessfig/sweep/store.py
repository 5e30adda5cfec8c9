"""Results on disk: one file a cell (and one for its arrays), written whole or not at all, checked when read."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hessfig.files import replacing, write_bytes

Rows = list[dict[str, Any]]


class CorruptCell(Exception):
    """A cell file that cannot be trusted: truncated, edited or not of its key."""


class CellStore:
    """Finished cells under `folder`, by key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def arrays_path(self, key: str) -> Path:
        """Where the arrays of a cell are: an .npz of plain arrays under its key."""
        return self.path(key).with_suffix(".npz")

    def write(
        self,
        key: str,
        science: dict[str, Any],
        rows: Rows,
        arrays: Mapping[str, Any] | None = None,
        label: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a finished cell; readers see all of it or nothing. Arrays come first, so a cell vouches for its own."""
        digest = self._write_arrays(key, arrays, label or {}) if arrays else None
        payload = {"science": science, "rows": rows, "arrays": digest}
        text = json.dumps({"key": key, "checksum": _checksum(payload), **payload}, indent=1)
        with replacing(self.path(key)) as handle:
            handle.write(text)

    def read(self, key: str) -> Rows | None:
        """Return the rows of a finished cell, or None when there is no such file.

        Raises CorruptCell, naming the file and what is wrong with it.
        """
        cell = self._read(key)
        return None if cell is None else cell["rows"]

    def arrays_hash(self, key: str) -> str | None:
        """Return the SHA-256 of a finished cell's arrays; None if it has none. Raises CorruptCell as `read` does."""
        cell = self._read(key)
        return None if cell is None else cell["arrays"]

    def is_finished(self, key: str) -> bool:
        """Whether the cell and its arrays are there and sound. Raises CorruptCell for a file that is not."""
        cell = self._read(key)
        if cell is None or cell["arrays"] is None:
            return cell is not None
        path = self.arrays_path(key)
        if not path.is_file():
            raise CorruptCell(f"{path}: the arrays of a finished cell are missing")
        if hashlib.sha256(path.read_bytes()).hexdigest() != cell["arrays"]:
            raise CorruptCell(f"{path}: its checksum does not match its cell")
        return True

    def _read(self, key: str) -> dict[str, Any] | None:
        path = self.path(key)
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise CorruptCell(f"{path}: not text ({error.reason})") from error
        except OSError as error:
            raise CorruptCell(f"{path}: cannot be read ({error.strerror})") from error
        return _verified(text, key, path)

    def _write_arrays(self, key: str, arrays: Mapping[str, Any], label: Mapping[str, Any]) -> str:
        import numpy

        buffer = io.BytesIO()
        numpy.savez_compressed(buffer, label=json.dumps({"key": key, **label}), **arrays)
        write_bytes(self.arrays_path(key), buffer.getvalue())
        return hashlib.sha256(buffer.getvalue()).hexdigest()


def _verified(text: str, key: str, path: Path) -> dict[str, Any]:
    try:
        cell = json.loads(text)
        payload = {"science": cell["science"], "rows": cell["rows"], "arrays": cell["arrays"]}
        sound = cell["key"] == key and cell["checksum"] == _checksum(payload)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCell(f"{path}: truncated or not a cell ({type(error).__name__}: {error})") from error
    if not sound:
        raise CorruptCell(f"{path}: its checksum or key does not match its content")
    return payload


def _checksum(payload: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
