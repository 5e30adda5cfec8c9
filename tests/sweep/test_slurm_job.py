"""A job array, with a Slurm that measures shares in this process: what is submitted, what is lost, what is reported."""

import subprocess
import sys
from pathlib import Path

import pytest
import submitit
from submitit.slurm.slurm import _make_sbatch_string

from hessfig.config.compose.job import compose
from hessfig.config.enums import Kind, Launcher
from hessfig.config.schema import LauncherConfig
from hessfig.config.science import ModelConfig
from hessfig.config.settings import settings
from hessfig.errors import UserError
from hessfig.sweep import slurm
from hessfig.sweep.launchers import Shard, run_shard
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import run_sweep
from hessfig.sweep.slurm import JobArray, Share, minutes
from tests.runs import rows
from tests.toys import toy_config

pytestmark = pytest.mark.usefixtures("workers")
CELLS = 4


def configured(folder, **settings):
    launcher = LauncherConfig(kind=Launcher.slurm, tasks=2)
    return toy_config(folder, **{"launcher": launcher, **settings})


class Cluster:
    """A Slurm of one machine: a task is over when it is submitted. Shares in `lost` end without measuring."""

    def __init__(self, config):
        self.variants = [("", config)]
        self.jobs = list[list[str]]()
        self.lost = set()

    def submitted(self, shares):
        self.jobs.append([share.command[-1].removeprefix("shard=") for share in shares])
        for text in self.jobs[-1]:
            if text not in self.lost:
                run_shard(Sweep(self.variants), Shard(*map(int, text.split("/"))))
        folder = self.array().folder
        return [
            submitit.SlurmJob(folder, f"{len(self.jobs)}_{place}")
            for place in range(len(shares))
        ]

    def array(self):
        return JobArray(Sweep(self.variants), compose([]))

    def run(self):
        return run_sweep(Sweep(self.variants), self.array().measure)


def installed(cluster, monkeypatch):
    class Executor(submitit.SlurmExecutor):
        affinity = classmethod(lambda _: 2)

        def _internal_process_submissions(self, delayed):
            return cluster.submitted([one.function for one in delayed])

    monkeypatch.setattr(slurm.submitit, "SlurmExecutor", Executor)
    monkeypatch.setattr(JobArray, "is_alive", lambda _: False)
    monkeypatch.setattr(slurm, "_LATE", 0.0)
    monkeypatch.setattr(slurm, "_PAUSE", 0.0)
    return cluster


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return installed(Cluster(configured(tmp_path)), monkeypatch)


def test_a_job_array_makes_the_table_of_a_local_run(cluster, tmp_path):
    summary = cluster.run()
    assert (summary.measured, summary.failed, summary.is_complete) == (CELLS, 0, True)
    local = run_sweep(Sweep([("", toy_config(tmp_path / "local"))]))
    assert rows(summary.table) == rows(local.table)
    again = cluster.run()
    assert (again.measured, again.reused, len(cluster.jobs)) == (0, CELLS, 1)


def test_what_a_task_left_is_measured_by_the_next_command(cluster, capfd):
    cluster.lost = {"2/2"}
    summary = cluster.run()
    assert (summary.measured, summary.failed, len(cluster.jobs)) == (2, 2, 1)
    assert (
        "every task has ended without it: run the same command again; logs: "
        in capfd.readouterr().err
    )
    cluster.lost = set()
    again = cluster.run()
    assert (again.measured, again.reused, again.is_complete) == (2, 2, True)
    assert cluster.jobs == [["1/2", "2/2"], ["2/2"]], (
        "only the share with cells to measure"
    )


def test_a_cell_that_failed_in_a_task_is_reported_with_its_cause(
    tmp_path, monkeypatch, capfd
):
    model = ModelConfig(kind=Kind.self_attention)
    cluster = installed(
        Cluster(configured(tmp_path, model=model, blocks=["W_V"])), monkeypatch
    )
    capfd.readouterr()
    assert cluster.run().failed == CELLS
    words = capfd.readouterr().err
    assert "failed: n_layers=1, sigma=" in words
    assert "RuntimeError: " in words
    assert "ended without it" not in words


def test_a_job_at_work_is_waited_for_and_not_submitted_twice(
    cluster, monkeypatch, capfd
):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    looks = iter([True, True, False])

    def is_alive(_):
        for index in (1, 2):
            run_shard(Sweep(cluster.variants), Shard(index, 2))
        return next(looks)

    monkeypatch.setattr(JobArray, "is_alive", is_alive)
    assert cluster.run().is_complete
    assert cluster.jobs == []
    assert f"slurm job {cluster.array().name} is at work" in capfd.readouterr().err


def test_another_sweep_of_the_same_name_has_a_job_of_its_own(cluster, tmp_path):
    other = JobArray(Sweep([("", configured(tmp_path, seeds=3))]), compose([]))
    assert (
        other.name != cluster.array().name == Cluster(configured(tmp_path)).array().name
    )


ANSWERS = {
    "at work": (0, "1_[0-1] main hessfig-sigma\n", True),
    "over": (0, "", False),
    "no answer": (1, "", True),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_squeue_says(case, tmp_path, monkeypatch):
    code, out, expected = ANSWERS[case]
    monkeypatch.setattr(
        slurm.subprocess,
        "run",
        lambda *_, **__: subprocess.CompletedProcess([], code, out, ""),
    )
    assert Cluster(configured(tmp_path)).array().is_alive() is expected


def test_a_refusal_is_in_slurms_words(cluster, monkeypatch):
    def refuse(_):
        raise submitit.core.utils.FailedJobError(
            "sbatch: error: invalid partition specified: nosuch"
        )

    monkeypatch.setattr(cluster, "submitted", refuse)
    with pytest.raises(UserError, match="Slurm does not take the job") as caught:
        cluster.run()
    assert caught.value.got == "sbatch: error: invalid partition specified: nosuch"


def test_a_share_that_is_queued_again_is_the_same(tmp_path):
    share = Share((sys.executable, "-c", "raise SystemExit(3)"))
    assert share() == 3
    assert share.checkpoint().function == share


def sbatch(folder, **settings):
    launcher = LauncherConfig(kind=Launcher.slurm, **settings)
    array = JobArray(Sweep([("", configured(folder, launcher=launcher))]), compose([]))
    return _make_sbatch_string(
        command="command", folder=array.folder, map_count=4, **array.options()
    ).splitlines()


def test_settings_are_options_and_what_is_not_set_is_left_to_the_cluster(tmp_path):
    chosen = {
        "time": "1:30:00",
        "memory": "16GB",
        "partition": "main",
        "account": "mine",
        "gpus": 2,
    }
    lines = sbatch(
        tmp_path, cpus_per_task=3, options=["--qos=a b", "--exclusive"], **chosen
    )
    expected = {
        "--array=0-3%4",
        "--cpus-per-task=3",
        "--time=90",
        "--mem=16G",
        "--partition=main",
        "--account=mine",
        "--gpus-per-task=2",
        "--qos='a b'",
        "--exclusive",
        "--requeue",
        "--open-mode=append",
    }
    assert expected <= {line.removeprefix("#SBATCH ") for line in lines}
    assert [
        line
        for line in lines
        if line.startswith("srun ") and "--cpus-per-task=3" in line
    ]
    plain = "\n".join(sbatch(tmp_path))
    assert "--time=240\n" in plain
    assert not [
        name
        for name in ("--mem", "--partition", "--account", "--gpus")
        if name in plain
    ]


def test_a_task_measures_its_share_with_a_worker_a_core(tmp_path):
    launcher = LauncherConfig(kind=Launcher.slurm, tasks=8, cpus_per_task=3)
    sweep = Sweep([("", configured(tmp_path, launcher=launcher, workers="auto"))])
    job = compose(["sweep=sigma", "launcher=slurm", "workers=7", "task.digits=3"])
    command = JobArray(sweep, job)._command(Shard(2, 8))
    assert command[command.index("run") :] == (
        "run",
        "sweep=sigma",
        "task.digits=3",
        f"output_dir='{tmp_path}'",
        "launcher=local",
        "workers=3",
        "force_workers=true",
        "shard=2/8",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("1", 1),
        ("9999999", 9_999_999),
        ("1:30:00", 90),
        ("01:30:00", 90),
        ("100:00:00", 6000),
        ("0:00:01", 1),
        ("0:00:59", 1),
        ("0:01:00", 1),
        ("0:01:01", 2),
        ("0:30:00", 30),
        ("2-00:00:00", 2880),
        ("1-02:03:04", 1564),
        ("0-00:00:01", 1),
        ("1-06:00:00", 1800),
        # Forms of Slurm's that are refused here, and its word for no limit at all.
        *(
            (text, None)
            for text in (
                "1-06:00",
                "1-06",
                "30:00",
                "2:30",
                "0",
                "00",
                "0:00:00",
                "0-00:00:00",
                "1:60:00",
            )
        ),
    ],
)
def test_minutes_are_those_of_slurm(text, expected):
    """sbatch: minutes, hours:minutes:seconds or days-hours:minutes:seconds, rounded up; 0 is no limit."""
    if expected is None:
        with pytest.raises(UserError, match=r"launcher\.time"):
            settings()["launcher.time"].check(text)
    else:
        settings()["launcher.time"].check(text)
        assert minutes(text) == expected


TOY = [
    "model=linear_mlp",
    "task.digits=1",
    "task.batch_size=2",
    "blocks=[W]",
    "seeds=1",
    "grid.points=2",
]


def test_without_submitit_nothing_is_written(cli, monkeypatch):
    monkeypatch.delitem(sys.modules, "hessfig.sweep.slurm")
    monkeypatch.setitem(sys.modules, "submitit", None)
    answer = cli("run", *TOY, "launcher=slurm")
    assert answer.code == 2
    assert "launcher=slurm needs submitit" in answer.err
    assert "pip install '.[slurm]'" in answer.err
    assert not list(Path().rglob("*.json"))


def test_without_slurm_the_message_says_so(cli, monkeypatch):
    monkeypatch.setenv("PATH", "")
    answer = cli("run", *TOY, "launcher=slurm")
    assert answer.code == 2
    assert 'Could not detect "srun"' in answer.err
    assert "launcher=local" in answer.err
    assert not list(Path().rglob("*.json"))


def test_dry_run_shows_the_options_and_writes_nothing(cli):
    answer = cli("run", *TOY, "launcher=slurm", "launcher.tasks=2", "dry_run=true")
    assert answer.code == 0
    assert "slurm: 2 tasks, job_name=hessfig-sigma-" in answer.out
    assert "time=240" in answer.out
    assert not list(Path().iterdir())


def test_a_share_says_what_it_did_and_how_to_collect(cli):
    import shlex

    answer = cli("run", *TOY, "workers=1", "shard=2/2")
    assert answer.code == 0
    assert "shard 2/2: 1 cells measured, 0 reused, 0 failed in " in answer.out
    assert answer.out.endswith(
        f"collect, with all shards in one folder: hessfig run {shlex.join(TOY)}\n"
    )
    assert not Path("outputs/sigma/table.csv").exists()
    whole = cli("run", *TOY, "workers=1")
    assert "1 cells measured, 1 reused, 0 failed" in whole.out
