"""A training that is killed at any moment goes on to the same bits."""

import random
import time

import pytest

from hessfig.states.training import loop
from hessfig.states.training.loop import ensure
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.pool import start_process
from tests.toys import training_config


def trajectory(folder, steps):
    return Trajectory(training_config(folder, steps=steps, evaluate_every=100), 0.3, 1)


def train(folder, steps):
    """Train in a process of its own, leaving where it is very often."""
    loop.SAVE_EVERY = 0.1
    ensure(trajectory(folder, steps), (steps // 2, steps))


def killed(folder, steps, *, kills, seed):
    """Start and kill the training; return how many kills met it at work."""
    moments = random.Random(seed)
    met = 0
    for _ in range(kills):
        process = start_process(train, folder, steps)
        time.sleep(moments.uniform(0.1, 1.0))
        met += process.is_alive()
        process.kill()
        process.join()
    return met


def files(folder, steps):
    found = trajectory(folder, steps).folder.iterdir()
    return {path.name: path.read_bytes() for path in found if path.name[0] != "."}


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(
    ("kills", "steps"), [(3, 500), pytest.param(20, 8000, marks=pytest.mark.slow)]
)
@pytest.mark.long
def test_killed_at_any_moment_it_ends_in_the_same_bytes(tmp_path, kills, steps):
    disturbed = str(tmp_path / "disturbed")
    undisturbed = str(tmp_path / "undisturbed")
    assert killed(disturbed, steps, kills=kills, seed=kills) > kills // 4
    for folder in (disturbed, undisturbed):
        ensure(trajectory(folder, steps), (steps // 2, steps))
    assert files(disturbed, steps) == files(undisturbed, steps)


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_two_processes_at_the_same_training_do_no_harm(tmp_path):
    both = str(tmp_path / "both")
    alone = str(tmp_path / "alone")
    running = [start_process(train, both, 200) for _ in range(2)]
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0]
    ensure(trajectory(alone, 200), (100, 200))
    assert files(both, 200) == files(alone, 200)
