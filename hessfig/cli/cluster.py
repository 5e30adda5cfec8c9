"""What `hessfig run` does with shard=K/N and launcher=slurm: a share here, or a job array that measures all shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.cli.terminal import say
from hessfig.config.compose.job import Job
from hessfig.config.compose.overrides import quoted
from hessfig.config.facts import Role
from hessfig.config.machine import check_device_name
from hessfig.config.settings import role_of
from hessfig.errors import command_line

if TYPE_CHECKING:
    from hessfig.sweep.plan import Sweep
    from hessfig.sweep.runner import Summary
    from hessfig.sweep.slurm import SlurmJob


def run_shard(job: Job, sweep: Sweep) -> int:
    """Measure one share of the cells and say how to collect; return 1 when a cell of it failed."""
    from hessfig.sweep import preview, shards

    shard = shards.Shard.parse(job.config.shard or "")
    done = shards.run_shard(sweep, shard)
    say(f"shard {shard}: {preview.did(done)}; cells: {sweep.store.folder}")
    if done.missing:
        print(f"note: {done.missing} pilot cells are not there, so no other was measured: run it again")
    say(f"collect, with all shards in one folder: {_command(job)}")
    return 0 if done.is_complete else 1


def run_ranks(job: Job, command: str) -> Summary | None:
    """Measure a sweep by all processes of torchrun; return what the first of them, which plans and stores, did."""
    import time

    from hessfig.sweep import together
    from hessfig.sweep.plan import Sweep

    together.check_ranks(job.config)
    start = time.perf_counter()
    with together.joined(job.config) as is_first:
        sweep = Sweep(job.variants)
        planned = together.planned_shares(sweep)
        if is_first:
            say(*planned)
        if job.config.dry_run:
            return None
        summary = together.lead(sweep, command) if is_first else None
        if summary is None:
            together.serve()
        done = together.shares(time.perf_counter() - start)
    if summary is not None:
        say(*map(str, done))
    return summary


def run_slurm(job: Job, command: str) -> Summary | None:
    """Submit what is not finished, or go on with the job that is at it; wait and collect, unless told not to wait.

    `command` goes into the manifest. Returns what was collected; None when the job is left alone or only shown.
    """
    from hessfig.sweep.plan import Sweep
    from hessfig.sweep.runner import run_sweep
    from hessfig.sweep.slurm import SlurmJob

    check_device_name(job.config.device)
    sweep = Sweep(job.variants)
    slurm = SlurmJob(sweep, [*job.flags, *_words(job)])
    if job.config.dry_run:
        shards = slurm.shards()
        print(slurm.script(shards) if shards else "nothing to do\n", end="")
        return None
    wait = job.config.launcher.wait
    if not wait and (slurm.is_alive() or (slurm.number is None and slurm.shards())):
        _leave(job, slurm)
        return None
    summary = run_sweep(sweep, slurm.run if wait else slurm.watched, command)
    slurm.forget()
    return summary


def _leave(job: Job, slurm: SlurmJob) -> None:
    """Submit unless a job is at it, and say what to type."""
    if slurm.number is None:
        slurm.submit()
    else:
        print(f"slurm job {slurm.number} is still at it")
    words = [word for word in job.words if not word.startswith("launcher")]
    say(f"how far:  {command_line('status', *job.flags, *words)}")
    say(f"collect:  {command_line('run', *job.flags, *job.words)}")


def _command(job: Job) -> str:
    words = [word for word in job.words if _key(word) != "shard" and role_of(_key(word)) != Role.machine]
    return command_line("run", *job.flags, *words)


def _words(job: Job) -> list[str]:
    """Return the settings of a share: those that were given, and the folder that -m may have moved."""
    kept = [word for word in job.words if role_of(_key(word)) not in (Role.machine, Role.command)]
    return [*kept, f"output_dir={quoted(job.config.output_dir)}"]


def _key(word: str) -> str:
    return word.partition("=")[0]
