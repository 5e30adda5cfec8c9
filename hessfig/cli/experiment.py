"""What `hessfig run` and `hessfig status` do: measure a sweep, or say how much of it is there."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from hessfig.config.compose import Request, differences, manifest_of
from hessfig.config.compose.made import Difference
from hessfig.errors import UserError
from hessfig.record import TABLE

_SHOWN = 5


def run(request: Request) -> int:
    """Measure what is not finished and write the table; return 1 when a cell failed."""
    from hessfig.cli.out_of_range import out_of_range
    from hessfig.config.checks import check_device
    from hessfig.sweep import engine, preview

    config = request.variants[0][1]
    check_device(config.device)
    if config.dry_run:
        return status(request)
    _say_what_goes(request)
    summary = engine.run_sweep(request.variants)
    print(preview.summarise(summary))
    for line in out_of_range(summary.table):
        print(line)
    return 1 if summary.failed else 0


def status(request: Request) -> int:
    """Say what is measured, what is to do, and what table is there."""
    from hessfig.sweep import preview

    print(preview.describe(request.variants))
    print(f"table: {table_there(request)}")
    return 0


def table_there(request: Request) -> str:
    """Return which table the sweep's folder holds: where, rows, when, and the settings in which it is another one."""
    path = _table(request)
    if not path.is_file():
        return f"none yet ({path})"
    what = f"{path}, {_rows(path)} rows"
    try:
        manifest = manifest_of(path.parent)
    except UserError as error:
        return f"{what}, with a manifest that cannot be read ({error.got})"
    if manifest is None:
        return f"{what}, without a manifest: its settings are not known"
    other = differences(manifest["config"], request)
    return f"{what}, of {manifest.get('end')}, made with {_shortly(other) if other else 'these settings'}"


def _say_what_goes(request: Request) -> None:
    """Say in a line that the table there is of other settings, and will be replaced."""
    path = _table(request)
    try:
        manifest = manifest_of(path.parent) if path.is_file() else None
    except UserError:  # nothing to go by: the run writes a new one
        return
    other = differences(manifest["config"], request) if manifest else []
    if other:
        print(f"note: {path} will be replaced: it was made with {_shortly(other)}", file=sys.stderr)


def _table(request: Request) -> Path:
    return Path(request.config.output_dir) / request.config.sweep.name / TABLE


def _rows(path: Path) -> int:
    with path.open(newline="", encoding="utf-8", errors="replace") as handle:
        return sum(1 for _ in csv.reader(handle)) - 1


def _shortly(other: Sequence[Difference]) -> str:
    more = f", and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
    return ", ".join(map(str, other[:_SHOWN])) + more
