"""Summaries before, during and after a run: counts of cells, an estimate of time, the table, and a closing line."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from hessfig.config.schema import Config
from hessfig.errors import UserError, plain
from hessfig.files import check_place, is_file
from hessfig.measurements.allocation import Allocation
from hessfig.models.protocol import kind
from hessfig.record import FROBENIUS, TABLE
from hessfig.sweep.limits import expected_memory
from hessfig.sweep.outputs import config_hash
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.progress import kind_of
from hessfig.sweep.runner import Summary, worker_count
from hessfig.sweep.store import CellStore, Failures
from hessfig.sweep.trainings import needs
from hessfig.sweep.variant import Variant
from hessfig.terms import Block

if TYPE_CHECKING:
    from hessfig.config.compose.job import Job

_CAUSES, _LONGEST_CAUSE = 5, 600  # characters that are shown
_SHOWN = 5  # settings of another table
_OTHER_CONTENT = (
    "these settings, but other files or code, or another version of hessfig"
)
WORKER_START = 8.0  # seconds: the imports of a first worker


def describe_plan(sweep: Sweep, *, title: str = "", unread: bool = True) -> str:
    """Return the lines of `dry_run=true` and `status`: what is measured, counts done and to do, time to go.

    `title` is the first of them: the settings know what a run changes of its preset.
    """
    check_place(sweep.folder)
    config = sweep.config
    pilots = sweep.pilots
    cells = sweep.cells
    pilots_todo = sweep.unfinished(pilots)
    todo = sweep.unfinished(cells)
    lines = [
        title or f"sweep {sweep.name}: {plain(config.sweep.about)}",
        *map(_variant_line, sweep.variants, sweep.allocations),
    ]
    if pilots:
        lines.append(_pilot_line(pilots, pilots_todo))
    lines += [note for note in sweep.notes if unread or note not in sweep.unread]
    lines += _training_lines(todo)
    counts = f"{len(cells) - len(todo)} done, {len(todo)} to do"
    kinds = "seeds x sigmas x variants" + " x quantities" * (len(config.quantities) > 1)
    lines.append(f"cells: {len(cells)} ({kinds}): {counts}")
    lines += _failure_lines(sweep.failures, [*pilots_todo, *todo])
    lines.append(_time_line([*pilots, *cells], [*pilots_todo, *todo], sweep.store))
    if todo:
        lines += _memory_lines(sweep.variants)
    return "\n".join(lines)


def status_lines(job: Job, sweep: Sweep) -> list[str]:
    """Return the lines of `hessfig status` and dry_run=true: the plan and the table."""
    from hessfig.config.compose.provenance import title  # takes Hydra

    plan = describe_plan(sweep, title=title(job))
    products = _product_lines(sweep.variants) if sweep.unfinished(sweep.cells) else []
    return [plan, *products, f"table: {_table_there(job, sweep)}"]


def progress_facts(sweep: Sweep) -> dict[str, Any]:
    """Return how far a sweep is, in numbers: its cells (with those of pilots), what remains, and its table if any."""
    check_place(sweep.folder)
    cells = [*sweep.pilots, *sweep.cells]
    todo = sweep.unfinished(cells)
    table = sweep.folder / TABLE
    failed = sum(len(some) for _, some in reasons(sweep.failures, todo))
    return {
        "sweep": sweep.name,
        "folder": str(sweep.folder),
        "cells": len(cells),
        "done": len(cells) - len(todo),
        "to_do": len(todo),
        "failed": failed,
        "table": str(table) if is_file(table) else None,
    }


def _table_there(job: Job, sweep: Sweep) -> str:
    """Return which table the sweep's folder holds: where, rows, when, and the settings in which it is another one."""
    from hessfig.config.compose.provenance import manifest_of, setting_differences

    path = sweep.folder / TABLE
    if not is_file(path):
        return f"none yet ({path})"
    what = f"{path}, {_rows(path)}"
    try:
        manifest = manifest_of(path.parent)
    except UserError as error:
        return f"{what}, with a manifest that cannot be read ({plain(error.got)})"
    if manifest is None:
        return f"{what}, without a manifest: its settings are not known"
    is_same = manifest.get("config_hash") == config_hash(sweep.variants)
    settings = "these settings" if is_same else _OTHER_CONTENT
    if other := setting_differences(manifest["config"], job):
        more = f", and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
        settings = plain(", ".join(map(str, other[:_SHOWN])) + more, most=1000)
    return f"{what}, of {plain(manifest.get('end'))}, made with {settings}"


def _rows(path: Path) -> str:
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as handle:
            return f"{sum(1 for _ in csv.reader(handle)) - 1} rows"
    except (OSError, csv.Error) as error:
        return f"which cannot be read ({error})"


def summarise(summary: Summary) -> str:
    """Return the closing line of a run, or of a share."""
    counts = f"{summary.measured} cells measured, {summary.reused} reused, {summary.failed} failed"
    done = f"{counts} in {_duration(summary.seconds)}"
    if summary.share:
        return f"shard {summary.share}: {done}; cells: {summary.table.parent / 'cells'}"
    if summary.peak:
        done += f", at most {summary.peak / 2**30:.2f} GiB per worker"
    if not is_file(summary.table):
        return f"{done}; no table: no cell is finished"
    lacks = f", {summary.missing} cells are missing in it" * bool(summary.missing)
    return f"{done}; table: {summary.table}{lacks}"


def _pilot_line(pilot: list[Cell], todo: list[Cell]) -> str:
    still = "the probes above follow from them"
    if todo:
        still = "until they are done the number of probes above may change"
    return f"pilot: {len(pilot)} cells of other seeds, {len(pilot) - len(todo)} done; {still}"


def _variant_line(variant: Variant, allocation: Allocation) -> str:
    config = variant.config
    label = f"{variant.name}, " if variant.name else ""
    words = f"  {label}n_layers={variant.layout.num_layers}: {_span(variant)}{_blocks(variant)}"
    if set(config.quantities) - {FROBENIUS}:
        words += f"; {', '.join(config.quantities)}"
    words += f"; {config.estimator.method}"
    if config.estimator.method.facts.fewest:
        words += f", {_probes(config, allocation)} probes"
    data = kind(config.model.kind).about(config)
    return f"{words}, {config.dtype}" + f"; {data}" * bool(data)


def _span(variant: Variant) -> str:
    sigmas = [sigma for sigma in variant.sigmas() if sigma is not None]
    steps = [step for step in variant.steps() if step is not None]
    return (_values("sigma", sigmas) or "one state; ") + _values("step", steps)


def _values(name: str, values: Sequence[float]) -> str:
    """Return 'sigma 0.1; ' for one value, '3 sigmas 0.1..1; ' for several, nothing for none."""
    if len(values) < 2:
        return f"{name} {values[0]:.12g}; " if values else ""
    return f"{len(values)} {name}s {values[0]:.12g}..{values[-1]:.12g}; "


def _training_lines(todo: list[Cell]) -> list[str]:
    """Say which trainings the cells need; those whose states are kept already take no time."""
    wanted = needs(todo)
    longest = max((need.steps[-1] for need in wanted), default=0)
    if wanted:
        return [
            f"trainings: {len(wanted)}, of {_counted(longest, 'step')} or fewer, before the cells"
        ]
    return []


def _failure_lines(failures: Failures, todo: list[Cell]) -> list[str]:
    """Return lines about the last failures: every kind of cause once, with one of the failed cells."""
    kinds = reasons(failures, todo)
    if not kinds:
        return []
    count = sum(len(cells) for _, cells in kinds)
    lines = [
        f"failed when last tried: {count} of these cells; `hessfig run` with the same settings tries them again"
    ]
    for cause, cells in kinds[:_CAUSES]:
        first, *rest = cause[:_LONGEST_CAUSE].splitlines() or [""]
        lines.append(f"  {len(cells)} cells, such as {cells[0]}: {first}")
        lines += [f"    {line}" for line in rest]
    more = len(kinds) - _CAUSES
    if more > 0:
        lines.append(f"  and {more} more causes")
    lines.append(f"  the causes of each: {failures.folder}")
    return lines


def reasons(failures: Failures, cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Return every kind of cause among `cells`, most frequent first: an example, and the failed cells."""
    causes = failures.causes(cell.key for cell in cells)
    kinds = dict[str, tuple[str, list[Cell]]]()
    for cell in cells:
        if cell.key in causes:
            cause = causes[cell.key]
            kinds.setdefault(kind_of(cause), (cause, []))[1].append(cell)
    return sorted(kinds.values(), key=lambda kind: -len(kind[1]))


def _blocks(variant: Variant) -> str:
    """Return the names of the blocks: of every layer, or each with its layers where some are left out."""
    layers: dict[str, set[int]] = {}
    for block in variant.blocks:
        numbers = layers.setdefault(_name(block), set())
        if not block.is_across:
            numbers.add(block.layer)
    inside = [numbers for numbers in layers.values() if numbers - {0}]
    everywhere = all(
        numbers >= set(range(1, variant.layout.num_layers + 1)) for numbers in inside
    )
    names = []
    for name, numbers in layers.items():
        if not everywhere and numbers - {0}:
            name += f"@{','.join(map(str, sorted(numbers)))}"
        names.append(name)
    words = ", ".join(names) if len(names) <= 6 else f"{len(names)} pairs"
    return words + " of every layer" * (bool(inside) and everywhere)


def _name(block: Block) -> str:
    if block.is_across:
        return f"({block.row}@{block.row_layer},{block.col}@{block.layer})"
    return block.row if block.row == block.col else f"({block.row},{block.col})"


def _time_line(cells: list[Cell], todo: list[Cell], store: CellStore) -> str:
    """Say how long the cells to do will take: each as long as the done cells of its variant and quantity took.

    Before a cell is done nothing is said: seconds depend on the machine and on what
    else it does.
    """
    if not todo:
        return "nothing to do"
    count = worker_count(todo[0].config, len(todo))
    workers = _counted(count, "worker") if count else "no worker"
    taken = _seconds_taken(cells, todo, store)
    known = [taken[_alike(cell)] for cell in todo if _alike(cell) in taken]
    if not known:
        return f"time: not known before a cell is done, with {workers}"
    left_out = len(todo) - len(known)
    basis = (
        "from the cells done"
        + f", without {_counted(left_out, 'cell')} of other kinds" * bool(left_out)
    )
    basis += ", the trainings not counted" * bool(needs(todo))
    start = WORKER_START if count else 0.0
    time = _duration(start + sum(known) / max(count, 1))
    return f"time: about {time} with {workers} ({basis})"


def _seconds_taken(
    cells: list[Cell], todo: list[Cell], store: CellStore
) -> dict[tuple[Variant, str], float]:
    """Return the mean seconds of the cells that are done, by variant and quantity."""
    todo_keys = {cell.key for cell in todo}
    taken: dict[tuple[Variant, str], list[float]] = {}
    for cell in cells:
        rows = None if cell.key in todo_keys else store.read(cell.key)
        if rows:
            taken.setdefault(_alike(cell), []).append(rows[0]["seconds"])
    return {alike: mean(seconds) for alike, seconds in taken.items()}


def _alike(cell: Cell) -> tuple[Variant, str]:
    return cell.variant, cell.quantity


def _memory_lines(variants: Sequence[Variant]) -> list[str]:
    """Return the memory of a worker for the smallest and the largest network, if the settings determine it."""
    known = []
    for variant in variants:
        size = expected_memory(variant)
        if size is not None:
            known.append((size, _network(variant)))
    known.sort()
    if not known:
        return [
            "memory: not known for this network before it is run, whose last line tells it"
        ]
    # One, where they are equal.
    ends = {}
    for size, network in (known[-1], known[0]):
        ends[f"{size / 2**30:.1f} GiB"] = f" ({network})"
    where = " to ".join(map("".join, reversed(ends.items())))
    return [f"memory: about {where} per worker (a guess)"]


def _product_lines(variants: Sequence[Variant]) -> list[str]:
    """Return the memory of a product of the smallest and the largest network, if their kind estimates it."""
    sizes = (
        kind(variant.config.model.kind).product_bytes(variant.config)
        for variant in variants
    )
    known = sorted(size for size in sizes if size is not None)
    if not known:
        return []
    ends = dict.fromkeys(f"{size / 1e9:.2g} GB" for size in (known[0], known[-1]))
    return [f"memory of a product: about {' to '.join(ends)}"]


def _network(variant: Variant) -> str:
    model, task = variant.config.model, variant.config.task
    return f"width {model.d_model}, {_counted(variant.layout.num_layers, 'layer')}, batch {task.batch_size}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _probes(config: Config, allocation: Allocation) -> str:
    """Return the number of probes, or those of each column that was allotted some, from the most to the fewest."""
    spans = []
    for col, at in allocation.probes.items():
        most = max(at.values())
        fewest = min(at.values())
        spans.append(f"{col} {most}" + f" to {fewest}" * (fewest < most))
    return ", ".join(spans) or str(config.estimator.num_probes)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
