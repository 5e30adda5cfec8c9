"""A training that is killed at any moment goes on to the same bits."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hessfig.states.training import loop
from hessfig.states.training.kept import Folder
from hessfig.states.training.loop import ensure
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.shelter import start_process
from tests.toys import training_config

STEPS = (150, 300)


def trajectory(folder: str) -> Trajectory:
    return Trajectory(training_config(folder, steps=300, evaluate_every=100), 0.3, 1)


def train(folder: str) -> None:
    """Train in a process of its own, leaving where it is very often."""
    loop.SAVE_EVERY = 0.1
    ensure(trajectory(folder), STEPS)


def killed(folder: str, *, kills: int, longest: float, seed: int) -> int:
    """Start and kill the training; return how many kills met it at work."""
    moments, met = random.Random(seed), 0
    for _ in range(kills):
        process = start_process(train, folder)
        time.sleep(moments.uniform(0.1, longest))
        met += process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    return met


def files(folder: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in trajectory(folder).folder.iterdir() if path.name[0] != "."
    }


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(
    ("kills", "longest"), [(3, 3.0), pytest.param(20, 3.0, marks=pytest.mark.slow)], ids=str
)
def test_killed_at_any_moment_it_ends_in_the_same_bytes(tmp_path: Path, kills: int, longest: float) -> None:
    disturbed, undisturbed = str(tmp_path / "disturbed"), str(tmp_path / "undisturbed")
    assert killed(disturbed, kills=kills, longest=longest, seed=kills) > 0
    ensure(trajectory(disturbed), STEPS)
    ensure(trajectory(undisturbed), STEPS)
    assert files(disturbed) == files(undisturbed)
    assert Folder(trajectory(disturbed)).missing(STEPS) == []


@pytest.mark.usefixtures("workers")
def test_two_processes_at_the_same_training_do_no_harm(tmp_path: Path) -> None:
    both = [start_process(train, str(tmp_path / "both")) for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    ensure(trajectory(str(tmp_path / "alone")), STEPS)
    assert files(str(tmp_path / "both")) == files(str(tmp_path / "alone"))
