"""Write a file so that no reader ever sees half of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hessfig.errors import UserError


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside `path` and move into place. Raises UserError when the folder cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(
            f"cannot write {path}", got=error.strerror, remedy="choose another output_dir"
        ) from error


def write_text(path: Path, content: str) -> None:
    """As write_bytes, for text."""
    write_bytes(path, content.encode())
