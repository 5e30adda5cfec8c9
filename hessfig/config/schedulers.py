"""Determines the share of the cells that this process measures: shard=K/N, or from its scheduler (shard=auto)."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hessfig.config.schema import MOST_SHARDS
from hessfig.errors import UserError, plain

_NUMBER = re.compile("[0-9]{1,10}")
COUNT = "HESSFIG_SHARDS"  # how many shares there are, for schedulers that number their tasks and do not count them


@dataclass(frozen=True)
class Scheduler:
    """How a scheduler numbers the tasks of a job: the variables with a task's number, the number of tasks, the first.

    `first` and `step` are numbers or variables that hold them. `last` is the variable of the last number: in place of
    a count, or next to one, which then tells arrays with holes. A count of "" is taken from HESSFIG_SHARDS.
    `is_array`: its tasks are jobs of their own, and no launcher inside one of them spans the others.
    """

    name: str
    index: str
    count: str = ""
    first: str = "0"
    last: str = ""
    step: str = "1"
    is_array: bool = False

    def share(self, environment: Mapping[str, str]) -> tuple[int, int] | None:
        """Return this task's place, from 1, and the number of tasks; None if the scheduler's variables are not set.

        Raises UserError for a task of an array with holes, whose place among the others is unknown.
        """
        values = {name: at for name in self.variables if (at := _number(environment, name)) is not None}
        if len(values) < len(self.variables):
            return None
        numbers = (self.index, self.first, self.step)
        number, first, step = (values[name] if name in values else int(name) for name in numbers)
        spanned = (values[self.last] - first) // max(step, 1) + 1 if self.last else None
        counted = values[self.count or COUNT] if self.count or spanned is None else spanned
        if spanned not in (None, counted):
            raise self._holes(environment)
        return (number - first) // max(step, 1) + 1, counted

    def lack(self, environment: Mapping[str, str]) -> str:
        """Return which variables of the scheduler are missing, or hold no number; "" where none of them is there."""
        if not any(map(environment.get, self.variables)):
            return ""
        lost = [name for name in self.variables if _number(environment, name) is None]
        words = (
            f"{name}={plain(environment[name], most=20)}" if name in environment else f"no {name}" for name in lost
        )
        return f"{self.name}: {', '.join(words)}" if lost else ""

    def said(self, environment: Mapping[str, str]) -> str:
        """Return the variables that determine its share, for a message."""
        return f"{self.name}: {', '.join(f'{name}={environment[name]}' for name in self.variables)}"

    @property
    def variables(self) -> list[str]:
        """The variables without which there is no share."""
        counts = [self.count] if self.count else [] if self.last else [COUNT]
        named = [self.index, *counts, self.first, self.last, self.step]
        return [name for name in named if name and not name.isdigit()]

    def _holes(self, environment: Mapping[str, str]) -> UserError:
        return UserError(
            f"shard=auto: the indices of this {self.name} have holes, and a task cannot know which the others are",
            got=", ".join(f"{name}={environment[name]}" for name in self.variables),
            allowed="indices in steps of equal length: --array=0-7",
            remedy="give the same tasks other indices, or the share: shard=K/N, from a list of your own",
        )


SCHEDULERS = (
    Scheduler("torchrun", "RANK", "WORLD_SIZE"),
    Scheduler("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Scheduler("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
    Scheduler("Kubernetes", "JOB_COMPLETION_INDEX"),
    Scheduler("PBS", "PBS_ARRAY_INDEX", is_array=True),
    Scheduler("LSF", "LSB_JOBINDEX", first="1", last="LSB_JOBINDEX_END", step="LSB_JOBINDEX_STEP", is_array=True),
    Scheduler(
        *("SGE", "SGE_TASK_ID"), first="SGE_TASK_FIRST", last="SGE_TASK_LAST", step="SGE_TASK_STEPSIZE", is_array=True
    ),
    Scheduler(
        *("Slurm array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
        first="SLURM_ARRAY_TASK_MIN",
        last="SLURM_ARRAY_TASK_MAX",
        step="SLURM_ARRAY_TASK_STEP",
        is_array=True,
    ),
    Scheduler("srun", "SLURM_PROCID", "SLURM_NTASKS"),
)
_TORCHRUN, _STEP = SCHEDULERS[0], SCHEDULERS[-1]
_GROUPS = "GROUP_WORLD_SIZE"  # over how many nodes torchrun's processes are spread
_STEP_ID = "SLURM_STEP_ID"
_NO_STEPS = 0xFFFFFFF0  # Slurm's step ids from here on are not of srun: batch scripts, prologues
Place = tuple[int, int]


def parse_shard(text: str) -> tuple[int, int]:
    """Return (2, 8) for '2/8', and the scheduler's share for 'auto'. Raises UserError for other texts."""
    match = re.fullmatch("([0-9]{1,7})/([0-9]{1,7})", text)
    index, count = share() if text == "auto" else map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count <= MOST_SHARDS:
        raise UserError(
            "shard: there is no such share of the cells",
            got=f"auto, which is {index}/{count} here" if text == "auto" else plain(text),
            allowed=f"auto, or K/N with 1 <= K <= N <= {MOST_SHARDS}",
            remedy=f"for example shard={min(max(index, 1), count)}/{count}" if count else "for example shard=2/8",
        )
    return index, count


def share(environment: Mapping[str, str] | None = None) -> Place:
    """Return this process's share of the cells, (2, 8) for the second of eight.

    A scheduler with a single task is ignored (a container's WORLD_SIZE=1). Where the tasks of an array start
    several processes each (srun, mpirun, torchrun), every process of every task has a share. HESSFIG_SHARDS says how
    many shares there are where the scheduler does not (Kubernetes, PBS).
    Raises UserError where no scheduler says a share, for an array with holes, for a batch script of several tasks, and
    for schedulers that contradict each other.
    """
    known = os.environ if environment is None else environment
    active = [scheduler for scheduler in SCHEDULERS if _counts(scheduler, known)]
    places = {scheduler: at for scheduler in active if (at := scheduler.share(known)) is not None}
    wrong = [at for at in places.values() if not 1 <= at[0] <= at[1]]
    if wrong:
        raise _nobody(known, f"{wrong[0][0]}/{wrong[0][1]}")
    arrays, processes = (
        {scheduler: at for scheduler, at in places.items() if scheduler.is_array == kind} for kind in (True, False)
    )
    inner = _of_processes(_several(processes), known)
    lost = [
        scheduler
        for scheduler in active
        if scheduler.is_array and scheduler not in places and _number(known, scheduler.index) is not None
    ]
    if not places or (lost and not arrays):
        raise _nobody(known, "; ".join(scheduler.lack(known) for scheduler in lost))
    return _nested(_one_of(arrays, known), inner)


def _counts(scheduler: Scheduler, environment: Mapping[str, str]) -> bool:
    """Whether a scheduler's variables mean this process: srun's are set in batch scripts, too, LSF's 0 in any job."""
    step = _number(environment, _STEP_ID)
    if scheduler is _STEP:
        return step is not None and step < _NO_STEPS
    return not (scheduler.is_array and scheduler.first == "1" and _number(environment, scheduler.index) == 0)


def _several(places: Mapping[Scheduler, Place]) -> dict[Scheduler, Place]:
    return {scheduler: at for scheduler, at in places.items() if at[1] > 1}


def _of_processes(places: Mapping[Scheduler, Place], environment: Mapping[str, str]) -> Place:
    """Return the place among the processes of one job. Raises UserError for a batch script that lacks srun."""
    tasks = _number(environment, _STEP.count) or 1
    others = {scheduler: place for scheduler, place in places.items() if scheduler is not _TORCHRUN}
    if tasks > 1 and not places:
        raise _without_srun(tasks)
    if _TORCHRUN not in places or places[_TORCHRUN] in others.values() or not others:
        return _one_of(places, environment)
    outer, nodes = _one_of(others, environment), _number(environment, _GROUPS)
    if nodes == 1:  # one torchrun in each of the others' tasks
        return _nested(outer, places[_TORCHRUN])
    return places[_TORCHRUN] if nodes == outer[1] else _one_of(places, environment)


def _one_of(places: Mapping[Scheduler, Place], environment: Mapping[str, str]) -> Place:
    """Return the place given by all schedulers with several tasks. Raises UserError if they contradict each other."""
    several = _several(places)
    if len(set(several.values())) > 1:
        raise UserError(
            f"shard=auto: {' and '.join(scheduler.name for scheduler in several)} contradict each other",
            got="; ".join(scheduler.said(environment) for scheduler in several),
            allowed="one of them with more than one task, or in each of its tasks a torchrun of one node, or of all",
            remedy=f"shard=K/N, or unset {' '.join(next(iter(several)).variables)}",
        )
    return next(iter(several.values()), (1, 1))


def _nested(outer: Place, inner: Place) -> Place:
    return (outer[0] - 1) * inner[1] + inner[0], outer[1] * inner[1]


def _nobody(environment: Mapping[str, str], got: str) -> UserError:
    lacks = filter(None, (scheduler.lack(environment) for scheduler in SCHEDULERS if scheduler is not _STEP))
    return UserError(
        "shard=auto: no scheduler says which share this is",
        got=got or "; ".join(lacks) or "none of their variables",
        allowed=f"a task of {', '.join(scheduler.name for scheduler in SCHEDULERS)}",
        remedy=f"shard=K/N; for Kubernetes and PBS, {COUNT}=N too",
    )


def _without_srun(tasks: int) -> UserError:
    return UserError(
        "shard=auto: srun is missing: this is the one process of a batch script that asks for several",
        got=f"{_STEP.count}={tasks}, and no {_STEP_ID} of srun",
        allowed="srun, which starts a process for each task; or one task",
        remedy=f"srun hessfig run ... shard=auto, or sbatch --ntasks=1 --cpus-per-task={tasks}",
    )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number in a text, or in the variable of this name; None if there is no number."""
    text = name if name.isdigit() else environment.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None
