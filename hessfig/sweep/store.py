"""The store of a sweep: one file per finished cell, and the causes of failures."""

import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hessfig.files import is_file, replacing, write_bytes, write_text
from hessfig.record import COLUMNS

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
        """The path of a cell's arrays: an .npz of plain arrays named by its key."""
        return self.path(key).with_suffix(".npz")

    def write(
        self,
        key: str,
        science: dict[str, Any],
        rows: Rows,
        arrays: Mapping[str, Any] | None = None,
        label: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a finished cell atomically; arrays are written before the cell, which holds their hash."""
        digest = self._write_arrays(key, arrays, label or {}) if arrays else None
        payload = {"science": science, "rows": rows, "arrays": digest}
        text = json.dumps(
            {"key": key, "checksum": _checksum(payload), **payload}, indent=1
        )
        with replacing(self.path(key)) as handle:
            handle.write(text)

    def read(self, key: str) -> Rows | None:
        """Return the rows of a finished cell, or None when there is no such file.

        Raises CorruptCell, naming the file and what is wrong with it.
        """
        cell = self._read(key)
        return None if cell is None else cell["rows"]

    def finished(self, key: str) -> tuple[Rows, str | None] | None:
        """Return the rows of a finished cell and the SHA-256 of its arrays, if it has some; None when it is not there.

        Raises CorruptCell as `read` does, and for arrays that are not the cell's.
        """
        cell = self._read(key)
        if cell is None:
            return None
        if cell["arrays"] is not None:
            self._check_arrays(self.arrays_path(key), cell["arrays"])
        return cell["rows"], cell["arrays"]

    def sound(self, key: str, *, warns: bool = False) -> tuple[Rows, str | None] | None:
        """Return what `finished` does; None too for a corrupt cell, which is named on stderr if this `warns`."""
        try:
            return self.finished(key)
        except CorruptCell as error:
            if warns:
                print(f"warning: {error}; it counts as not measured", file=sys.stderr)
            return None

    def _check_arrays(self, path: Path, digest: str) -> None:
        try:
            with path.open("rb") as handle:
                sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
        except FileNotFoundError as error:
            raise CorruptCell(
                f"{path}: the arrays of a finished cell are missing"
            ) from error
        except OSError as error:
            raise CorruptCell(f"{path}: cannot be read ({error.strerror})") from error
        if sha256 != digest:
            raise CorruptCell(f"{path}: its checksum does not match its cell")

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

    def _write_arrays(
        self, key: str, arrays: Mapping[str, Any], label: Mapping[str, Any]
    ) -> str:
        import numpy

        buffer = io.BytesIO()
        numpy.savez_compressed(
            buffer, label=json.dumps({"key": key, **label}), **arrays
        )
        write_bytes(self.arrays_path(key), buffer.getvalue())
        return hashlib.sha256(buffer.getvalue()).hexdigest()


def _verified(text: str, key: str, path: Path) -> dict[str, Any]:
    try:
        cell = json.loads(text)
        payload = {
            "science": cell["science"],
            "rows": cell["rows"],
            "arrays": cell["arrays"],
        }
        sound = (
            cell["key"] == key
            and cell["checksum"] == _checksum(payload)
            and _has_rows(payload)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCell(
            f"{path}: truncated or not a cell ({type(error).__name__}: {error})"
        ) from error
    if not sound:
        raise CorruptCell(f"{path}: its checksum or key does not match its content")
    return payload


def _has_rows(payload: dict[str, Any]) -> bool:
    rows = payload["rows"]
    return isinstance(rows, list) and all(
        isinstance(row, dict) and row.keys() <= set(COLUMNS) for row in rows
    )


def _checksum(payload: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


_LONGEST = 10_000  # characters of a cause


class Failures:
    """Why cells failed when they were last tried, as files under `folder`, by key.

    The cause of a cell that was measured since means nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, key: str, cause: str) -> None:
        """Store why a cell failed."""
        write_text(self._path(key), cause)

    def cause(self, key: str) -> str | None:
        """Return why the cell failed, if it did."""
        with (
            suppress(OSError),
            self._path(key).open(encoding="utf-8", errors="replace") as handle,
        ):
            return handle.read(_LONGEST)
        return None

    def causes(self, keys: Iterable[str]) -> dict[str, str]:
        """Return why cells failed, by key, for those of `keys` that did."""
        noted = {path.stem for path in self.folder.glob("*.txt") if is_file(path)}
        causes = ((key, self.cause(key)) for key in keys if key in noted)
        return {key: cause for key, cause in causes if cause is not None}

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the causes of these cells, which are tried again."""
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.txt"
