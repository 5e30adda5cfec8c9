"""The one writer of files: what appears under a name is complete, whoever is killed and whoever reads meanwhile."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hessfig.errors import UserError


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that appears under `path` complete, when the block ends without an error.

    Raises UserError when the disk is full or the folder cannot be written.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, mode, **_text_options(mode)) as handle:
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


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a whole file. Raises UserError as `replacing` does."""
    with replacing(path, "wb") as handle:
        handle.write(content)
    return path


def write_text(path: Path, content: str) -> Path:
    """Write a whole file of UTF-8 text. Raises UserError as `replacing` does."""
    return write_bytes(path, content.encode())


def unwritable(path: Path, error: OSError) -> UserError:
    """Return the error to show when `path` cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else f"cannot write ({error.strerror})"
    remedy = (
        "free some space and rerun: finished cells are kept" if full else "choose another output_dir=FOLDER"
    )
    return UserError(f"{what}: {path}", allowed="a writable folder with space", remedy=remedy)


def _text_options(mode: str) -> dict[str, Any]:
    return {} if "b" in mode else {"newline": "", "encoding": "utf-8"}
