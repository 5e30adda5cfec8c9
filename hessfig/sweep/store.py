"""Results on disk: one file a cell, written whole or not at all, checked when read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hessfig.files import replacing


class CorruptCell(Exception):
    """A cell file that cannot be trusted: truncated, edited or not of its key."""


class CellStore:
    """Finished cells under `folder`, by key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def dense_path(self, label: str) -> Path:
        """Where the dense blocks of the cell called `label` are: an .npz of plain arrays beside the table."""
        return self.folder.parent / "dense" / f"{label.replace(', ', '_')}.npz"

    def write(self, key: str, science: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Store a finished cell; readers see all of it or nothing."""
        payload = {"science": science, "rows": rows}
        text = json.dumps({"key": key, "checksum": _checksum(payload), **payload}, indent=1)
        with replacing(self.path(key)) as handle:
            handle.write(text)

    def read(self, key: str) -> list[dict[str, Any]] | None:
        """Return the rows of a finished cell, or None when there is no such file.

        Raises CorruptCell, naming the file and what is wrong with it.
        """
        try:
            text = self.path(key).read_text()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise CorruptCell(f"{self.path(key)}: not text ({error.reason})") from error
        return _verified(text, key, self.path(key))


def _verified(text: str, key: str, path: Path) -> list[dict[str, Any]]:
    try:
        cell = json.loads(text)
        payload = {"science": cell["science"], "rows": cell["rows"]}
        sound = cell["key"] == key and cell["checksum"] == _checksum(payload)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCell(f"{path}: truncated or not a cell ({error})") from error
    if not sound:
        raise CorruptCell(f"{path}: its checksum or key does not match its content")
    return cell["rows"]


def _checksum(payload: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write an .npz of plain arrays (readable with allow_pickle=False)."""
    import numpy

    with replacing(path, "wb") as handle:
        numpy.savez_compressed(handle, **arrays)
