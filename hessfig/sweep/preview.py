"""What a run would do, has done, and did: counts of cells, an estimate of time, a closing line."""

from __future__ import annotations

from collections.abc import Sequence

from hessfig.config import Config
from hessfig.errors import plain
from hessfig.files import check_place, is_file
from hessfig.measurements.allocation import Allocation
from hessfig.models.registry import kind
from hessfig.record import FROBENIUS
from hessfig.sweep.engine import Summary, sweep_folder, unfinished, worker_count
from hessfig.sweep.launchers.failures import FAILURES, Failures
from hessfig.sweep.limits import assumed_flops
from hessfig.sweep.plan import Cell, Setup, Variants, plan, setups_of
from hessfig.sweep.shards import Share
from hessfig.sweep.stages import allocations, needs, pilot_cells, settled_by
from hessfig.sweep.store import CellStore
from hessfig.terms import Block

_CAUSES, _LONGEST_CAUSE = 5, 600  # that are shown, in characters
WORKER_START = 8.0  # seconds: the imports of a first worker


def describe(variants: Variants, *, title: str = "") -> str:
    """Return the lines of `dry_run=true` and `status`: what is measured, counts done and to do, time to go.

    `title` is the first of them: the settings know what a run changes of its preset.
    """
    setups = setups_of(variants)
    config = setups[0].config
    check_place(sweep_folder(config))
    store = CellStore(sweep_folder(config) / "cells")
    chosen, pilot = allocations(setups, store), pilot_cells(setups)
    cells, pilot_todo = plan(setups, settled_by(setups, chosen)), unfinished(pilot, store)
    todo = unfinished(cells, store)
    lines = [
        title or f"sweep {config.sweep.name}: {plain(config.sweep.about)}",
        *(_variant_line(setup, probes) for setup, probes in zip(setups, chosen, strict=True)),
    ]
    if pilot:
        lines.append(_pilot_line(pilot, pilot_todo))
    lines += _training_lines(todo)
    counts = f"{len(cells) - len(todo)} done, {len(todo)} to do"
    kinds = "seeds x sigmas x variants" + " x quantities" * (len(config.quantities) > 1)
    lines.append(f"cells: {len(cells)} ({kinds}): {counts}")
    lines += _failure_lines(Failures(sweep_folder(config) / FAILURES), [*pilot_todo, *todo])
    lines.append(_time_line([*pilot, *cells], [*pilot_todo, *todo], store))
    return "\n".join(lines)


def summarise(summary: Summary) -> str:
    """Return the closing line of a run."""
    memory = f", at most {summary.peak / 2**30:.2f} GiB a worker" if summary.peak else ""
    lacks = f", {summary.missing} cells are missing in it" if summary.missing else ""
    where = f"table: {summary.table}{lacks}" if is_file(summary.table) else "no table: no cell is finished"
    return f"{did(summary)}{memory}; {where}"


def did(done: Summary | Share) -> str:
    """Return how many cells were measured, reused and failed, and how long it took."""
    counts = f"{done.measured} cells measured, {done.reused} reused, {done.failed} failed"
    return f"{counts} in {_duration(done.seconds)}"


def _pilot_line(pilot: list[Cell], todo: list[Cell]) -> str:
    still = "until they are done the number of probes above may change" if todo else "the probes above follow from them"
    return f"pilot: {len(pilot)} cells of other seeds, {len(pilot) - len(todo)} done; {still}"


def _variant_line(setup: Setup, allocation: Allocation) -> str:
    config = setup.config
    estimator = (
        f"{config.estimator.method}, {_probes(config, allocation)} probes"
        if config.estimator.method.facts.fewest
        else config.estimator.method
    )
    label = f"{setup.name}, " if setup.name else ""
    others = [name for name in config.quantities if name != FROBENIUS]
    quantities = f"; {', '.join(config.quantities)}" if others else ""
    span = _span(setup)
    return (
        f"  {label}n_layers={setup.layout.num_layers}: {span}{_blocks(setup)}{quantities}; "
        f"{estimator}, {config.dtype}" + f"; {_data(setup)}" * bool(_data(setup))
    )


def _data(setup: Setup) -> str:
    """Return how the kind of network holds its data, if it says so."""
    return kind(setup.config.model.kind).about(setup.config)


def _span(setup: Setup) -> str:
    sigmas = [sigma for sigma in setup.sigmas() if sigma is not None]
    steps = [step for step in setup.steps() if step is not None]
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
    steps = f"{longest} step{'s' * (longest != 1)}"
    return [f"trainings: {len(wanted)}, of {steps} or fewer, before the cells"] if wanted else []


def _failure_lines(failures: Failures, todo: list[Cell]) -> list[str]:
    """Say why cells failed when they were last tried: every kind of cause once, with a cell that failed so."""
    found = failures.reasons(todo)
    if not found:
        return []
    count = sum(len(cells) for _, cells in found)
    lines = [f"failed when last tried: {count} of these cells; `hessfig run` with the same settings tries them again"]
    for cause, cells in found[:_CAUSES]:
        first, *rest = cause[:_LONGEST_CAUSE].splitlines() or [""]
        lines += [f"  {len(cells)} cells, such as {cells[0]}: {first}", *(f"    {line}" for line in rest)]
    more = len(found) - _CAUSES
    return [*lines, *([f"  and {more} more causes"] if more > 0 else []), f"  the causes of each: {failures.folder}"]


def _blocks(setup: Setup) -> str:
    """Return the names of the blocks: of every layer, or each with its layers where some are left out."""
    layers: dict[str, set[int]] = {}
    for block in setup.blocks:
        layers.setdefault(_name(block), set()).update([] if block.is_across else [block.layer])
    inside = [found for found in layers.values() if found - {0}]
    everywhere = all(found >= set(range(1, setup.layout.num_layers + 1)) for found in inside)
    names = [
        name if everywhere or not found - {0} else f"{name}@{','.join(map(str, sorted(found)))}"
        for name, found in layers.items()
    ]
    words = ", ".join(names) if len(names) <= 6 else f"{len(names)} pairs"
    return words + " of every layer" * (bool(inside) and everywhere)


def _name(block: Block) -> str:
    if block.is_across:
        return f"({block.row}@{block.row_layer},{block.col}@{block.layer})"
    return block.row if block.row == block.col else f"({block.row},{block.col})"


def _time_line(cells: list[Cell], todo: list[Cell], store: CellStore) -> str:
    if not todo:
        return "nothing to do"
    todo_keys = {cell.key for cell in todo}
    seconds = [rows[0]["seconds"] for cell in cells if cell.key not in todo_keys and (rows := store.read(cell.key))]
    workers = worker_count(todo[0].config, len(todo))
    if seconds:
        total, basis = sum(seconds) / len(seconds) * len(todo), "from the cells done"
    else:
        operations = _operations(todo)
        if not operations:
            return f"time: not known for this network before a cell is done, with {_workers(workers)}"
        rate = assumed_flops(todo[0].config)
        total, basis = operations / rate, f"a guess: {rate / 1e9:g} GFLOP/s a core"
    beside = ", the trainings not counted" if needs(todo) else ""
    time = _duration(WORKER_START + total / workers)
    return f"time: about {time} with {_workers(workers)} ({basis}{beside})"


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def _operations(cells: list[Cell]) -> float:
    """Return what the cells take, in operations: counted once for all of a variant and quantity, for they are alike."""
    alike = {(id(cell.setup), cell.quantity): cell for cell in cells}
    each = {
        key: cell.setup.quantity(cell.quantity).operations(cell.config, cell.setup.layout)
        for key, cell in alike.items()
    }
    return sum(each[id(cell.setup), cell.quantity] for cell in cells)


def _probes(config: Config, allocation: Allocation) -> str:
    """Return the number of probes, or those of each column that was allotted some, from the most to the fewest."""
    counts = {col: sorted(set(at.values()), reverse=True) for col, at in allocation.probes.items()}
    spans = [f"{col} {count[0]}" + f" to {count[-1]}" * (len(count) > 1) for col, count in counts.items()]
    return ", ".join(spans) or str(config.estimator.num_probes)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
