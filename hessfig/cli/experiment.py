"""What `hessfig run` and `hessfig status` do: measure a sweep, or say how much of it is there."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.cli.cluster import run_shard, run_slurm
from hessfig.config import Launcher
from hessfig.config.compose import Job, differences, manifest_of
from hessfig.config.compose.made import Difference
from hessfig.errors import UserError, plain
from hessfig.files import is_file
from hessfig.record import TABLE

if TYPE_CHECKING:
    from hessfig.sweep.engine import Summary

_SHOWN = 5


def run(job: Job) -> int:
    """Measure what is not finished and write the table; return 1 when a cell failed or is missing."""
    from hessfig.config.machine import check_device, check_workers
    from hessfig.sweep import engine

    config = job.variants[0][1]
    if config.launcher.kind == Launcher.slurm:
        collected = run_slurm(job)
        return 0 if collected is None else report(collected)
    check_device(config.device)
    check_workers(config)
    if config.dry_run:
        return status(job)
    if config.shard is not None:
        return run_shard(job)
    return report(engine.run_sweep(job.variants))


def report(summary: Summary) -> int:
    """Say what a run did; return 1 when a cell failed or is missing."""
    from hessfig.cli.out_of_range import out_of_range
    from hessfig.sweep import preview

    print(preview.summarise(summary), flush=True)
    found = out_of_range(summary.table) if is_file(summary.table) else []
    for line in [*(f"note: {note}" for note in summary.notes), *found]:
        print(line)
    return 0 if summary.is_complete else 1


def status(job: Job) -> int:
    """Say what is measured, what is to do, and what table is there."""
    from hessfig.sweep import preview
    from hessfig.sweep.launchers.slurm import said_of

    print(preview.describe(job.variants))
    for line in said_of(_table(job).parent):
        print(line)
    print(f"table: {table_there(job)}")
    return 0


def table_there(job: Job) -> str:
    """Return which table the sweep's folder holds: where, rows, when, and the settings in which it is another one."""
    path = _table(job)
    if not is_file(path):
        return f"none yet ({path})"
    what = f"{path}, {_rows(path)} rows"
    try:
        manifest = manifest_of(path.parent)
    except UserError as error:
        return f"{what}, with a manifest that cannot be read ({plain(error.got)})"
    if manifest is None:
        return f"{what}, without a manifest: its settings are not known"
    other = differences(manifest["config"], job)
    made = plain(_shortly(other), most=1000) if other else "these settings"
    return f"{what}, of {plain(manifest.get('end'))}, made with {made}"


def _table(job: Job) -> Path:
    return Path(job.config.output_dir) / job.config.sweep.name / TABLE


def _rows(path: Path) -> int:
    with path.open(newline="", encoding="utf-8", errors="replace") as handle:
        return sum(1 for _ in csv.reader(handle)) - 1


def _shortly(other: Sequence[Difference]) -> str:
    more = f", and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
    return ", ".join(map(str, other[:_SHOWN])) + more
