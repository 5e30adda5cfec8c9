"""The script of a Slurm job array: the settings of the launcher as #SBATCH lines, then the command of one share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hessfig.config import Config, LauncherConfig
from hessfig.config.launcher_checks import slurm_memory
from hessfig.sweep.shelter import own_path

LOGS = "slurm"


def sbatch_script(config: Config, words: Sequence[str], *, folder: Path, shards: Sequence[int]) -> str:
    """Return what sbatch reads: tasks that measure the `shards` (from 1) of the sweep in `folder`.

    `words` are the settings of `hessfig run`, as on a command line. A task that was preempted, or whose node was lost,
    is queued again by Slurm; finished cells are never measured again.
    """
    launcher = config.launcher
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(config, folder, shards))]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in own_path().items()]
    workers = launcher.cpus_per_task if config.workers == "auto" else config.workers
    ours = ["launcher=local", f"workers={workers}", "force_workers=true"]
    command = [sys.executable, "-P", "-m", "hessfig.cli.main", "run", *words, *ours]
    shard = f'"shard=$SLURM_ARRAY_TASK_ID/{launcher.tasks}"'
    return "\n".join([*lines, f"exec {shlex.join(command)} {shard}"]) + "\n"


def _options(config: Config, folder: Path, shards: Sequence[int]) -> list[str]:
    launcher = config.launcher
    log = folder.absolute() / LOGS / "%A_%a.log"
    return [
        f"--job-name=hessfig-{config.sweep.name}",
        f"--array={_ranges(shards)}",
        f"--output={_quoted(str(log.parent).replace('%', '%%'))}/{log.name}",
        f"--chdir={_quoted(str(Path.cwd()))}",
        f"--cpus-per-task={launcher.cpus_per_task}",
        *_asked(launcher),
        "--requeue",
        "--open-mode=append",
        *map(_quoted_value, launcher.options),
    ]


def _asked(launcher: LauncherConfig) -> list[str]:
    """Return the options that are not left to the cluster."""
    asked = {
        "partition": launcher.partition,
        "account": launcher.account,
        "time": launcher.time,
        "mem": launcher.memory and slurm_memory(launcher.memory),
        "gpus-per-task": launcher.gpus or None,
    }
    return [f"--{name}={value}" for name, value in asked.items() if value is not None]


def _ranges(shards: Sequence[int]) -> str:
    """Return 1-3,7 for 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for shard in shards:
        if spans and spans[-1][1] == shard - 1:
            spans[-1][1] = shard
        else:
            spans.append([shard, shard])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _quoted_value(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={_quoted(value)}" if equals else name


def _quoted(text: str) -> str:
    """Return `text` as sbatch reads it in a line of #SBATCH, where a blank or a # would end it."""
    return (
        '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if set(text) & set(" \t#\"'\\") else text
    )
