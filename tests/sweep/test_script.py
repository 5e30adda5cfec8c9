"""The script of a job array: the launcher's settings as sbatch reads them, and the command of one share."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hessfig.config.enums import Launcher
from hessfig.config.schema import LauncherConfig
from hessfig.sweep.slurm import sbatch_script
from tests.toys import toy_config


def script(folder: Path, shards: list[int], **settings: object) -> list[str]:
    config = toy_config(folder, launcher=LauncherConfig(kind=Launcher.slurm, **settings), workers="auto")  # type: ignore[arg-type]
    return sbatch_script(config, ["sweep=sigma", "a='b c'"], folder=folder, shards=shards).splitlines()


def test_settings_are_options_and_what_is_not_set_is_left_out(tmp_path: Path) -> None:
    chosen = {"time": "1:30:00", "memory": "16GB", "partition": "main", "account": "mine", "gpus": 2}
    lines = script(tmp_path, [1, 2, 3, 7], cpus_per_task=3, options=["--qos=a b", "--exclusive"], **chosen)
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert options == [
        "--job-name=hessfig-sigma",
        "--array=1-3,7",
        f"--output={tmp_path}/slurm/%A_%a.log",
        f"--chdir={Path.cwd()}",
        "--cpus-per-task=3",
        *("--partition=main", "--account=mine", "--time=1:30:00", "--mem=16G", "--gpus-per-task=2"),
        *("--requeue", "--open-mode=append", '--qos="a b"', "--exclusive"),
    ]
    plain = "\n".join(script(tmp_path, [1]))
    assert not [name for name in ("--time", "--mem", "--partition", "--account", "--gpus") if name in plain]


def test_a_task_measures_its_share_with_a_worker_a_core(tmp_path: Path) -> None:
    command = shlex.split(script(tmp_path, [1], cpus_per_task=3, tasks=8)[-1])
    assert command[command.index("run") :] == [
        *("run", "sweep=sigma", "a='b c'", "launcher=local", "workers=3", "force_workers=true"),
        "shard=$SLURM_ARRAY_TASK_ID/8",
    ]


@pytest.mark.parametrize("name", ["a b", "a#b", "a%b", 'a"b'])
def test_a_folder_of_any_name_is_one_word(tmp_path: Path, name: str) -> None:
    line = next(line for line in script(tmp_path / name, [1]) if "--output" in line)
    (word,) = shlex.split(line.removeprefix("#SBATCH "))
    assert word.replace("%%", "%") == f"--output={tmp_path}/{name}/slurm/%A_%a.log"
