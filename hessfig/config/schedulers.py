"""Which share of the cells this process is to measure, as the scheduler that started it says (shard=auto)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hessfig.errors import UserError

COUNT = "HESSFIG_SHARDS"  # how many shares there are, for schedulers that number their tasks and do not count them


@dataclass(frozen=True)
class Scheduler:
    """How a scheduler numbers the tasks of a job: the variables with a task's number, the number of tasks, the first.

    `first` and `step` are numbers or variables that hold them. `last` is the variable of the last number, where there
    is that in place of a count. A count of "" is taken from HESSFIG_SHARDS.
    """

    name: str
    index: str
    count: str = ""
    first: str = "0"
    last: str = ""
    step: str = "1"

    def share(self, environment: Mapping[str, str]) -> tuple[int, int] | None:
        """Return this task's place, from 1, and the number of tasks; None where the scheduler says nothing of them."""
        number = _number(environment, self.index)
        if number is None:
            return None
        first, step = (_number(environment, one) for one in (self.first, self.step))
        if first is None or not step:
            return None
        last = _number(environment, self.last) if self.last else None
        count = _number(environment, self.count or COUNT) if last is None else (last - first) // step + 1
        return None if count is None else ((number - first) // step + 1, count)


# The order matters: what a launcher inside a job says (torchrun, mpirun, srun) comes before what the job says.
SCHEDULERS = (
    Scheduler("torchrun", "RANK", "WORLD_SIZE"),
    Scheduler("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Scheduler("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
    Scheduler("Kubernetes", "JOB_COMPLETION_INDEX"),
    Scheduler("PBS", "PBS_ARRAY_INDEX"),
    Scheduler("LSF", "LSB_JOBINDEX", first="1", last="LSB_JOBINDEX_END", step="LSB_JOBINDEX_STEP"),
    Scheduler("SGE", "SGE_TASK_ID", first="SGE_TASK_FIRST", last="SGE_TASK_LAST", step="SGE_TASK_STEPSIZE"),
)
_ARRAY = Scheduler(
    *("Slurm array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
    first="SLURM_ARRAY_TASK_MIN",
    step="SLURM_ARRAY_TASK_STEP",
)
_STEP = Scheduler("srun", "SLURM_PROCID", "SLURM_NTASKS")


def share(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return this process's share of the cells, (2, 8) for the second of eight.

    Of an array job whose tasks start several processes each with srun, every process of every task has a share.
    HESSFIG_SHARDS says how many shares there are where the scheduler does not (Kubernetes, PBS).
    Raises UserError where no scheduler says a share.
    """
    known = os.environ if environment is None else environment
    found = next((one for scheduler in SCHEDULERS if (one := scheduler.share(known))), None) or _slurm(known)
    if found is None or not 1 <= found[0] <= found[1]:
        raise UserError(
            "shard=auto: no scheduler says which share this is",
            got=f"{found[0]}/{found[1]}" if found else "none of their variables",
            allowed=f"a task of {', '.join(one.name for one in (*SCHEDULERS, _ARRAY, _STEP))}",
            remedy=f"shard=K/N; for Kubernetes and PBS, {COUNT}=N too",
        )
    return found


def _slurm(environment: Mapping[str, str]) -> tuple[int, int] | None:
    task = _ARRAY.share(environment)
    process = _STEP.share(environment) if environment.get("SLURM_STEP_ID", "").isdigit() else None
    if task is None or process is None:
        return task or process
    return (task[0] - 1) * process[1] + process[0], task[1] * process[1]


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number that is this text, or that the variable of this name holds; None for what holds none."""
    text = name if name.isdigit() else environment.get(name, "")
    return int(text) if text.isdigit() else None
