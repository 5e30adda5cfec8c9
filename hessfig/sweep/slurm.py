"""Measures a sweep as a Slurm job array: submitit starts the tasks, the cells on disk decide what is done."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from hessfig.config.compose.job import Job
from hessfig.config.compose.overrides import hydra_quoted
from hessfig.config.compose.provenance import command_of
from hessfig.config.facts import Role
from hessfig.config.machine import check_device_name, slurm_memory
from hessfig.errors import UserError, command_line, install_extra, plain
from hessfig.files import check_writable
from hessfig.sweep.launchers import Say, Shard, words_without
from hessfig.sweep.outputs import config_hash
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.pool import CellOutcome, own_path
from hessfig.sweep.preview import status_lines
from hessfig.sweep.runner import Summary, run_sweep
from hessfig.sweep.store import CellStore

try:
    import submitit
except ModuleNotFoundError as error:
    raise UserError(
        "launcher=slurm needs submitit, which is not installed",
        got="launcher=slurm",
        allowed="launcher=local, or shard=1/8, shard=2/8, ... in jobs of your own (docs/cluster.md)",
        remedy=install_extra("slurm"),
    ) from error

FOLDER = "slurm"  # of a sweep's folder: submitit's files, and the logs of tasks
_PAUSE = 5.0  # seconds between two looks at the cells
_LATE = 10.0  # seconds until a file of another machine is seen on NFS


@dataclass(frozen=True)
class Share:
    """What a task does. At its time limit, and when it is preempted, submitit queues what `checkpoint` returns."""

    command: tuple[str, ...]

    def __call__(self) -> int:
        """Measure the share in a process, which Slurm's signals end, and return its exit code."""
        return subprocess.run(self.command, check=False).returncode

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Return the same share: its finished cells are found on disk."""
        return submitit.helpers.DelayedSubmission(self)


class Slurm:
    """The launcher: a job array with a task per share of the cells."""

    def __init__(self, job: Job) -> None:
        check_device_name(job.config.device)
        self._job = job

    def run(self, sweep: Sweep, say: Say) -> Summary | None:
        """Submit what is not finished, wait and collect; None when tasks are left alone, and for a dry run."""
        job, launcher = self._job, sweep.config.launcher
        array = JobArray(sweep, job)
        if sweep.config.dry_run:
            options = [
                f"{key}={value}"
                for key, value in array.options().items()
                if value is not None
            ]
            say(
                *status_lines(job, sweep),
                f"slurm: {len(array.shards())} tasks, {', '.join(options)}",
            )
            return None
        if launcher.wait or not array.shards():
            return run_sweep(sweep, array.measure, command_of(job))
        array.submit()
        say(
            f"how far:  {command_line('status', *job.flags, *words_without(job, Role.machine))}"
        )
        say(f"collect:  {command_line('run', *job.flags, *job.words)}")
        return None


class JobArray:
    """The tasks of a sweep. Slurm knows them by a name with a hash of the settings, which no other sweep has."""

    def __init__(self, sweep: Sweep, job: Job) -> None:
        self._sweep, self._job = sweep, job
        self.folder = sweep.folder / FOLDER
        self.name = f"hessfig-{sweep.name}-{config_hash(sweep.variants)[:8]}"

    def shards(self) -> list[Shard]:
        """Return the shares with cells to measure; with pilots to measure, every share that has cells."""
        sweep = self._sweep.reread()
        count = sweep.config.launcher.tasks
        waiting = set(
            sweep.cells
            if sweep.unfinished(sweep.pilots)
            else sweep.unfinished(sweep.cells)
        )
        shards = [Shard(index, count) for index in range(1, count + 1)]
        return [
            shard
            for shard in shards
            if not waiting.isdisjoint(shard.cells(sweep.cells))
        ]

    def is_alive(self) -> bool:
        """Whether tasks wait or run, which is assumed while Slurm does not answer.

        squeue, because submitit asks sacct, which knows nothing where Slurm keeps no
        accounts.
        """
        command = ("squeue", "--noheader", f"--name={self.name}")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return True
        return done.returncode != 0 or bool(done.stdout.strip())

    def submit(self) -> None:
        """Submit a task per share, unless tasks are at work. Raises UserError with Slurm's message if it refuses."""
        if shutil.which("sbatch") and self.is_alive():
            return _say(f"slurm job {self.name} is at work")
        check_writable(self.folder)
        sweep = self._sweep.reread()
        shards = self.shards()
        sweep.failures.forget(cell.key for cell in (*sweep.pilots, *sweep.cells))
        try:
            executor = submitit.SlurmExecutor(
                self.folder, python=f"{shlex.quote(sys.executable)} -P"
            )
            executor.update_parameters(**self.options())
            with executor.batch():
                jobs = [
                    executor.submit(Share(self._command(shard))) for shard in shards
                ]
        except RuntimeError as error:
            raise UserError(
                "Slurm does not take the job",
                got=plain("; ".join(str(error).splitlines()), most=300),
                allowed="what this cluster grants (sinfo lists partitions), where sbatch and srun are",
                remedy="other settings of launcher, or launcher=local; dry_run=true shows what is submitted",
            ) from error
        number = jobs[0].job_id.partition("_")[0]
        _say(
            f"slurm job {number} submitted: {len(jobs)} tasks; scancel {number} ends it, Ctrl-C does not"
        )

    def measure(
        self, cells: list[Cell], store: CellStore
    ) -> Generator[CellOutcome, None, None]:
        """Yield the outcome of every cell. One has failed when no task is left: a task queued again may measure it."""
        self.submit()
        waiting = list(cells)
        is_over = False
        while waiting and not is_over:
            # Before the disk is read: tasks that ended have written.
            is_over = not self.is_alive()
            time.sleep(_LATE if is_over else _PAUSE)
            done = {cell.key for cell in waiting if store.sound(cell.key)}
            yield from (
                CellOutcome(cell, "measured") for cell in waiting if cell.key in done
            )
            waiting = [cell for cell in waiting if cell.key not in done]
        lost = f"every task has ended without it: run the same command again; logs: {self.folder}"
        for cell in waiting:
            yield CellOutcome(
                cell, "failed", self._sweep.failures.cause(cell.key) or lost
            )

    def options(self) -> dict[str, Any]:
        """Return the options of submitit's executor; those that are None are left to the cluster.

        srun takes the cores of a task from its own options alone since Slurm 22.05.
        """
        launcher = self._sweep.config.launcher
        options = (
            option.removeprefix("--").partition("=") for option in launcher.options
        )
        return {
            "job_name": self.name,
            "time": minutes(launcher.time),
            "cpus_per_task": launcher.cpus_per_task,
            "srun_args": [f"--cpus-per-task={launcher.cpus_per_task}"],
            "mem": launcher.memory and slurm_memory(launcher.memory),
            "gpus_per_task": launcher.gpus or None,
            "partition": launcher.partition,
            "account": launcher.account,
            "stderr_to_stdout": True,
            "setup": [
                f"export {name}={shlex.quote(value)}"
                for name, value in own_path().items()
            ],
            "additional_parameters": {"requeue": True}
            | {name: value or True for name, _, value in options},
        }

    def _command(self, shard: Shard) -> tuple[str, ...]:
        config = self._sweep.config
        if config.workers == "auto":
            workers = config.launcher.cpus_per_task
        else:
            workers = config.workers
        words = words_without(self._job, Role.machine, Role.command)
        ours = (
            "launcher=local",
            f"workers={workers}",
            "force_workers=true",
            f"shard={shard}",
        )
        folder = f"output_dir={hydra_quoted(config.output_dir)}"
        return (
            sys.executable,
            "-P",
            "-m",
            "hessfig.cli.main",
            "run",
            *self._job.flags,
            *words,
            folder,
            *ours,
        )


def minutes(text: str) -> int:
    """Return the minutes of 90, 1:30:00 or 1-06:00:00, rounded up as Slurm does (sbatch, --time).

    Slurm's other forms (M:SS, D-HH, D-HH:MM) are not values of `launcher.time`.
    """
    if ":" not in text:
        return int(text)
    days, _, clock = text.rpartition("-")
    hours, mins, seconds = map(int, clock.split(":"))
    return (int(days or 0) * 24 + hours) * 60 + mins + (seconds > 0)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
