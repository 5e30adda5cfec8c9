"""What is printed: lines and tables that steer no terminal, and streams that survive whatever they lead to."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from hessfig.errors import UserError, plain_lines

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_OF_A_FILE = 160


def say(*texts: object) -> None:
    """Print texts, a line each or several, in which words of foreign files may stand: nothing in them steers."""
    for text in texts:
        print(plain_lines(text), flush=True)


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or wide enough for every column when the output goes elsewhere."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE).print(table)


def take_streams() -> None:
    """Print on through closed pipes, with '?' for what the encoding lacks: a reader who leaves ends no measurement.

    What the shell closed (2>&-) leads nowhere: the next file that is opened would take its number, and the output.
    """
    for descriptor in range(3):
        _fill(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = _patient(sys.stdout, 1), _patient(sys.stderr, 2)


def _fill(descriptor: int) -> None:
    """Open a descriptor that is closed. Those below it are open, so that it is the lowest number that is free."""
    try:
        os.fstat(descriptor)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _patient(stream: TextIO | None, descriptor: int) -> Any:
    encoding = stream.encoding if stream else "utf-8"
    is_flushed = getattr(stream, "line_buffering", True)
    buffer = io.BufferedWriter(_Outlet(descriptor))
    return io.TextIOWrapper(buffer, encoding, errors="replace", line_buffering=is_flushed)


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
