"""Locks a folder, so that only one monitor writes it, within this process and among processes."""

import errno
import gc
import os
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

from hessfig.errors import UserError
from hessfig.files import unwritable

try:
    import fcntl
except ImportError:  # not a POSIX system: only owners in this process are known
    fcntl = None  # type: ignore[assignment]

LOCK = ".owner"
_HELD: dict[
    tuple[int, int], Path
] = {}  # the folders of this process's owners, by process and inode
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Owner:
    """Holds `folder`, which exists, until `release`, garbage collection, or the end of the process, however it ends.

    The kernel keeps the lock (flock on a file in the folder), so a killed process
    leaves no stale lock. Where the file system has no locks, only a second owner in the
    same process is noticed, with a warning. Raises UserError where another owner lives.
    """

    def __init__(self, folder: Path) -> None:
        folder = folder.absolute()  # independent of later changes of directory
        status = folder.stat()
        place = (os.getpid(), status.st_ino ^ status.st_dev << 64)
        if place in _HELD:
            gc.collect()  # a monitor in a cycle with its network is dead, and not yet known to be
        if place in _HELD:
            raise _owned(
                folder, "this process", "close() the first one, or another folder=..."
            )
        handle = _locked(folder)
        _HELD[place] = folder
        self._release = weakref.finalize(self, _let_go, place, folder / LOCK, handle)

    def release(self) -> None:
        """Release the folder for another owner."""
        self._release()


def _locked(folder: Path) -> int:
    """Return the open file that carries the lock."""
    while True:
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise unwritable(folder / LOCK, error) from error
        if not _lock(handle, folder):
            owner = os.read(handle, 20).decode("ascii", "replace").strip()
            os.close(handle)
            raise _owned(
                folder,
                f"process {owner}" if owner.isdigit() else "another process",
                "another folder=...",
            )
        with suppress(OSError):
            # Else its last owner removed the file.
            if os.fstat(handle).st_ino == (folder / LOCK).stat().st_ino:
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        os.close(handle)


def _lock(handle: int, folder: Path) -> bool:
    """Lock an open file; return False if it is locked already."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise unwritable(folder / LOCK, error) from error
        words = f"{folder}: its file system has no locks; a monitor of another process there would not be noticed"
        warnings.warn(words, RuntimeWarning, stacklevel=4)
    return True


def _let_go(place: tuple[int, int], path: Path, handle: int) -> None:
    """Remove lock and file, except in a process forked from the owner's."""
    if place[0] == os.getpid():
        _HELD.pop(place, None)
        with suppress(OSError):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        os.close(handle)


def _owned(folder: Path, by: str, remedy: str) -> UserError:
    return UserError(
        f"{folder} belongs to another hessfig.Monitor, which is at work",
        got=f"a second monitor while that of {by} lives",
        allowed="one monitor per folder at a time; a folder whose owner has ended is free",
        remedy=remedy,
    )
