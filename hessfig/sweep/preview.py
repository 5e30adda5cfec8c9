"""What a run would do, has done, and did: counts of cells, an estimate of time, a closing line."""

from __future__ import annotations

from hessfig.config import Config, Method, sigma_values
from hessfig.config.blocks import weight_pairs, weight_size
from hessfig.curvature.exact.support import cost, probe_cost
from hessfig.measurements.frobenius.allocation import Variants, allocations, is_exact, pilot_cells
from hessfig.sweep.engine import Summary, sweep_folder, unfinished, worker_count
from hessfig.sweep.plan import Allocation, Cell, columns, plan
from hessfig.sweep.store import CellStore
from hessfig.terms import Block, Matrix

ASSUMED_FLOPS = 2.5e10


def describe(variants: Variants) -> str:
    """Return the lines of `dry_run=true` and `status`: what is measured, counts done and to do, time to go."""
    config = variants[0][1]
    store = CellStore(sweep_folder(config) / "cells")
    chosen, pilot = allocations(variants, store), pilot_cells(variants)
    cells, pilot_todo = plan(variants, chosen), unfinished(pilot, store)
    todo = unfinished(cells, store)
    lines = [
        f"sweep {config.sweep.name}: {config.sweep.about}",
        *(_variant_line(*variant, probes) for variant, probes in zip(variants, chosen, strict=True)),
    ]
    if pilot:
        lines.append(_pilot_line(pilot, pilot_todo))
    counts = f"{len(cells) - len(todo)} done, {len(todo)} to do"
    lines.append(f"cells: {len(cells)} (seeds x sigmas x variants): {counts}")
    lines.append(_time_line([*pilot, *cells], [*pilot_todo, *todo], store))
    return "\n".join(lines)


def summarise(summary: Summary) -> str:
    """Return the closing line of a run."""
    counts = f"{summary.measured} cells measured, {summary.reused} reused, {summary.failed} failed"
    memory = f", at most {summary.peak / 2**30:.2f} GiB a worker" if summary.peak else ""
    return f"{counts} in {_duration(summary.seconds)}{memory}; table: {summary.table}"


def _pilot_line(pilot: list[Cell], todo: list[Cell]) -> str:
    still = (
        "until they are done the number of probes above may change"
        if todo
        else "the probes above follow from them"
    )
    return f"pilot: {len(pilot)} cells of other seeds, {len(pilot) - len(todo)} done; {still}"


def _variant_line(name: str, config: Config, allocation: Allocation) -> str:
    sigmas, pairs = sigma_values(config.grid), weight_pairs(config.blocks, config.model)
    blocks = (
        ", ".join(row if row == col else f"({row},{col})" for row, col in pairs)
        if len(pairs) <= 6
        else f"{len(pairs)} pairs"
    )
    estimator = (
        f"{config.estimator.method}, {_probes(config, allocation)} probes"
        if _has_probes(config)
        else config.estimator.method
    )
    label = f"{name}, " if name else ""
    span = f"{len(sigmas)} sigmas {sigmas[0]:g}..{sigmas[-1]:g}"
    return f"  {label}n_layers={config.model.n_layers}: {span}; {blocks} of every layer; {estimator}, {config.dtype}"


def _time_line(cells: list[Cell], todo: list[Cell], store: CellStore) -> str:
    if not todo:
        return "nothing to do"
    todo_keys = {cell.key for cell in todo}
    done = [
        rows[0]["seconds"] for cell in cells if cell.key not in todo_keys and (rows := store.read(cell.key))
    ]
    workers = worker_count(todo[0].config, len(todo))
    if done:
        total, basis = sum(done) / len(done) * len(todo), "from the cells done"
    else:
        total, basis = (
            sum(map(_operations, todo)) / ASSUMED_FLOPS,
            f"a guess: {ASSUMED_FLOPS / 1e9:g} GFLOP/s a core",
        )
    return f"time: about {_duration(total / workers)} with {workers} workers ({basis})"


def _operations(cell: Cell) -> float:
    """Return a rough count of operations: exact blocks by their route, others by their products."""
    return sum(_column_operations(cell.config, layer, col, rows) for layer, col, rows in columns(cell.config))


def _column_operations(config: Config, layer: int, col: Matrix, rows: list[Matrix]) -> float:
    by_block = {
        (row, part): cost(config.model, config.task, Block(layer, row, col), part)
        for row in rows
        for part in config.parts
        if is_exact(config, Block(layer, row, col), part)
    }
    exact = sum(
        max(value for (r, _), value in by_block.items() if r == row) for row in {r for r, _ in by_block}
    )
    is_probed = len(by_block) < len(rows) * len(config.parts)
    return exact + (_product_operations(config, layer, col) if is_probed else 0.0)


def _product_operations(config: Config, layer: int, col: Matrix) -> float:
    model, task, estimator = config.model, config.task, config.estimator
    count = weight_size(col, model, task) if estimator.method == Method.dense else estimator.num_probes
    return count * probe_cost(model, task, Block(layer, col, col))


def _probes(config: Config, allocation: Allocation) -> str:
    """Return the number of probes, or those of each column that was allotted some, from the most to the fewest."""
    counts = {col: sorted(set(at.values()), reverse=True) for col, at in allocation.probes.items()}
    spans = [f"{col} {count[0]}" + f" to {count[-1]}" * (len(count) > 1) for col, count in counts.items()]
    return ", ".join(spans) or str(config.estimator.num_probes)


def _has_probes(config: Config) -> bool:
    return config.estimator.method not in (Method.dense, Method.exact)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
