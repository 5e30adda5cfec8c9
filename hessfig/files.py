"""Atomic writing of files: readers see complete files only, even if the writer is killed."""

import errno
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from hessfig.errors import UserError

_UNFINISHED = ".hessfig."  # first characters of the names of files that are being written, and of no others
# As `_temporary` names them.
_TEMPORARY = re.compile(re.escape(_UNFINISHED) + r".+\.[a-z0-9_]{8}")
OLD = 3600.0  # seconds after which no writer is still working on a file


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that replaces `path` atomically when the block ends without an error.

    Raises UserError when the disk is full or the folder cannot be written.
    """
    with _unwritable_at(path), _temporary(path) as temporary:
        options: dict[str, Any] = (
            {} if "b" in mode else {"newline": "", "encoding": "utf-8"}
        )
        with temporary.open(mode, **options) as handle:
            yield handle
            _settle(handle)
        _appear(temporary, path)


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a whole file. Raises UserError as `replacing` does."""
    with replacing(path, "wb") as handle:
        handle.write(content)
    return path


def write_text(path: Path, content: str) -> Path:
    """Write a whole file of UTF-8 text. Raises UserError as `replacing` does."""
    return write_bytes(path, content.encode())


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """Write files that belong together: all are on disk before the first one appears, and they appear in order."""
    with ExitStack() as stack:
        written = {}
        for path, content in contents.items():
            stack.enter_context(_unwritable_at(path))
            written[path] = stack.enter_context(_temporary(path))
            with written[path].open("wb") as handle:
                handle.write(content.encode() if isinstance(content, str) else content)
                _settle(handle)
        for path, temporary in written.items():
            _appear(temporary, path)


def read_small(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises OSError if there is no such file, and ValueError for a larger one, a pipe or
    a device, which may never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("a folder, a pipe or a device, where a file should be")
    if status.st_size > most:
        raise ValueError(f"{status.st_size} bytes, where at most {most} are read")
    with path.open("rb") as handle:
        return handle.read(most + 1)[:most]


def is_file(path: Path) -> bool:
    """Whether the file exists; False for names that no file system allows."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def existing_file(key: str, form: str, name: str | Path) -> Path:
    """Return the path of the file that setting `key` names. Raises UserError, which states `form`, if it is missing."""
    if not is_file(Path(name)):
        raise UserError(
            f"{key}: there is no such file",
            got=name,
            allowed=form,
            remedy="check the path",
        )
    return Path(name)


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file's content. The result is cached until the file changes."""
    return _content(path, identity(path))


def identity(path: Path) -> tuple[int, ...]:
    """Return properties of a file that change when it is replaced or written to."""
    status = path.stat()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def read_pinned(path: Path, key: str, sha256: str | None) -> bytes:
    """Return the content of the file that setting `key` names, so that the parsed bytes are those that were hashed.

    Raises UserError when its SHA-256 is not `sha256` (None: any). Raises OSError when
    it cannot be read.
    """
    content = path.read_bytes()
    check_pin(path, key, found=hashlib.sha256(content).hexdigest(), planned=sha256)
    return content


def check_pin(place: object, key: str, *, found: str, planned: str | None) -> None:
    """Raise UserError if the hash `found` of the content that setting `key` names differs from the planned one."""
    if planned in (None, found):
        return
    group, dot, _ = key.partition(".")
    pin = f"{group}.sha256" if dot else "SHA-256"
    raise UserError(
        f"{key}: the content of {place} is not what was planned"
        if found
        else f"{pin}: {key} does not name a file",
        got=f"SHA-256 {found}" if found else f"{pin}={planned}",
        allowed=f"{pin}={planned}" if found else "null",
        remedy="run the same command again: a changed file is measured as a new one"
        + f" (where {pin} was given, leave it out)" * bool(dot),
    )


def check_place(folder: Path) -> None:
    """Raise UserError if `folder` cannot be a folder: a file is in the way, or the name is too long."""
    with _unwritable_at(folder):
        existing = next(
            path for path in (folder, *folder.absolute().parents) if path.exists()
        )
        if not existing.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "a file is in the way", str(existing)
            )


def check_writable(folder: Path) -> None:
    """Create `folder` and write a byte in it. Raises UserError as `replacing` does."""
    check_place(folder)
    with _unwritable_at(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as handle:
            handle.write(b".")
            handle.flush()


def age(path: Path, now: float) -> float:
    """Return the seconds since a file was written; `now` is the time of the clock that dates it; 0 if it is gone."""
    with suppress(OSError):
        return now - path.lstat().st_mtime
    return 0.0


def clock_of(folder: Path) -> float:
    """Return the time of a folder's file system, or of this machine if the folder is not writable."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as handle:
        return os.fstat(handle.fileno()).st_mtime
    return time.time()


def remove_leftovers(folder: Path) -> None:
    """Remove files of killed writers in `folder` and below that are too old to belong to another run."""
    for path in leftovers(folder):
        with suppress(OSError):  # another run removes it too
            path.unlink()


def leftovers(folder: Path) -> Iterator[Path]:
    """Yield files of killed writers in `folder` and below that are too old to belong to another run.

    Ages refer to the clock that dates the folder's files, which for a shared folder is
    not this machine's.
    """
    now = clock_of(folder)
    for path in folder.rglob(".*"):
        with suppress(OSError):
            is_ours = bool(_TEMPORARY.fullmatch(path.name))
            if (
                age(path, now) > OLD
                and is_ours
                and path.is_file()
                and not path.is_symlink()
            ):
                yield path


def unwritable(path: Path, error: OSError) -> UserError:
    """Return the error for a `path` that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else f"cannot write ({error.strerror})"
    elsewhere = "choose another output_dir=FOLDER, after copying the sweep there if you only read it"
    remedy = "free some space and rerun: finished cells are kept" if full else elsewhere
    return UserError(
        f"{what}: {path}",
        got=error.strerror,
        allowed="a writable folder with space",
        remedy=remedy,
    )


@cache
def _content(path: Path, identity: tuple[int, ...]) -> str:
    del identity
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def _unwritable_at(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Create an empty file next to `path` that no other writer uses, and remove it at the end if it still exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(
        dir=path.parent, prefix=f"{_UNFINISHED}{path.name}."
    )
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _settle(handle: IO[Any]) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _appear(temporary: Path, path: Path) -> None:
    """Rename the temporary file to `path`. A folder at `path` is kept, with its content, under the temporary name."""
    temporary.chmod(0o644)
    if path.is_dir() and not path.is_symlink():
        path.rename(temporary.with_name(f"{temporary.name}.aside"))
    temporary.replace(path)
