"""Launchers: the processes that measure a sweep (workers of this machine, a share, a Slurm job)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar

from hessfig.config.compose.job import Job
from hessfig.config.compose.provenance import command_of, title
from hessfig.config.facts import Role
from hessfig.config.machine import check_machine
from hessfig.config.settings import role_of
from hessfig.config.shards import parse_shard
from hessfig.errors import command_line
from hessfig.files import is_file
from hessfig.record import TABLE
from hessfig.sweep import pool
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.preview import describe_plan, status_lines
from hessfig.sweep.runner import (
    Summary,
    begin,
    measure_cells,
    on_this_machine,
    run_sweep,
)

T = TypeVar("T")
Say = Callable[..., None]
# Where each launcher is: imported when it is chosen, so that nothing else depends on
# Slurm.
LAUNCHERS = {
    "local": "hessfig.sweep.launchers:Workers",
    "slurm": "hessfig.sweep.slurm:Slurm",
}


class SweepLauncher(Protocol):
    """Measures the sweep of a job; its settings are checked when it is made, before anything is planned."""

    def __init__(self, job: Job) -> None: ...

    def run(self, sweep: Sweep, say: Say) -> Summary | None:
        """Measure the unfinished cells and return a summary; with dry_run=true, print the plan only.

        `say` prints lines. Returns None if there is nothing to report, or if another
        process reports.
        """


def launcher_of(job: Job) -> SweepLauncher:
    """Return the launcher that the settings choose. Raises UserError for settings that it cannot serve."""
    module, _, name = LAUNCHERS[job.first.launcher.kind].partition(":")
    launcher: SweepLauncher = getattr(import_module(module), name)(job)
    return launcher


class Workers:
    """Worker processes of this machine measure the whole sweep, or one share of its cells."""

    def __init__(self, job: Job) -> None:
        config = job.first
        check_machine(config)
        is_measured = is_file(Path(config.output_dir) / config.sweep.name / TABLE)
        # Else there may be nothing to measure.
        if config.workers and not (config.dry_run or is_measured):
            pool.warm()
        self._job = job

    def run(self, sweep: Sweep, say: Say) -> Summary | None:
        """Measure the sweep, or the share that the setting `shard` names."""
        job = self._job
        command = command_of(job)
        shard = sweep.config.shard
        if sweep.config.dry_run:
            say(*status_lines(job, sweep))
            return None
        if not sys.stderr.isatty():
            say(
                f"start: {command}\n{describe_plan(sweep, title=title(job), unread=False)}"
            )
        if shard is None:
            return run_sweep(sweep, command=command)
        words = words_without(job, Role.machine)
        words = [word for word in words if not word.startswith("shard=")]
        done = run_shard(sweep, Shard(*parse_shard(shard)))
        return replace(done, collect=command_line("run", *job.flags, *words))


def words_without(job: Job, *roles: Role) -> list[str]:
    """Return the words of a job without those of settings with one of these roles."""
    return [word for word in job.words if role_of(word.partition("=")[0]) not in roles]


@dataclass(frozen=True)
class Shard:
    """The `index`-th of `count` shares (from 1). Together they are the whole, and no two have a cell in common."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def cells(self, plan: Iterable[Cell]) -> list[Cell]:
        """Return this share of a plan's cells. The steps of one trained network stay together: it is trained once."""
        return self.of(
            list(plan),
            together=lambda cell: cell.trajectory.key if cell.trajectory else id(cell),
        )

    def of(
        self, items: Sequence[T], *, together: Callable[[T], Hashable] = id
    ) -> list[T]:
        """Return every `count`-th of `items`, in their order; those that are `together` the same are dealt as one.

        Each round of dealing begins one share later than the last, for plans are
        periodic: with two quantities and two shares, one of them would get all cells of
        the costly quantity.
        """
        places = {
            key: place for place, key in enumerate(dict.fromkeys(map(together, items)))
        }
        return [item for item in items if self._takes(places[together(item)])]

    def turned(self, items: Sequence[T]) -> list[T]:
        """Return all `items`, starting at this share's place: shares that measure all of them start apart."""
        start = (self.index - 1) * len(items) // self.count
        return [*items[start:], *items[:start]]

    def _takes(self, place: int) -> bool:
        return (place + place // self.count) % self.count == self.index - 1


def run_shard(sweep: Sweep, shard: Shard) -> Summary:
    """Measure the cells of `shard` that are not finished, and the pilots that every share needs; write no table.

    Pilots are cells: on a shared folder each share begins with others of them,
    elsewhere each measures all; either way all settle the same probes. While one is
    missing it is not known how many probes the cells take, and none of them is
    measured. Raises UserError as `run_sweep` does.
    """
    started = time.perf_counter()
    begin(sweep)
    pilots = shard.turned(sweep.pilots)
    pilot = measure_cells(sweep, f"{sweep.name}: pilot", pilots, on_this_machine)
    sweep = sweep.reread()
    lost = len(sweep.unfinished(pilots))
    cells = [] if lost else shard.cells(sweep.cells)
    main = measure_cells(sweep, f"{sweep.name}: shard {shard}", cells, on_this_machine)
    counts = main.counts
    return Summary(
        measured=counts["measured"],
        reused=counts["reused"],
        failed=counts["failed"],
        seconds=time.perf_counter() - started,
        peak=max(main.peak, pilot.peak),
        table=sweep.folder / TABLE,
        missing=lost,
        notes=[
            f"{lost} pilot cells are not there, so no other was measured: run it again"
        ]
        * bool(lost),
        is_written=False,
        share=str(shard),
    )
