"""A job array, with a Slurm that runs shares in this process: what is submitted, what is lost, what is tried again."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hessfig.config.enums import Kind, Launcher
from hessfig.config.schema import Config, LauncherConfig
from hessfig.config.science import ModelConfig
from hessfig.errors import UserError
from hessfig.sweep import slurm
from hessfig.sweep.launchers import Shard, run_shard
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import Summary, run_sweep
from hessfig.sweep.slurm import SlurmJob
from hessfig.sweep.store import submitted_jobs
from tests.conftest import Cli
from tests.runs import rows
from tests.toys import toy_config

pytestmark = pytest.mark.usefixtures("workers")
CELLS = 4


def configured(folder: Path, **settings: object) -> Config:
    launcher = LauncherConfig(kind=Launcher.slurm, tasks=2)
    return toy_config(folder, **{"launcher": launcher, **settings})


class Cluster:
    """A Slurm of one machine: a job is over when it is submitted; tasks in `ends` end otherwise, without measuring."""

    def __init__(self, config: Config) -> None:
        self.variants, self.jobs = [("", config)], dict[str, dict[str, str]]()
        self.ends: dict[tuple[str, str], str] = {}

    def submit(self, script: str) -> str:
        low, _, high = re.search(r"--array=([\d,-]+)", script).group(1).partition("-")  # type: ignore[union-attr]
        number = str(len(self.jobs) + 1)
        tasks = [str(task) for task in range(int(low), int(high or low) + 1)]
        self.jobs[number] = {task: self.ends.get((number, task), "COMPLETED") for task in tasks}
        for task, end in self.jobs[number].items():
            if end == "COMPLETED":
                run_shard(Sweep(self.variants), Shard(int(task), 2))
        return number

    def states(self, job: str) -> dict[str, str] | None:
        return self.jobs.get(job, {})


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return installed(Cluster(configured(tmp_path)), monkeypatch)


def installed(found: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(slurm, "submit", found.submit)
    monkeypatch.setattr(slurm, "states", found.states)
    monkeypatch.setattr(slurm, "_LATE", (0.0,))
    monkeypatch.setattr(slurm, "_SHORTEST", 0.01)
    return found


def run(cluster: Cluster) -> Summary:
    return run_sweep(Sweep(cluster.variants), job(cluster).run)


def job(cluster: Cluster) -> SlurmJob:
    return SlurmJob(Sweep(cluster.variants), [])


def test_a_job_array_makes_the_table_of_a_local_run(cluster: Cluster, tmp_path: Path) -> None:
    summary = run(cluster)
    assert (summary.measured, summary.failed, summary.is_complete) == (CELLS, 0, True)
    local = run_sweep(Sweep([("", toy_config(tmp_path / "local"))]))
    assert rows(summary.table) == rows(local.table)
    again = run(cluster)
    assert (again.measured, again.reused, len(cluster.jobs)) == (0, CELLS, 1)


def test_a_cancelled_task_is_not_tried_again_until_it_is_asked_for(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.ends["1", "2"] = "CANCELLED"
    summary = run(cluster)
    assert (summary.measured, summary.failed, len(cluster.jobs)) == (2, 2, 1)
    words = capfd.readouterr().err
    assert "every task has ended without it (1 completed, 1 cancelled)" in words and "1_*.log" in words
    again = run(cluster)
    assert (again.measured, again.reused, again.is_complete) == (2, 2, True)
    assert list(cluster.jobs["2"]) == ["2"], "only the share with cells to measure"


@pytest.mark.parametrize("end", ["TIMEOUT", "NODE_FAIL", "PREEMPTED"])
@pytest.mark.long
def test_a_lost_task_goes_on_while_that_brings_cells(cluster: Cluster, end: str) -> None:
    cluster.ends["1", "2"] = end
    summary = run(cluster)
    assert summary.is_complete and [*cluster.jobs] == ["1", "2"]


def test_tasks_that_bring_nothing_are_not_submitted_for_ever(cluster: Cluster) -> None:
    cluster.ends = {(number, task): "TIMEOUT" for number in "123" for task in "12"}
    assert run(cluster).failed == CELLS
    assert len(cluster.jobs) == 1


def test_a_cell_that_failed_in_a_task_is_reported_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = ModelConfig(kind=Kind.self_attention)
    cluster = installed(Cluster(configured(tmp_path, model=model, blocks=["W_V"])), monkeypatch)
    capfd.readouterr()
    assert run(cluster).failed == CELLS
    words = capfd.readouterr().err
    assert "failed: n_layers=1, sigma=" in words and "RuntimeError: " in words
    assert "ended without it" not in words
    assert len(list((tmp_path / "sigma/failures").glob("*.txt"))) == CELLS


def test_a_running_job_is_waited_for_and_not_submitted_twice(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first = job(cluster)
    monkeypatch.setattr(slurm, "submit", lambda script: cluster.jobs.setdefault("1", {"1": "RUNNING"}) and "1")
    first.submit()
    assert job(cluster).is_alive() and submitted_jobs(first.folder) == {"slurm job 1: 1 running": True}

    def states(number: str) -> dict[str, str]:
        for index in (1, 2):
            run_shard(Sweep(cluster.variants), Shard(index, 2))
        return {"1": "RUNNING"}

    monkeypatch.setattr(slurm, "states", states)
    monkeypatch.setattr(slurm, "submit", lambda script: pytest.fail("submitted twice"))
    assert run(cluster).is_complete


def test_while_slurm_does_not_answer_the_job_is_taken_to_be_alive(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(cluster).submit()
    monkeypatch.setattr(slurm, "states", lambda number: None)
    assert job(cluster).is_alive()
    assert submitted_jobs(job(cluster).folder) == {"slurm job 1: Slurm does not answer here": True}


def test_another_sweep_of_the_same_name_has_a_job_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    job(cluster).submit()
    assert SlurmJob(Sweep([("", configured(tmp_path, seeds=3))]), []).number is None
    job(cluster).forget()
    assert job(cluster).number is None


ANSWERS: dict[str, tuple[int, str, str, object]] = {
    "known": (0, "1 RUNNING\n2 PENDING\n", "", {"1": "RUNNING", "2": "PENDING"}),
    "forgotten": (1, "", "slurm_load_jobs error: Invalid job id specified", {}),
    "no answer": (1, "", "slurm_load_jobs error: Unable to contact slurm controller", None),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_squeue_says(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err, expected = ANSWERS[case]
    _answers(monkeypatch, code, out, err)
    assert slurm.states("7") == expected


def test_a_refusal_is_in_slurms_words_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(monkeypatch, 1, "", "sbatch: error: invalid partition\nsbatch: error: Batch job failed\n")
    with pytest.raises(UserError, match="Slurm refuses the job") as caught:
        slurm.submit("")
    assert caught.value.got == "invalid partition; Batch job failed"


def test_the_number_of_a_job_of_a_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(monkeypatch, 0, "12;here\n", "")
    assert slurm.submit("") == "12"


def _answers(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    answer = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(slurm.subprocess, "run", lambda *_, **__: answer)


TOY = ["model=linear_mlp", "task.digits=1", "task.batch_size=2", "blocks=[W]", "seeds=1", "grid.points=2"]


def test_without_sbatch_nothing_is_written(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    answer = cli("run", *TOY, "launcher=slurm")
    assert answer.code == 2
    assert "sbatch is not found" in answer.err and "launcher=local, or shard=1/8" in answer.err
    assert not list(Path().rglob("*.json"))


def test_dry_run_prints_the_script_and_writes_nothing(cli: Cli) -> None:
    answer = cli("run", *TOY, "launcher=slurm", "launcher.tasks=2", "dry_run=true")
    assert answer.code == 0 and answer.out.startswith("#!/bin/bash\n#SBATCH --job-name=hessfig-sigma\n")
    assert "#SBATCH --array=1-2\n" in answer.out and '"shard=$SLURM_ARRAY_TASK_ID/2"' in answer.out
    assert not list(Path().iterdir())


def test_a_share_says_what_it_did_and_how_to_collect(cli: Cli) -> None:
    answer = cli("run", *TOY, "workers=1", "shard=2/2")
    assert answer.code == 0
    assert "shard 2/2: 1 cells measured, 0 reused, 0 failed in " in answer.out
    assert answer.out.endswith(f"collect, with all shards in one folder: hessfig run {shlex.join(TOY)}\n")
    assert not Path("outputs/sigma/table.csv").exists()
    whole = cli("run", *TOY, "workers=1")
    assert cli("run", *TOY, "launcher=slurm", "dry_run=true").out == "nothing to do\n"
    assert "1 cells measured, 1 reused, 0 failed" in whole.out
