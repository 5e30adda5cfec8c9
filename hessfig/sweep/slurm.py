"""A sweep's Slurm job: submits tasks that measure shares of the cells in a shared folder, and waits for results."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from hessfig.config.compose.job import Job
from hessfig.config.compose.overrides import hydra_quoted
from hessfig.config.compose.provenance import command_of
from hessfig.config.facts import Role
from hessfig.config.machine import check_device_name, slurm_memory
from hessfig.config.schema import Config
from hessfig.errors import UserError, command_line, plain
from hessfig.files import check_writable, write_text
from hessfig.record import entry_of
from hessfig.sweep.launchers import Say, Shard, words_without
from hessfig.sweep.outputs import config_hash
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.pool import CellOutcome, own_path
from hessfig.sweep.runner import Summary, run_sweep
from hessfig.sweep.store import CellStore

# States in which a task may still measure; all others are ends.
ALIVE = {
    *("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD"),
    *("REQUEUE_FED", "RESIZING", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT", "STOPPED", "RESV_DEL_HOLD"),
}
_PATIENCE = 60.0  # seconds for an answer
_UNKNOWN = "Invalid job id"
States = dict[str, str]


def submit(script: str) -> str:
    """Submit a job; return its number. Raises UserError without sbatch, or with Slurm's own message."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "there is no Slurm on this machine: the command sbatch is not found",
            got="launcher=slurm",
            allowed="a machine from which jobs are submitted",
            remedy="launcher=local, or shard=1/8, shard=2/8, ... on machines of your own (docs/cluster.md)",
        )
    done = _called("sbatch", "--parsable", text=script)
    if done.returncode:
        raise UserError(
            "Slurm refuses the job",
            got=_words(done.stderr),
            allowed="what this cluster grants (sinfo lists partitions)",
            remedy="other launcher.partition, time, memory, gpus, account or options; dry_run=true shows the script",
        )
    return done.stdout.strip().partition(";")[0]


def states(job: str) -> States | None:
    """Return the state of each task of a job, by its place in the array: {'3': 'RUNNING'}.

    Empty when Slurm knows the job no more, None when it does not answer. Tasks that ended are forgotten after minutes.
    """
    if shutil.which("squeue") is None:
        return None
    done = _called("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%K %T")
    if done.returncode:
        return {} if _UNKNOWN in done.stderr else None
    tasks = (line.split() for line in done.stdout.splitlines())
    return {task[0]: task[1] for task in tasks if len(task) == 2}


def count_by_state(tasks: States) -> str:
    """Return '2 running, 1 pending'."""
    names = [state.lower() for state in tasks.values()]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(sorted(names, reverse=True)))


def _called(*command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _words(stderr: str) -> str:
    lines = [line.removeprefix("sbatch: error: ") for line in stderr.splitlines() if line.strip()]
    return plain("; ".join(lines) or "no reason given")


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
    """Return the options of sbatch: those without a value are left to the cluster."""
    launcher = config.launcher
    log = folder.absolute() / LOGS / "%A_%a.log"
    asked = {
        "job-name": f"hessfig-{config.sweep.name}",
        "array": _ranges(shards),
        "output": f"{_quoted(str(log.parent).replace('%', '%%'))}/{log.name}",
        "chdir": _quoted(str(Path.cwd())),
        "cpus-per-task": launcher.cpus_per_task,
        "partition": launcher.partition,
        "account": launcher.account,
        "time": launcher.time,
        "mem": launcher.memory and slurm_memory(launcher.memory),
        "gpus-per-task": launcher.gpus or None,
    }
    options = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    return [*options, "--requeue", "--open-mode=append", *map(_quoted_value, launcher.options)]


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
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if set(text) & set(" \t#\"'\\") else text


_SHORTEST, _LONGEST, _GROWTH = 1.0, 20.0, 1.3  # seconds between two checks
_LATE = (0.0, 2.0, 10.0)  # seconds before checking again for a file of another machine


class Slurm:
    """A Slurm job array measures the sweep of a job; this command submits it, or resumes an earlier one, and waits."""

    def __init__(self, job: Job) -> None:
        check_device_name(job.config.device)
        self._job = job

    def run(self, sweep: Sweep, say: Say) -> Summary | None:
        """Submit what is not finished, wait and collect; None when the job array is left alone or only shown."""
        job, config = self._job, self._job.config
        words = words_without(job, Role.machine, Role.command)  # and the folder, which -m may have moved
        array = SlurmJob(sweep, [*job.flags, *words, f"output_dir={hydra_quoted(config.output_dir)}"])
        if config.dry_run:
            shards = array.shards()
            print(array.script(shards) if shards else "nothing to do\n", end="")
            return None
        wait = config.launcher.wait
        if not wait and (array.is_alive() or (array.number is None and array.shards())):
            self._leave(array, say)
            return None
        summary = run_sweep(sweep, array.run if wait else array.watched, command_of(job))
        array.forget()
        return summary

    def _leave(self, array: SlurmJob, say: Say) -> None:
        """Submit unless a job is still running, and print the next command."""
        job = self._job
        if array.number is None:
            array.submit()
        else:
            say(f"slurm job {array.number} is still at it")
        words = [word for word in job.words if not word.startswith("launcher")]
        say(f"how far:  {command_line('status', *job.flags, *words)}")
        say(f"collect:  {command_line('run', *job.flags, *job.words)}")


class SlurmJob:
    """The job array of one sweep with its settings: submitted by this command, or by an earlier one that is over.

    The cells on disk are the truth; the number of the job is stored with them only so that it is not submitted twice.
    """

    def __init__(self, sweep: Sweep, words: Sequence[str]) -> None:
        self._sweep, self._words, self.folder = sweep, words, sweep.folder
        self._record = self.folder / LOGS / f"job-{config_hash(sweep.variants)[:12]}.json"
        self.number, self._measured, self._told = _recorded(self._record), 0, ""

    def script(self, shards: Sequence[int]) -> str:
        """Return the batch script of these shares."""
        return sbatch_script(self._sweep.config, self._words, folder=self.folder, shards=shards)

    def shards(self) -> list[int]:
        """Return which shares have cells to measure: of each, those that wait for pilots too."""
        sweep, count = self._sweep.reread(), self._sweep.config.launcher.tasks
        waiting = set(sweep.cells if sweep.unfinished(sweep.pilots) else sweep.unfinished(sweep.cells))
        return [at for at in range(1, count + 1) if not waiting.isdisjoint(Shard(at, count).cells(sweep.cells))]

    def is_alive(self) -> bool:
        """Whether a task may still measure, which is assumed while Slurm does not answer."""
        return self.number is not None and _may_measure(states(self.number))

    def submit(self) -> None:
        """Submit the job. Raises UserError with Slurm's message if it is refused."""
        check_writable(self.folder / LOGS)
        sweep, shards = self._sweep.reread(), self.shards()
        todo = sweep.unfinished(sweep.cells)
        sweep.failures.forget(cell.key for cell in (*sweep.pilots, *todo))
        self.number, self._measured = submit(self.script(shards)), 0
        write_text(self._record, json.dumps({"job": self.number}) + "\n")
        tasks = f"{len(shards)} task{'s' * (len(shards) > 1)} for {len(todo)} cells"
        _say(f"slurm job {self.number} submitted: {tasks}; `scancel {self.number}` ends it, Ctrl-C does not")

    def forget(self) -> None:
        """Forget the job's number: it is over, and what it did is known."""
        self._record.unlink(missing_ok=True)

    def run(self, cells: list[Cell], store: CellStore) -> Generator[CellOutcome, None, None]:
        """Yield the outcome of every cell as it appears; submit the job unless it is at it, again if tasks were lost.

        Tasks that ran out of time, or whose node was lost, are submitted again as long as that brings cells;
        cancelled ones are not.
        """
        if not self.is_alive():
            self.submit()
        yield from self.watched(cells, store, again=True)

    def watched(
        self, cells: list[Cell], store: CellStore, *, again: bool = False
    ) -> Generator[CellOutcome, None, None]:
        """Yield outcomes until every cell has one; lost tasks are submitted `again`, or what they leave has failed."""
        waiting, pause = dict.fromkeys(cells), _SHORTEST
        while waiting:
            tasks = states(self.number) if self.number else {}  # before the disk is read: ended tasks have written
            is_alive = _may_measure(tasks)
            self._tell(tasks)
            for outcome in self._ended(list(waiting), store, looks=(0.0,) if is_alive else _LATE):
                del waiting[outcome.cell]
                yield outcome
            if waiting and not is_alive:
                if not again or self._measured == 0 or "CANCELLED" in (tasks or {}).values():
                    yield from (CellOutcome(cell, "failed", self._loss(tasks or {})) for cell in waiting)
                    return
                self.submit()
            time.sleep(pause if waiting else 0.0)
            pause = min(_LONGEST, _GROWTH * pause)

    def _ended(
        self, waiting: list[Cell], store: CellStore, *, looks: Sequence[float]
    ) -> Generator[CellOutcome, None, None]:
        for look in looks:
            time.sleep(look if waiting else 0.0)
            outcomes = [outcome for cell in waiting if (outcome := self._outcome(cell, store)) is not None]
            self._measured += sum(outcome.kind == "measured" for outcome in outcomes)
            yield from outcomes
            ended = {id(outcome.cell) for outcome in outcomes}
            waiting = [cell for cell in waiting if id(cell) not in ended]

    def _outcome(self, cell: Cell, store: CellStore) -> CellOutcome | None:
        if store.sound(cell.key):
            return CellOutcome(cell, "measured")
        cause = self._sweep.failures.cause(cell.key)
        return None if cause is None else CellOutcome(cell, "failed", cause)

    def _loss(self, tasks: States) -> str:
        how = f" ({count_by_state(tasks)})" if tasks else ""
        logs = self.folder / LOGS / f"{self.number}_*.log"
        return f"every task has ended without it{how}: run the same command again; the tasks' words: {logs}"

    def _tell(self, tasks: States | None) -> None:
        words = count_by_state(tasks) if tasks else "Slurm does not answer; asked again" * (tasks is None)
        if words and words != self._told:
            _say(f"slurm job {self.number}: {words}")
            self._told = words


def jobs_in(folder: Path) -> dict[str, bool]:
    """Return a line for each job that was submitted for the sweep in `folder` and not seen ending: what its tasks do.

    With each, whether it may still measure, as far as Slurm says.
    """
    lines = {}
    for number in filter(None, map(_recorded, sorted((folder / LOGS).glob("job-*.json")))):
        tasks = states(number)
        words = "Slurm does not answer here" if tasks is None else count_by_state(tasks) or "over"
        lines[f"slurm job {number}: {words}"] = _may_measure(tasks)
    return lines


def _recorded(path: Path) -> str | None:
    number = entry_of(path, "job")
    return None if number is None else str(number)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _may_measure(tasks: States | None) -> bool:
    return tasks is None or not ALIVE.isdisjoint(tasks.values())
