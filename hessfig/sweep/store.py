"""Results on disk: one file a cell, written whole or not at all, checked when read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hessfig.errors import UserError


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


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that appears under `path` complete, when the block ends without an error.

    Raises UserError when the disk is full or the folder cannot be written.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, mode, newline="" if "b" not in mode else None) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write an .npz of plain arrays (readable with allow_pickle=False)."""
    import numpy

    with replacing(path, "wb") as handle:
        numpy.savez_compressed(handle, **arrays)


def unwritable(path: Path, error: OSError) -> UserError:
    """Return the error to show when `path` cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else f"cannot write ({error.strerror})"
    remedy = (
        "free some space and rerun: finished cells are kept" if full else "choose another output_dir=FOLDER"
    )
    return UserError(f"{what}: {path}", allowed="a writable folder with space", remedy=remedy)
