"""A real Slurm: a job array's table is the local run's, also after a task was cancelled half way. `make test-slurm`."""

import re
import shutil
import subprocess
import time

import pytest

from tests.runs import COMMAND, cell_files, hessfig, rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("sbatch") is None,
        reason="no Slurm on this machine: the command sbatch is not found",
    ),
]
CELLS = 200
TASKS = 4
SWEEP = [
    "sweep=sigma",
    "estimator=hutchinson",
    "estimator.num_probes=40",
    "seeds=10",
    "grid.points=20",
    "model.d_model=32",
    "task.digits=3",
    "task.batch_size=32",
]
SLURM = ["launcher=slurm", f"launcher.tasks={TASKS}", "launcher.time=10"]
TABLE = "outputs/sigma/table.csv"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The rows of the local run's table."""
    folder = tmp_path_factory.mktemp("local")
    done = hessfig("run", *SWEEP, folder=folder)
    assert done.returncode == 0, done.stderr
    return rows(folder / TABLE)


def measured_by_tasks(folder, job):
    """Return how many cells each task of a job says to have measured, those that came to their end."""
    logs = sorted((folder / "outputs/sigma/slurm").glob(f"{job}_*_log.out"))
    found = (re.search(r": (\d+) cells measured", log.read_text()) for log in logs)
    return [int(one.group(1)) for one in found if one]


def job_of(stderr):
    found = re.search(r"slurm job (\d+) submitted", stderr)
    assert found, stderr
    return found.group(1)


def test_a_job_array_makes_the_local_table(local, tmp_path):
    done = hessfig("run", *SWEEP, *SLURM, folder=tmp_path, timeout=600)
    print(done.stderr, done.stdout)
    assert done.returncode == 0, done.stderr
    assert len(local) == CELLS * 6
    assert rows(tmp_path / TABLE) == local
    assert measured_by_tasks(tmp_path, job_of(done.stderr)) == [CELLS // TASKS] * TASKS


def test_a_task_cancelled_half_way_loses_nothing(local, tmp_path):
    command = [COMMAND, "run", *SWEEP, *SLURM]
    first = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_for(tmp_path, CELLS // 4)
    job = next((tmp_path / "outputs/sigma/slurm").glob("*_log.out")).name.partition(
        "_"
    )[0]
    # Submitit lets SIGTERM pass for 30 seconds.
    subprocess.run(["scancel", "--signal=KILL", f"{job}_1"], check=True)
    out, err = first.communicate(timeout=600)
    print(err, out)
    assert first.returncode == 1
    assert "every task has ended without it" in err
    assert "cells are not in the table" in out
    kept = {path: _identity(path) for path in cell_files(tmp_path)}
    assert 0 < CELLS - len(kept) < CELLS // TASKS
    again = hessfig("run", *SWEEP, *SLURM, folder=tmp_path, timeout=600)
    print(again.stderr, again.stdout)
    assert again.returncode == 0, again.stderr
    assert rows(tmp_path / TABLE) == local
    assert {path: _identity(path) for path in kept} == kept
    assert measured_by_tasks(tmp_path, job_of(again.stderr)) == [CELLS - len(kept)]


def test_a_job_that_nobody_waits_for_is_collected_later(tmp_path):
    few = [*SWEEP, "seeds=1", *SLURM, "launcher.wait=false"]
    left = hessfig("run", *few, folder=tmp_path)
    assert left.returncode == 0
    assert "collect:  hessfig run" in left.stdout
    job = job_of(left.stderr)
    still = hessfig("run", *few, folder=tmp_path)
    assert re.search(r"slurm job hessfig-sigma-\w+ is at work", still.stderr)
    _wait_for(tmp_path, 20)
    _wait_for_the_end(job)
    collected = hessfig("run", *few, folder=tmp_path)
    assert collected.returncode == 0, collected.stderr
    assert "0 cells measured, 20 reused, 0 failed" in collected.stdout
    assert len(rows(tmp_path / TABLE)) == 20 * 6


def test_what_slurm_refuses_is_said_in_its_words(tmp_path):
    refused = hessfig(
        "run", *SWEEP, *SLURM, "launcher.partition=nosuch", folder=tmp_path
    )
    assert refused.returncode == 2
    assert (
        "got:     sbatch: error: invalid partition specified: nosuch" in refused.stderr
    )


def test_a_folder_with_a_blank_in_its_name_serves(tmp_path):
    odd = ["seeds=1", "grid.points=2", "output_dir='a b#%c'", "launcher.tasks=1"]
    done = hessfig("run", *SWEEP, "launcher=slurm", *odd, folder=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("a b#%c/sigma/slurm/*_log.out"))) == 1


def test_a_task_at_its_time_limit_is_queued_again_and_goes_on(tmp_path):
    """Slurm sends the signal of the time limit; submitit's `checkpoint` queues the share again, minutes later."""
    slow = [*SWEEP, "estimator.num_probes=400", "seeds=3"]
    command = [COMMAND, "run", *slow, *SLURM, "launcher.tasks=2"]
    run = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_for(tmp_path, 10)
    job = next((tmp_path / "outputs/sigma/slurm").glob("*_log.out")).name.partition(
        "_"
    )[0]
    subprocess.run(["scancel", "--signal=USR2", f"{job}_1"], check=True)
    out, err = run.communicate(timeout=600)
    print(err, out)
    assert run.returncode == 0
    log = (tmp_path / f"outputs/sigma/slurm/{job}_1_0_log.out").read_text()
    assert "Requeued job" in log
    assert log.count("Starting with JobEnvironment") == 2
    assert len(rows(tmp_path / TABLE)) == 60 * 6


def test_a_task_of_an_array_measures_the_share_that_slurm_names(local, tmp_path):
    command = f"{COMMAND} run {' '.join(SWEEP)} shard=auto workers=1"
    subprocess.run(
        ["sbatch", "--wait", "--array=2-8:2", f"--wrap={command}"],
        cwd=tmp_path,
        check=True,
    )
    collected = hessfig("run", *SWEEP, folder=tmp_path)
    assert f"0 cells measured, {CELLS} reused, 0 failed" in collected.stdout
    assert rows(tmp_path / TABLE) == local


def _identity(path):
    return path.stat().st_ino, path.stat().st_mtime_ns


def _wait_for(folder, cells):
    deadline = time.monotonic() + 300
    while len(cell_files(folder)) < cells and time.monotonic() < deadline:
        time.sleep(0.05)


def _wait_for_the_end(job):
    command = ["squeue", "--noheader", f"--jobs={job}"]
    deadline = time.monotonic() + 300
    while subprocess.run(
        command, capture_output=True, text=True, check=False
    ).stdout.strip():
        assert time.monotonic() < deadline
        time.sleep(0.5)
