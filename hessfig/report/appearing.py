"""A folder that appears complete: readers see the old site or the new one, whoever is killed."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hessfig.errors import UserError
from hessfig.files import check_writable, unwritable

_OLD = 3600.0  # seconds after which no writer is still at it


@contextmanager
def appearing(folder: Path, *, mark: str) -> Iterator[Path]:
    """Fill an empty folder that appears as `folder` when the block ends without an error; what stands there stays.

    Raises UserError when that is of another kind (it holds things, but no file `mark`), and for a place that cannot be
    written.
    """
    check_kind(folder, mark)
    check_writable(folder.parent)
    try:
        _remove_leftovers(folder)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            yield new
            new.chmod(0o755)
            _exchange(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def check_kind(folder: Path, mark: str) -> None:
    """Raise UserError for a folder, or a file, that is not what would replace it."""
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / mark).is_file():
        path = shlex.quote(str(folder))
        raise UserError(
            f"{folder} is no report, and would be replaced by one",
            got=f"no {mark} in it",
            allowed=f"no such folder, an empty one, or one with a {mark}",
            remedy=f"move it away: mv {path} {path}.mine",
        )


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
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left, once it is too old to be another's; an old site that lost its place returns."""
    for path in sorted(folder.parent.glob(f".{folder.name}.*")):
        if not path.is_dir() or path.is_symlink() or time.time() - path.stat().st_mtime < _OLD:
            continue
        if path.suffix == ".old" and not folder.exists():
            path.rename(folder)
        else:
            shutil.rmtree(path, ignore_errors=True)
