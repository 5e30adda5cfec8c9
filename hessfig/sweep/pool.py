"""Worker processes: one thread each, one cell at a time, results stored by the worker that measured them.

They are forked from a server of hessfig's own, so that the multiprocessing of a calling
program stays as it is: its start method, its server, its environment. The server
imports nothing from the current folder and hears no Ctrl-C.
"""

import io
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import (
    forkserver,
    popen_forkserver,
    process,
    reduction,
    resource_tracker,
    util,
)
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.context import ForkServerProcess, set_spawning_popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol

import hessfig
from hessfig.config.machine import WORKER
from hessfig.errors import UserError
from hessfig.sweep.plan import Cell
from hessfig.sweep.store import CellStore

Kind = Literal[
    "measured", "reused", "raced", "failed", "unwritable", "training", "trained"
]
Answer = tuple[Kind, str]


class Listener(Protocol):
    """Hears how work goes: the pipe of a worker."""

    def send(self, answer: tuple[Kind, str, int], /) -> None:
        """Take an answer, and the memory in bytes."""


Work = Callable[[Any, CellStore, Listener], Answer]  # on one cell
THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
# glibc: keep large blocks instead of giving every tensor back to the system (fresh
# pages cost more than products).
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
# What workers import once for all, in the server that they are forked from: torch, and
# the measuring code.
PRELOAD = [
    *(
        "hessfig.sweep.measure",
        "hessfig.models.networks",
        "hessfig.measurements.block_norms",
    ),
    *("hessfig.models.tape.columns", "hessfig.models.exact.exact_blocks"),
]
_ATTEMPTS, _PAUSE = 3, 0.1
_STARTING = Lock()  # threads that start workers at once take turns: environment and server are the process's


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of a cell; `cause` says why it failed, or why no cell can be stored any more.

    It was `raced` when another run stored it while it was being measured here. `peak`
    is the most memory its worker has held so far, in bytes (0: not known). The work of
    a stage takes the place of a cell: on its way (`training`, with words in `cause`),
    then done (`trained`).
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

    `work` is what they do: measure cells, or the work of a stage, which comes to them
    as cells do.
    """

    def __init__(self, count: int, store: CellStore, work: Work | None = None) -> None:
        self._store = store
        self._work = work or measure_cell
        self._workers = list[_Worker]()
        for number in range(count):
            self._workers.append(self._start(number))

    def run(self, cells: Sequence[Any]) -> Iterator[CellOutcome]:
        """Yield the outcome of every cell, in the order in which they end.

        A run that meets another one goes on elsewhere among the cells that wait: so
        they share them, without a lock.
        """
        waiting = deque(cells)
        for worker in self._workers:
            self._give(worker, waiting)
        while busy := {
            worker.pipe: worker for worker in self._workers if worker.cell is not None
        }:
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
        ours, theirs = Pipe()
        started = start_process(_serve, number, self._work, theirs, self._store)
        theirs.close()
        return _Worker(started, ours, number)

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


class Here:
    """Takes the place of a pool where there are no workers: the calling process works itself, cell after cell.

    Each cell finds the settings of torch that it would find in a worker, and the
    caller's are as before after it.
    """

    def __init__(self, store: CellStore, work: Work | None = None) -> None:
        self._store = store
        self._work = work or measure_cell

    def run(self, cells: Sequence[Any]) -> Iterator[CellOutcome]:
        """Yield the outcome of every cell, in their order."""
        for cell in cells:
            with _as_in_a_worker():
                kind, cause = self._work(cell, self._store, _Nobody())
            yield CellOutcome(cell, kind, cause, peak_memory())

    def stop(self) -> None:
        """Nothing is left to end."""


class _Nobody:
    def send(self, answer: tuple[Kind, str, int]) -> None:
        """Drop it."""


@contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """Give torch the settings of a fresh process with one thread, and the caller's again at the end."""
    import torch

    from hessfig.curvature.double_backward import differentiating
    from hessfig.rng import kept_draws, made_on, one_thread

    default = torch.get_default_dtype()
    with (
        warnings.catch_warnings(),
        one_thread(),
        kept_draws(),
        made_on(torch.device("cpu")),
        differentiating(),
    ):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


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


def measure_cell(cell: Cell, store: CellStore, pipe: Listener | None = None) -> Answer:
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
    """Return the most bytes that this process has held; on Linux, without pages of files (libraries), which are shared.

    How many pages of PyTorch's libraries count as held depends on the machine, and
    another worker adds none.
    """
    kib = _status_in_kib()
    if {"VmHWM", "RssFile"} <= kib.keys():
        return 1024 * (kib["VmHWM"] - kib["RssFile"])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _status_in_kib() -> dict[str, int]:
    """Return the memory of this process by Linux's names, in KiB; empty where the system does not tell it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return {}
    found = re.findall(r"(\w+):\s+(\d+) kB", status)
    return {name: int(size) for name, size in found}


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
    with suppress(OSError), _STARTING:
        _running_server()


def start_process(
    target: Callable[..., None], *arguments: Any, daemon: bool = True
) -> BaseProcess:
    """Start `target` in a new process. Raises UserError when none can be started after several attempts."""
    for _ in range(_ATTEMPTS):
        fresh = WorkerProcess(target=target, args=arguments, daemon=daemon)
        try:
            with _STARTING, _allowed_children():
                fresh.start()
        except (EOFError, OSError) as error:
            # The server of processes was killed, or may start none.
            cause = error
            # Wait until it has ended: the next attempt starts another server.
            time.sleep(_PAUSE)
        else:
            return fresh
    raise _unstarted(cause) from cause


class WorkerProcess(ForkServerProcess):
    """A process that is forked from hessfig's own server."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> "_Forked":
        return _Forked(process_obj)


class _Forked(popen_forkserver.Popen):
    """Starts a process as `multiprocessing.popen_forkserver` does, by another server and with other preparations.

    The caller's script is left out: workers would run it, which then needed a guard `if
    __name__ == "__main__"`; so is its start method, which may be one that a worker does
    not know (loky).
    """

    _fds: list[int]

    def _launch(self, process_obj: BaseProcess) -> None:
        sent = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(_preparations(process_obj), sent)
            reduction.dump(process_obj, sent)
        finally:
            set_spawning_popen(None)
        self.sentinel, writable = _running_server().connect_to_new_process(self._fds)
        # The process ends when all of its parent's ends are closed.
        held = os.dup(writable)
        self.finalizer = util.Finalize(self, _close, (held, self.sentinel))
        with os.fdopen(writable, "wb") as pipe:
            pipe.write(sent.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def _preparations(process_obj: BaseProcess) -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` sets in a new process."""
    return {
        "name": process_obj.name,
        "authkey": process.current_process().authkey,
        "sys_path": sys.path,
        "sys_argv": sys.argv,
        "dir": str(Path.cwd()),
    }


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@contextmanager
def _allowed_children() -> Iterator[None]:
    """Let a daemonic process start workers. It may not have children since they could outlive it: workers do not."""
    settings: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    daemon = settings.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            settings["daemon"] = daemon


@cache
def _server(pid: int) -> forkserver.ForkServer:
    """Return the server of process `pid`: a process that was forked from another needs its own."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(PRELOAD)
    return server


def _running_server() -> forkserver.ForkServer:
    """Return this process's server, started if need be.

    It finds the package and installed modules: `python -c`, which starts it, would
    search the current folder first. It inherits a blocked Ctrl-C, which is the caller's
    to answer.
    """
    server = _server(os.getpid())
    method = multiprocessing.get_start_method(allow_none=True)
    resource_tracker.ensure_running()  # first: it ends a block of its own
    with _environment({**THREADS, **ALLOCATOR, "PYTHONSAFEPATH": "1", **own_path()}):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            server.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if method is None:  # to start a server fixes it
                multiprocessing.set_start_method(None, force=True)
    return server


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def end_server() -> None:
    """End the server, which might import for seconds before it sees that this process is gone."""
    pid = getattr(_server(os.getpid()), "_forkserver_pid", None)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)


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


def own_path() -> dict[str, str]:
    """Return a PYTHONPATH that finds this package if it is not installed."""
    root = Path(hessfig.__file__).parents[1]
    if root.name in ("site-packages", "dist-packages"):
        return {}
    return {
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(root), os.environ.get("PYTHONPATH")))
        )
    }
