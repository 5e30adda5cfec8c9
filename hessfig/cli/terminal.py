"""The terminal: streams, signals, colours and what is printed."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from hessfig.errors import UserError, plain_lines

if TYPE_CHECKING:
    from rich.table import Table


WIDTH_OF_A_FILE = 160


def print_plain(*texts: object) -> None:
    """Print texts that may contain words of foreign files, without control characters."""
    for text in texts:
        print(plain_lines(text), flush=True)


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or wide enough for every column when the output goes elsewhere."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE).print(table)


def take_streams() -> None:
    """Keep running when a pipe of the output is closed, and print '?' for characters that the encoding lacks.

    What the shell closed (2>&-) leads nowhere: the next file that is opened would take
    its number, and the output.
    """
    for descriptor in range(3):
        _fill(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = _patient(sys.stdout, 1), _patient(sys.stderr, 2)


def _fill(descriptor: int) -> None:
    """Open a closed descriptor; those below it are open, so it is the lowest free number."""
    try:
        os.fstat(descriptor)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _patient(stream: TextIO | None, descriptor: int) -> Any:
    encoding = stream.encoding if stream else "utf-8"
    is_flushed = getattr(stream, "line_buffering", True)
    buffer = io.BufferedWriter(_Outlet(descriptor))
    return io.TextIOWrapper(
        buffer, encoding, errors="replace", line_buffering=is_flushed
    )


class _Outlet(io.RawIOBase):
    """A descriptor that accepts everything; output that is no longer read is dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._open = True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, content: Any) -> int:
        """Write, or drop. Raises UserError, once, when the content is lost for another reason than a closed pipe."""
        try:
            if self._open:
                return os.write(self._descriptor, content)
            return len(content)
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


SIGNALS = (signal.SIGINT, signal.SIGTERM)
WORDS = b"interrupted: finished cells are kept; run the same command to go on\n"
_SHOW_CURSOR = b"\n\x1b[?25h"  # a progress bar hides it, and leaves its line open


def take_signals() -> None:
    """Answer Ctrl-C and SIGTERM by `_stop`, except one that is ignored (nohup, a job in the background)."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    """End workers and process at once: an exception would be lost in a callback, or end as a traceback of an import.

    Files appear whole or not at all, so nothing needs to be unwound. A second signal
    changes nothing.
    """
    del frame
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    with suppress(Exception):
        _end_workers()
    with suppress(OSError):
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + WORDS)
    os._exit(128 + number)


def _end_workers() -> None:
    """End the workers and their server."""
    processes, pool = (
        sys.modules.get(name)
        for name in ("multiprocessing.process", "hessfig.sweep.pool")
    )
    for worker in processes.active_children() if processes else []:
        worker.terminate()
    if pool:
        pool.end_server()
