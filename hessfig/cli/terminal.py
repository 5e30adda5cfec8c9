"""What is printed: tables as wide as the terminal, and streams that survive readers who leave and narrow encodings."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from hessfig.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_OF_A_FILE = 160


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or wide enough for every column when the output goes elsewhere."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE).print(table)


def take_streams() -> None:
    """Print on through closed pipes, with '?' for what the encoding lacks: a reader who leaves ends no measurement."""
    sys.stdout, sys.stderr = _patient(sys.stdout), _patient(sys.stderr)


def _patient(stream: TextIO | None) -> Any:
    if stream is None:  # closed by the shell; print does without
        return None
    buffer = io.BufferedWriter(_Outlet(stream.fileno()))
    return io.TextIOWrapper(
        buffer, stream.encoding, errors="replace", line_buffering=getattr(stream, "line_buffering", False)
    )


class _Outlet(io.RawIOBase):
    """A descriptor that takes everything; what nobody reads any more is dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor, self._open = descriptor, True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, content: Any) -> int:
        """Write, or drop. Raises UserError, once, when the content is lost for another reason than a closed pipe."""
        try:
            return os.write(self._descriptor, content) if self._open else len(content)
        except BrokenPipeError:
            self._open = False
            return len(content)
        except OSError as error:
            self._open = False
            raise UserError(
                f"the output cannot be written ({error.strerror})",
                got="a failing write",
                allowed="a terminal, a pipe, or a file on a disk with space",
                remedy="send it elsewhere: hessfig ... > FILE",
            ) from error
