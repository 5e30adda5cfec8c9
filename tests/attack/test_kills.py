"""Kills at random moments: the same command again ends in the same bytes, and nobody is left running."""

import os
import signal
import subprocess
import time

import pytest

from hessfig.sweep.store import CellStore
from tests.attack.target import SIGMA, command
from tests.runs import COMMAND, rows

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
READERS = {
    "slopes": (("slopes", "sweep=sigma"), 2.0, "outputs/sigma/slopes.csv"),
    "plot": (("plot", "figure=3a"), 4.0, "outputs/figures/fig3a.*"),
    "study": (("plot", "figure=bounds"), 6.0, "outputs/figures/figbounds.*"),
    "verify": (
        ("verify", "statement=thm31,lem41", "seeds=1"),
        6.0,
        "outputs/verify/report.md",
    ),
}


def killed(words, folder, dice, longest):
    """Start a command, send it or its whole group a signal within `longest` seconds; return what escaped, if any."""
    number = dice.choice(SIGNALS)
    group = dice.random() < 0.5
    run = subprocess.Popen(
        [COMMAND, *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(dice.uniform(0.0, longest))
    if run.poll() is None:
        (os.killpg if group else os.kill)(run.pid, number)
    _, errors = run.communicate(timeout=60)
    left = f"{number.name}: processes left" if not _ended(run.pid) else ""
    # Python's own, before hessfig began.
    early = "hessfig" not in errors.rpartition("File ")[2]
    return left or (
        "" if "Traceback" not in errors or early else f"{number.name}: {errors[-300:]}"
    )


def test_runs(pristine, tmp_path, dice, ledger):
    for _ in range(14):
        escaped = killed(("run", *SIGMA), tmp_path, dice, 9.0)
        store = CellStore(tmp_path / "outputs/sigma/cells")
        for path in store.folder.glob("*/*.json"):
            store.read(path.stem)  # raises for a damaged one
        ledger.note("kills of run", traceback=escaped)
    done = command("run", *SIGMA, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "outputs/sigma/table.csv") == rows(
        pristine / "outputs/sigma/table.csv"
    )
    assert not [
        path
        for path in (tmp_path / "outputs").rglob(".*")
        if path.is_file() and _is_old(path)
    ]
    assert not ledger.wrong("kills of run")


@pytest.mark.parametrize("name", READERS)
def test_readers(place, dice, ledger, name):
    words, longest, made = READERS[name]
    assert command(*words, folder=place).returncode == 0
    sound = contents(place, made)
    assert sound
    for _ in range(5):
        if name == "study":
            for path in (place / "outputs/bounds").iterdir():
                if path.is_file():  # the register of written files is a folder
                    path.unlink()
        escaped = killed(words, place, dice, longest)
        done = command(*words, folder=place)
        failed = (
            f"exit {done.returncode}: {done.stderr[-200:]}" if done.returncode else ""
        )
        silent = "other bytes" if contents(place, made) != sound else ""
        ledger.note(f"kills of {name}", traceback=escaped or failed, silent=silent)
    assert not ledger.wrong(f"kills of {name}")


def contents(folder, pattern):
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


def _ended(group, patience=15.0):
    """Whether every process of the group is gone, within `patience` seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    return False


def _is_old(path):
    """Whether a temporary file was left long ago: those of the last hour may belong to a run that is going on."""
    return time.time() - path.stat().st_mtime > 3600
