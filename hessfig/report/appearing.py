"""A folder that appears complete, and the seal that tells what hessfig wrote from what is the user's.

Readers see the old site or the new one, whoever is killed. Only what a seal lists, unchanged, is ever replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hessfig.errors import UserError
from hessfig.files import check_writable, fingerprint, unwritable, write_text
from hessfig.record import CHECKSUM, checksum, read_checked

SEAL = "written-by-hessfig.json"
_TEMPORARY = re.compile(r"[a-z0-9_]{8}(\.old)?")  # as `appearing` names its folders
_OLD = 3600.0  # seconds after which no writer is still at it
_LINE = re.compile(rb"<!-- hessfig report, sha256 ([0-9a-f]{64}) -->\n\Z")


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Fill an empty folder that appears as `folder` when the block ends without an error; what stands there stays.

    Raises UserError when anything there was not written by this function, or was changed since, and for a place that
    cannot be written.
    """
    check_folder(folder)
    check_writable(folder.parent)
    try:
        _remove_leftovers(folder)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            _seal(new, {"unfinished": new.name})
            yield new
            _seal(new, {"files": {path: fingerprint(new / path) for path in _entries(new)}})
            new.chmod(0o755)
            check_folder(folder)
            _exchange(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder, a file or a link in which anything is not as `appearing` left it."""
    if (folder.exists() or folder.is_symlink()) and (found := _foreign(folder)):
        raise _refused(folder, found, "no such folder, an empty one, or a report with nothing else in it")


def marked(text: str) -> str:
    """Return a text with a last line by which `check_file` knows it."""
    return f"{text}<!-- hessfig report, sha256 {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def check_file(path: Path) -> None:
    """Raise UserError for anything at `path` but a file that holds what `marked` returned."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise _refused(path, "a link" if path.is_symlink() else "no file", "no such file, or a report")
    if path.exists() and not _is_marked(path.read_bytes()):
        found = "no report of this version, or one that was changed since hessfig wrote it"
        raise _refused(path, found, "no such file, or a report as hessfig left it")


def _is_marked(content: bytes) -> bool:
    line = _LINE.search(content)
    return line is not None and hashlib.sha256(content[: line.start()]).hexdigest() == line[1].decode()


def _refused(path: Path, found: str, allowed: str) -> UserError:
    word = shlex.quote(str(path))
    return UserError(
        f"{path} holds what hessfig did not write, and would be replaced",
        got=found,
        allowed=allowed,
        remedy=f"move it away: mv {word} {word}.mine",
    )


def _foreign(folder: Path) -> str:
    """Return what in a folder is not as `appearing` left it; nothing if all is, or if the folder is empty."""
    if folder.is_symlink() or not folder.is_dir():
        return "a link" if folder.is_symlink() else "no folder"
    entries, seal = _entries(folder), _sealed(folder)
    if not entries and not (folder / SEAL).exists():
        return ""
    if seal is None or "files" not in seal:
        return f"no {SEAL} in it that tells what hessfig wrote"
    for name in entries:
        path = folder / name
        if name not in seal["files"] or path.is_symlink() or not path.is_file():
            return f"{name}, which hessfig did not write"
        if fingerprint(path) != seal["files"][name]:
            return f"{name}, which was changed since hessfig wrote it"
    return ""


def _entries(folder: Path) -> list[str]:
    """Return everything below a folder but folders and the seal; links are entries, wherever they lead."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found if path != folder / SEAL)


def _seal(folder: Path, content: Mapping[str, Any]) -> None:
    sealed = {**content, CHECKSUM: checksum(content)}
    write_text(folder / SEAL, json.dumps(sealed, indent=1, ensure_ascii=False) + "\n")


def _sealed(folder: Path) -> Mapping[str, Any] | None:
    path = folder / SEAL
    with suppress(OSError, ValueError, TypeError, RecursionError):
        found = read_checked(path) if path.is_file() and not path.is_symlink() else {}
        return found if CHECKSUM in found and isinstance(found.get("files", {}), dict) else None
    return None


def _exchange(new: Path, folder: Path) -> None:
    """Rename; the old folder is put back when the new one cannot take its place."""
    aside = new.with_name(f"{new.name}.old")
    if folder.exists():
        folder.rename(aside)
    try:
        new.rename(folder)
    except OSError:
        if aside.exists():
            aside.rename(folder)
        raise
    _remove(aside)


def _remove(folder: Path) -> None:
    """Remove the files that a seal lists, then empty folders, the seal last: no other file is ever removed."""
    sealed = (_sealed(folder) or {}).get("files", {})
    for name in set(_entries(folder)) & set(sealed):  # a forged seal may name what lies elsewhere
        (folder / name).unlink(missing_ok=True)
    if not _entries(folder):
        (folder / SEAL).unlink(missing_ok=True)
    for path in [*sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True), folder]:
        with suppress(OSError):  # it is not empty, or not there
            path.rmdir()


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left, once it is too old to be another's; an old site that lost its place returns."""
    prefix = f".{folder.name}."
    for path in sorted(folder.parent.glob(f"{prefix}*")):
        if not _TEMPORARY.fullmatch(path.name.removeprefix(prefix)) or path.is_symlink() or not path.is_dir():
            continue
        if time.time() - path.stat().st_mtime < _OLD:
            continue
        if (_sealed(path) or {}).get("unfinished") == path.name:
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix == ".old" and not folder.exists() and not _foreign(path):
            path.rename(folder)
        elif not _foreign(path):
            _remove(path)
