"""Settings of who measures: this machine's workers, or the tasks of a Slurm job array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from hessfig.config.choices import Launcher


@dataclass
class LauncherConfig:
    """Who measures. All but `kind` are for kind slurm; what is null is left to the cluster's own defaults.

    None of them changes a number: the key of a cell knows nothing of them.
    """

    kind: Annotated[Launcher, "workers of this machine, or the tasks of a Slurm job array"] = Launcher.local
    tasks: Annotated[int, "tasks of the job array; each measures its share of the cells"] = 4
    cpus_per_task: Annotated[int, "cores of a task; with workers=auto it has as many workers"] = 1
    gpus: Annotated[int, "GPUs of a task (with device=cuda)"] = 0
    memory: Annotated[str | None, "memory of a task: 16GB, 500MB", "a size or null"] = None
    time: Annotated[str | None, "time limit of a task: minutes, HH:MM:SS or D-HH:MM:SS", "a time or null"] = (
        None
    )
    partition: Annotated[str | None, "partition of the cluster"] = None
    account: Annotated[str | None, "account that is charged"] = None
    options: Annotated[list[str], "more options of sbatch: '[\"--qos=short\"]'"] = field(default_factory=list)
    wait: Annotated[bool, "wait with progress and collect; false: submit, return, and collect later"] = True
