"""Worker processes: one thread each, one cell at a time, results stored by the worker that measured them."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from hessfig.errors import UserError
from hessfig.sweep.plan import Cell
from hessfig.sweep.store import CellStore, CorruptCell

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# glibc: keep large blocks instead of giving every tensor back to the system (fresh pages cost more than products).
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
_PRELOAD = ["hessfig.sweep.worker"]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell; `cause` says why it failed, or why no cell can be stored any more.

    `peak` is the most memory its worker has held so far, in bytes (0: not known).
    """

    cell: Cell
    kind: Literal["measured", "reused", "failed", "unwritable"]
    cause: str = ""
    peak: int = 0


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None


class Pool:
    """`count` workers. A worker that dies fails its cell only; when the parent dies, the workers end by themselves."""

    def __init__(self, count: int, store: CellStore) -> None:
        os.environ.update(THREADS | ALLOCATOR)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        self._store = store
        self._workers = [self._start() for _ in range(count)]

    def run(self, cells: list[Cell]) -> Iterator[Outcome]:
        """Yield the outcome of every cell, in the order in which they end."""
        waiting = iter(cells)
        for worker in self._workers:
            self._give(worker, waiting)
        while busy := {worker.pipe: worker for worker in self._workers if worker.cell is not None}:
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                yield self._collect(worker)
                self._give(worker, waiting)

    def stop(self) -> None:
        """End all workers now; cells in flight are lost, finished ones are on disk."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, self._store), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker, waiting: Iterator[Cell]) -> None:
        worker.cell = next(waiting, None)
        if worker.cell is not None:
            worker.pipe.send(worker.cell)

    def _collect(self, worker: _Worker) -> Outcome:
        cell = worker.cell
        assert cell is not None
        try:
            return Outcome(cell, *worker.pipe.recv())
        except (EOFError, OSError):
            return Outcome(cell, "failed", self._replace(worker))

    def _replace(self, dead: _Worker) -> str:
        dead.process.join()
        cause = f"its worker process died ({_exit_reason(dead.process.exitcode)}); rerun to try again"
        fresh = self._start()
        dead.process, dead.pipe = fresh.process, fresh.pipe
        return cause


def serve(pipe: Connection, store: CellStore) -> None:
    """Measure the cells that come through `pipe` until it closes (the parent ended)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            cell = pipe.recv()
            pipe.send((*_outcome(cell, store), _peak_memory()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _outcome(cell: Cell, store: CellStore) -> tuple[str, str]:
    from hessfig.sweep.worker import measure

    try:
        if _is_sound(cell, store):
            return "reused", ""
        found = measure(cell)
    except Exception as error:
        return "failed", _brief(error)
    try:
        store.write(cell.key, cell.science, found.rows, found.arrays, cell.labels)
    except UserError as error:
        return "unwritable", str(error)
    return "measured", ""


def _peak_memory() -> int:
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held


def _is_sound(cell: Cell, store: CellStore) -> bool:
    try:
        return store.is_finished(cell.key)
    except CorruptCell:
        return False


def _brief(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, {Path(where.filename).name}:{where.lineno})"


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name}, perhaps out of memory" if name == "SIGKILL" else name
    return f"exit code {code}"
