"""Where worker processes come from: a server that imports nothing from the current folder and hears no Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any

import hessfig
from hessfig.errors import UserError

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# glibc: keep large blocks instead of giving every tensor back to the system (fresh pages cost more than products).
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
_PRELOAD = ["hessfig.sweep.worker"]
_ATTEMPTS, _PAUSE = 3, 0.1
_ENVIRONMENT = Lock()  # of this process: threads that start workers at once take turns in changing it


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start `target` in a process of its own. Raises UserError when no process can be had, however often asked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    for _ in range(_ATTEMPTS):
        process = context.Process(target=target, args=arguments, daemon=True)
        try:
            with _sheltered():
                process.start()
        except (EOFError, OSError) as error:  # the server of processes was killed, or may start none
            cause = error
            time.sleep(_PAUSE)  # until the system knows that it is dead: the next attempt starts another
        else:
            return process
    raise _unstarted(cause) from cause


def _unstarted(cause: Exception) -> UserError:
    """Return the error to show when no worker could be started: a socket's path has some 100 letters at most."""
    if "AF_UNIX path too long" in str(cause):
        return UserError(
            "the folder for temporary files has too long a name for workers to be reached",
            got=f"TMPDIR={tempfile.gettempdir()}",
            allowed="a folder of at most 60 letters",
            remedy="TMPDIR=/var/tmp hessfig ... (or another short folder that you may write)",
        )
    return UserError(
        "no worker process can be started",
        got=f"{type(cause).__name__}: {cause}",
        allowed="a machine that lets this user start processes",
        remedy="rerun the same command (finished cells are kept), perhaps with workers=1",
    )


@contextmanager
def _sheltered() -> Iterator[None]:
    """Let processes that start here search the package and what is installed.

    `python -c`, which is how their server starts, would search the current folder first.
    """
    with _ENVIRONMENT:
        before = dict(os.environ)
        os.environ.update({**THREADS, **ALLOCATOR, "PYTHONSAFEPATH": "1", **own_path()})
        try:
            _start_server()
            yield
        finally:
            for name in ("PYTHONSAFEPATH", "PYTHONPATH"):
                os.environ.pop(name, None)
                os.environ.update({name: before[name]} if name in before else {})


def _start_server() -> None:
    """Start the server unless it stands. It inherits a blocked Ctrl-C, which is ours to answer, right after this."""
    resource_tracker.ensure_running()  # first: it ends a block of its own
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_path() -> dict[str, str]:
    """Return a PYTHONPATH that finds this very package, where it is not among the installed ones."""
    root = Path(hessfig.__file__).parents[1]
    if root.name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
