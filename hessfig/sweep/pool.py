"""Worker processes: one thread each, one cell at a time, results stored by the worker that measured them.

Their server imports nothing from the current folder and hears no Ctrl-C.
"""

import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import hessfig
from hessfig.config.machine import WORKER
from hessfig.errors import UserError
from hessfig.sweep.plan import Cell
from hessfig.sweep.store import CellStore

Kind = Literal["measured", "reused", "raced", "failed", "unwritable", "training", "trained"]
Answer = tuple[Kind, str]
Work = Callable[[Any, CellStore, Connection], Answer]  # of a worker: on one cell, saying through the pipe how it goes
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# glibc: keep large blocks instead of giving every tensor back to the system (fresh pages cost more than products).
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
# What workers import once for all, in the server that they are forked from: torch, and the measuring code.
PRELOAD = [
    *("hessfig.sweep.measure", "hessfig.models.networks", "hessfig.measurements.block_norms"),
    *("hessfig.models.tape.columns", "hessfig.models.exact.exact_blocks"),
]
_ATTEMPTS, _PAUSE = 3, 0.1
_ENVIRONMENT = Lock()  # of this process: threads that start workers at once take turns in changing it


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of a cell; `cause` says why it failed, or why no cell can be stored any more.

    It was `raced` when another run stored it while it was being measured here. `peak` is the most memory its worker has
    held so far, in bytes (0: not known). The work of a stage takes the place of a cell: on its way (`training`, with
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
    number: int
    cell: Any = None


class Pool:
    """`count` workers. A worker that dies fails its cell only; when the parent dies, the workers end by themselves.

    `work` is what they do: measure cells, or the work of a stage, which comes to them as cells do.
    """

    def __init__(self, count: int, store: CellStore, work: Work | None = None) -> None:
        self._store, self._work, self._workers = store, work or measure_cell, list[_Worker]()
        for number in range(count):
            self._workers.append(self._start(number))

    def run(self, cells: Sequence[Any]) -> Iterator[CellOutcome]:
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
                if outcome.kind == "raced":
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

    def _start(self, number: int) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        process = start_process(_serve, number, self._work, theirs, self._store)
        theirs.close()
        return _Worker(process, ours, number)

    def _give(self, worker: _Worker, waiting: deque[Any]) -> None:
        worker.cell = waiting.popleft() if waiting else None
        if worker.cell is not None:
            with suppress(OSError):  # it died meanwhile, which `_collect` notices
                worker.pipe.send(worker.cell)

    def _collect(self, worker: _Worker) -> CellOutcome:
        cell = worker.cell
        assert cell is not None
        try:
            return CellOutcome(cell, *worker.pipe.recv())
        except (EOFError, OSError):
            return CellOutcome(cell, "failed", self._replace(worker))

    def _replace(self, dead: _Worker) -> str:
        dead.process.join()
        cause = f"its worker process died ({_exit_reason(dead.process.exitcode)}); rerun to try again"
        fresh = self._start(dead.number)
        dead.process, dead.pipe = fresh.process, fresh.pipe
        return cause


def _serve(number: int, work: Work, pipe: Connection, store: CellStore) -> None:
    """Process requests from `pipe` until it closes (the parent ended), with torch on one thread.

    The number of a worker chooses its card where there are several.
    """
    os.environ[WORKER] = str(number)
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    while True:
        try:
            pipe.send((*work(pipe.recv(), store, pipe), peak_memory()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def measure_cell(cell: Cell, store: CellStore, pipe: Connection | None = None) -> Answer:
    """Measure a cell and store it, unless another process has stored it meanwhile."""
    from hessfig.sweep.measure import compute_cell

    del pipe

    try:
        if store.sound(cell.key):
            return "reused", ""
        measured = compute_cell(cell)
    except Exception as error:
        return "failed", brief(error)
    if store.sound(cell.key):
        return "raced", ""
    try:
        store.write(cell.key, cell.science, measured.rows, measured.arrays, cell.labels)
    except UserError as error:
        return "unwritable", str(error)
    return "measured", ""


def peak_memory() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


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


def warm() -> None:
    """Start the server of worker processes, which imports torch while this process plans.

    A failure shows when a worker is started.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    with suppress(OSError), _sheltered():
        pass


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start `target` in a new process. Raises UserError when none can be started after several attempts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    for _ in range(_ATTEMPTS):
        process = context.Process(target=target, args=arguments, daemon=True)
        try:
            with _sheltered():
                process.start()
        except (EOFError, OSError) as error:  # the server of processes was killed, or may start none
            cause = error
            time.sleep(_PAUSE)  # wait until it has ended: the next attempt starts another server
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
    """Make processes started in this block find the package and installed modules.

    `python -c`, which is how their server starts, would search the current folder first.
    """
    with _ENVIRONMENT, _without_main():
        before = dict(os.environ)
        os.environ.update({**THREADS, **ALLOCATOR, "PYTHONSAFEPATH": "1", **own_path()})
        try:
            _start_server()
            yield
        finally:
            for name in ("PYTHONSAFEPATH", "PYTHONPATH"):
                os.environ.pop(name, None)
                os.environ.update({name: before[name]} if name in before else {})


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the caller's script: workers would run it, which then needed a guard `if __name__ == "__main__"`."""
    names = vars(sys.modules["__main__"])
    before = {str(name): names[name] for name in ("__file__", "__spec__") if name in names}
    names.pop("__file__", None)
    names["__spec__"] = None
    try:
        yield
    finally:
        names.update(before)


def _start_server() -> None:
    """Start the server unless it stands. It inherits a blocked Ctrl-C, which is ours to answer, right after this."""
    resource_tracker.ensure_running()  # first: it ends a block of its own
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_path() -> dict[str, str]:
    """Return a PYTHONPATH that finds this package if it is not installed."""
    root = Path(hessfig.__file__).parents[1]
    if root.name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
