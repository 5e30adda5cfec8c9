"""Ctrl-C and SIGTERM: workers end, one line says so, and the process is gone, wherever it was."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

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

    Files appear whole or not at all, so nothing needs to be unwound. A second signal changes nothing.
    """
    del frame
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    with suppress(Exception):
        _leave_marks()
    with suppress(Exception):
        _end_workers()
    with suppress(OSError):
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + WORDS)
    os._exit(128 + number)


def _leave_marks() -> None:
    """Take away what tells other commands that a run is at work."""
    if mark := sys.modules.get("hessfig.sweep.upkeep.mark"):
        mark.leave_all()


def _end_workers() -> None:
    """End the workers and their server, which might import for seconds before it sees that we are gone."""
    processes, servers = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "forkserver"))
    for worker in processes.active_children() if processes else []:
        worker.terminate()
    server = getattr(getattr(servers, "_forkserver", None), "_forkserver_pid", None)
    if server is not None:
        os.kill(server, signal.SIGTERM)
