"""Worker processes: one thread each, one cell at a time, results stored by the worker that measured them."""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from hessfig.errors import UserError
from hessfig.sweep.plan import Cell
from hessfig.sweep.store import CellStore, CorruptCell
from hessfig.sweep.worker_env import start_process

Serve = Callable[[Connection, CellStore], None]
Kind = Literal["measured", "reused", "met", "failed", "unwritable", "training", "trained"]
Answer = tuple[Kind, str]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell; `cause` says why it failed, or why no cell can be stored any more.

    It was `met` when another run stored it while it was being measured here. `peak` is the most memory its worker has
    held so far, in bytes (0: not known). A stage's work stands in the place of a cell: on its way (`training`, with
    words in `cause`), then done (`trained`).
    """

    cell: Any
    kind: Kind
    cause: str = ""
    peak: int = 0


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Any = None


class Pool:
    """`count` workers. A worker that dies fails its cell only; when the parent dies, the workers end by themselves.

    `serve` is what they do: measure cells, or the work of a stage, which comes to them as cells do.
    """

    def __init__(self, count: int, store: CellStore, serve: Serve | None = None) -> None:
        self._store, self._serve = store, serve or measure_all
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._workers.append(self._start())

    def run(self, cells: Sequence[Any]) -> Iterator[Outcome]:
        """Yield the outcome of every cell, in the order in which they end.

        A run that meets another one goes on elsewhere among the cells that wait: so they share them, without a lock.
        """
        waiting = deque(cells)
        for worker in self._workers:
            self._give(worker, waiting)
        while busy := {worker.pipe: worker for worker in self._workers if worker.cell is not None}:
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                outcome = self._collect(worker)
                if outcome.kind == "met":
                    waiting.rotate(-random.SystemRandom().randrange(len(waiting) or 1))
                yield outcome
                if outcome.kind != "training":
                    self._give(worker, waiting)

    def stop(self) -> None:
        """End all workers now; cells in flight are lost, finished ones are on disk."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        process = start_process(self._serve, theirs, self._store)
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker, waiting: deque[Any]) -> None:
        worker.cell = waiting.popleft() if waiting else None
        if worker.cell is not None:
            with suppress(OSError):  # it died meanwhile, which `_collect` finds
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


def measure_all(pipe: Connection, store: CellStore) -> None:
    """Measure the cells that come through `pipe` until it closes."""
    answer_all(pipe, lambda cell: _outcome(cell, store))


def answer_all(pipe: Connection, answer: Callable[[Any], Answer]) -> None:
    """Answer what comes through `pipe` until it closes (the parent ended)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            pipe.send((*answer(pipe.recv()), _peak_memory()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _outcome(cell: Cell, store: CellStore) -> Answer:
    from hessfig.sweep.worker import measure

    try:
        if _is_sound(cell, store):
            return "reused", ""
        found = measure(cell)
    except Exception as error:
        return "failed", brief(error)
    if _is_sound(cell, store):
        return "met", ""
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


def brief(error: Exception) -> str:
    """Return an error as the cause of a failure: where it was raised, unless it says what to do."""
    if isinstance(error, UserError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, {Path(where.filename).name}:{where.lineno})"


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name}, perhaps out of memory" if name == "SIGKILL" else name
    return f"exit code {code}"
