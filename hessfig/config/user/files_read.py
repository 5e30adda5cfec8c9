"""Records the files that a user's code opens, by an audit hook, with their hashes for the manifest."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hessfig.files import fingerprint, is_file

LIBRARIES = {
    Path(folder).resolve()
    for folder in [
        *(path for key, path in sysconfig.get_paths().items() if key.endswith(("lib", "stdlib"))),
        *(path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")),  # lent to it
    ]
}
_OF_THE_MACHINE = [Path(folder) for folder in ("/proc", "/sys", "/dev", "/etc")]
_NOTING: list[set[str]] = []  # the files that running blocks have opened so far
_IS_HOOKED: list[bool] = []


@contextmanager
def noting(read: dict[Path, str]) -> Iterator[None]:
    """Add the files opened for reading in the block, with their SHA-256 at its end.

    Python's own open() and os.open() are seen, in every thread; what compiled code opens by itself is not.
    Files of Python, of installed packages and of the operating system are left out.
    """
    if not _IS_HOOKED:
        _IS_HOOKED.append(True)
        sys.addaudithook(_note)
    opened = set[str]()
    _NOTING.append(opened)
    try:
        yield
    finally:
        _NOTING.remove(opened)
        for path in sorted({Path(path).resolve() for path in opened}):
            if is_file(path) and not _is_of_no_user(path):
                with suppress(OSError):
                    read[path] = fingerprint(path)


def hashes_by_name(read: Mapping[Path, str], folders: list[Path]) -> dict[str, str]:
    """Return hashes by names without places of this machine: paths relative to one of `folders`, or the file's name."""
    hashes = {}
    for path, sha256 in read.items():
        inside = [path.relative_to(folder).as_posix() for folder in folders if path.is_relative_to(folder)]
        hashes[min(inside, key=len) if inside else path.name] = sha256
    return dict(sorted(hashes.items()))


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _NOTING:
        return
    path, mode, flags = arguments
    writes = any(letter in mode for letter in "wax") if isinstance(mode, str) else bool(flags & os.O_WRONLY)
    if isinstance(path, str | bytes | os.PathLike) and not writes:
        for opened in _NOTING:
            opened.add(str(Path(os.fsdecode(path)).absolute()))


def _is_of_no_user(path: Path) -> bool:
    return path.suffix == ".pyc" or any(path.is_relative_to(folder) for folder in (*LIBRARIES, *_OF_THE_MACHINE))
