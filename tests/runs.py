"""Runs of the installed command, disturbed and undisturbed, that several tests look at."""

from __future__ import annotations

import csv
import io
import os
import pickle
import random
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")

COMMAND = Path(sys.executable).with_name("hessfig")
TOY = [
    "sweep=sigma",
    "estimator=hutchinson",
    "model.d_model=32",
    "task.digits=3",
    "task.batch_size=32",
    "estimator.num_probes=40",
    "seeds=4",
    "grid.points=5",
]
CELLS = 20


def hessfig(
    *arguments: str, folder: Path, timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run `hessfig` in `folder` and return what it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def here(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Call `hessfig` in this process, in `folder`: where no process is tested, its imports are seconds for nothing."""
    from hessfig.cli.main import main

    folder.mkdir(parents=True, exist_ok=True)
    out = io.StringIO()
    err = io.StringIO()
    code = None
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        try:
            main([*arguments])
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def script(
    *words: str, folder: Path, paths: tuple[Path, ...] = (), timeout: float = 180
) -> str:
    """Return what a script prints that is run in `folder` as `python` runs it, with `paths` to import from.

    Its process is forked from the server of the workers (fixture `workers`), where
    PyTorch is already: to import that anew takes ten seconds on a busy machine.
    """
    from hessfig.sweep.pool import start_process

    folder.mkdir(parents=True, exist_ok=True)
    streams = [
        folder.with_name(f"{folder.name}.{name}") for name in ("stdout", "stderr")
    ]
    process = start_process(_script, words, folder, paths, streams, daemon=False)
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
    out, err = (stream.read_text() if stream.exists() else "" for stream in streams)
    assert process.exitcode == 0, (process.exitcode, err)
    return out


def _script(
    words: tuple[str, ...], folder: Path, paths: tuple[Path, ...], streams: list[Path]
) -> None:
    """Be `python WORDS` in a process that was forked."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(folder)
    os.environ["MPLBACKEND"] = "agg"
    sys.argv = [*words]
    sys.path[:0] = [str(Path(words[0]).absolute().parent), *map(str, paths)]
    runpy.run_path(words[0], run_name="__main__")
    sys.stdout.flush()


def once(run: Callable[[Path], T], folder: Path) -> T:
    """Return what `run` leaves behind in `folder`; of several processes that ask, the first runs it."""
    begun = folder.with_suffix(".begun")
    ended = folder.with_suffix(".ended")
    try:
        begun.touch(exist_ok=False)
    except FileExistsError:
        while not ended.exists():
            time.sleep(0.1)
        return cast(T, pickle.loads(ended.read_bytes()))
    found = run(folder)
    unfinished = folder.with_suffix(".part")
    unfinished.write_bytes(pickle.dumps(found))
    unfinished.replace(ended)
    return found


def undisturbed(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the toy sweep in one go with one worker."""
    return hessfig("run", *TOY, "workers=1", folder=folder)


def disturbed(
    folder: Path, *, kills: int = 1, seed: int = 0
) -> tuple[int, subprocess.CompletedProcess[str]]:
    """Interrupt the toy sweep once, kill it `kills` times, and finish it with two workers.

    Moments are drawn from `seed`. Kills take turns between the whole process group and
    the parent alone. Returns the exit code of the interrupted run and the last run. The
    interrupted one has so many more seeds that it cannot end before the signal comes,
    however busy the machine; the toy sweep's seeds are the first of them.
    """
    moments = random.Random(seed)
    interrupted = _stop(
        folder, signal.SIGINT, moments.uniform(0.0, 0.3), "seeds=400", group=True
    )
    for kill in range(kills):
        code = _stop(
            folder, signal.SIGKILL, moments.uniform(0.0, 0.3), group=kill % 2 == 0
        )
        assert code in (-signal.SIGKILL, 0), code
    return interrupted, hessfig(
        "run", *TOY, "workers=2", "force_workers=true", folder=folder
    )


def killed_anywhere(folder: Path, *, kills: int, longest: float, seed: int) -> None:
    """Kill the toy sweep `kills` times at moments of its whole life, imports included."""
    moments = random.Random(seed)
    for kill in range(kills):
        run = _started(folder)
        time.sleep(moments.uniform(0.0, longest))
        _signal(run, signal.SIGKILL, group=kill % 2 == 0)
        run.wait()


def cell_files(folder: Path) -> list[Path]:
    """Return the finished cells of the toy sweep."""
    return sorted(folder.glob("outputs/sigma/cells/*/*.json"))


def rows(
    table: Path, *, without: tuple[str, ...] = ("seconds",)
) -> list[dict[str, str]]:
    """Return the rows of a table as text, so that equal means equal to the last bit."""
    with table.open() as handle:
        return [
            {k: v for k, v in row.items() if k not in without}
            for row in csv.DictReader(handle)
        ]


def _started(folder: Path, *settings: str) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [COMMAND, "run", *TOY, "workers=1", *settings],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _stop(
    folder: Path, number: signal.Signals, delay: float, *settings: str, group: bool
) -> int:
    """Start a run, let it finish a cell, wait `delay` seconds, and send the signal; return its exit code."""
    before = len(cell_files(folder))
    run = _started(folder, *settings)
    deadline = time.monotonic() + 120
    while (
        len(cell_files(folder)) == before
        and run.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    time.sleep(delay)
    _signal(run, number, group=group)
    return run.wait(timeout=60)


def _signal(
    run: subprocess.Popen[bytes], number: signal.Signals, *, group: bool
) -> None:
    if run.poll() is None:
        (os.killpg if group else os.kill)(run.pid, number)
