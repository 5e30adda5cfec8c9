"""Which share of the cells this process is to measure, as the scheduler that started it says (shard=auto)."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hessfig.errors import UserError, plain

_NUMBER = re.compile("[0-9]{1,10}")
COUNT = "HESSFIG_SHARDS"  # how many shares there are, for schedulers that number their tasks and do not count them


@dataclass(frozen=True)
class Scheduler:
    """How a scheduler numbers the tasks of a job: the variables with a task's number, the number of tasks, the first.

    `first` and `step` are numbers or variables that hold them. `last` is the variable of the last number: in place of
    a count, or next to one, which then tells arrays with holes. A count of "" is taken from HESSFIG_SHARDS.
    """

    name: str
    index: str
    count: str = ""
    first: str = "0"
    last: str = ""
    step: str = "1"

    def share(self, environment: Mapping[str, str]) -> tuple[int, int] | None:
        """Return this task's place, from 1, and the number of tasks; None where the scheduler says nothing of them.

        Raises UserError for a task of an array with holes: its place among the others is known to nobody.
        """
        found = {name: at for name in self._needed if (at := _number(environment, name)) is not None}
        if len(found) < len(self._needed):
            return None
        number, first, step = (found[one] if one in found else int(one) for one in (self.index, self.first, self.step))
        spanned = (found[self.last] - first) // max(step, 1) + 1 if self.last else None
        counted = found[self.count or COUNT] if self.count or spanned is None else spanned
        if spanned not in (None, counted):
            raise self._holes(environment)
        return (number - first) // max(step, 1) + 1, counted

    def lack(self, environment: Mapping[str, str]) -> str:
        """Return which variables of the scheduler are missing, or hold no number; "" where none of them is there."""
        if not any(map(environment.get, self._needed)):
            return ""
        lost = [name for name in self._needed if _number(environment, name) is None]
        words = (
            f"{name}={plain(environment[name], most=20)}" if name in environment else f"no {name}" for name in lost
        )
        return f"{self.name}: {', '.join(words)}" if lost else ""

    @property
    def _needed(self) -> list[str]:
        """The variables without which there is no share."""
        counts = [self.count] if self.count else [] if self.last else [COUNT]
        named = [self.index, *counts, self.first, self.last, self.step]
        return [name for name in named if name and not name.isdigit()]

    def _holes(self, environment: Mapping[str, str]) -> UserError:
        return UserError(
            f"shard=auto: the indices of this {self.name} have holes, and a task cannot know which the others are",
            got=", ".join(f"{name}={environment[name]}" for name in self._needed),
            allowed="indices in steps of equal length: --array=0-7",
            remedy="give the same tasks other indices, or the share: shard=K/N, from a list of your own",
        )


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
    last="SLURM_ARRAY_TASK_MAX",
    step="SLURM_ARRAY_TASK_STEP",
)
_STEP = Scheduler("srun", "SLURM_PROCID", "SLURM_NTASKS")
_STEP_ID = "SLURM_STEP_ID"
_NO_STEPS = 0xFFFFFFF0  # from here on Slurm numbers what srun did not start: batch scripts, prologues


def share(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return this process's share of the cells, (2, 8) for the second of eight.

    Of an array job whose tasks start several processes each with srun, every process of every task has a share.
    HESSFIG_SHARDS says how many shares there are where the scheduler does not (Kubernetes, PBS).
    Raises UserError where no scheduler says a share, for an array with holes, and for a batch script of several tasks.
    """
    known = os.environ if environment is None else environment
    found = next((one for scheduler in SCHEDULERS if (one := scheduler.share(known))), None) or _slurm(known)
    if found is None or not 1 <= found[0] <= found[1]:
        lacks = filter(None, (one.lack(known) for one in (*SCHEDULERS, _ARRAY)))
        raise UserError(
            "shard=auto: no scheduler says which share this is",
            got=f"{found[0]}/{found[1]}" if found else "; ".join(lacks) or "none of their variables",
            allowed=f"a task of {', '.join(one.name for one in (*SCHEDULERS, _ARRAY, _STEP))}",
            remedy=f"shard=K/N; for Kubernetes and PBS, {COUNT}=N too",
        )
    return found


def _slurm(environment: Mapping[str, str]) -> tuple[int, int] | None:
    task = _ARRAY.share(environment)
    step, tasks = _number(environment, _STEP_ID), _number(environment, _STEP.count) or 1
    started = step is not None and step < _NO_STEPS
    if tasks > 1 and not started:
        raise UserError(
            "shard=auto: srun is missing: this is the one process of a batch script that asks for several",
            got=f"{_STEP.count}={tasks}, and no {_STEP_ID} of srun",
            allowed="srun, which starts a process for each task; or one task",
            remedy=f"srun hessfig run ... shard=auto, or sbatch --ntasks=1 --cpus-per-task={tasks}",
        )
    process = _STEP.share(environment) if started else None
    if task is None or process is None:
        return task or process
    return (task[0] - 1) * process[1] + process[0], task[1] * process[1]


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number that is this text, or that the variable of this name holds; None for what holds none."""
    text = name if name.isdigit() else environment.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None
