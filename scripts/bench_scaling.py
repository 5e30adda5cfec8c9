"""Measure how the cost of one cell grows: CPU and wall seconds and peak memory along one setting at a time.

The settings are d_model, n_layers, sequence length (3 digits + 3), batch_size and num_probes, each varied round the
paper's cell (d_model 128, 1 layer, 5 digits, batch 64, 20 probes, float64; d_head and d_mlp grow with d_model).
Engines: hutchinson, and exact where `exactness` calls it cheap: of several layers that is the top one, and the
products of the top layer alone are measured next to it. What is left out stands in the JSON with its reason.
Every point is measured in a fresh process with one thread after a warm-up cell; all points take turns in every round.

    python scripts/bench_scaling.py [--axes d_model batch_size] [--rounds 3] [--output outputs/benchmarks/scaling.json]

writes the JSON and, next to it, the figure. seconds = c x^p is fitted by least squares in logs to the upper half of
each axis, its middle included (the medians over the rounds); the error of p is that of the regression.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import benchmarking
from power_law import fits
from scaling_points import AXES, PAPER, TOY, TOY_AXES, Job, Point, Setting, config_of, plan

from hessfig.measurements.quantity import columns
from hessfig.record import FROBENIUS
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant

SIGMA, SEED = 0.5, 1234
OUTPUT = Path("outputs/benchmarks/scaling.json")


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the fits, draw the figure."""
    options = benchmarking.parse(__doc__, _add_options, {"rounds": 1}, words)
    base, axes = (TOY, TOY_AXES) if options.quick else (PAPER, AXES)
    points, skipped = plan(base, {axis: axes[axis] for axis in options.axes})
    benchmarking.prepare(options.allocator)
    report = benchmarking.heading(options) | {"settings": _settings(base, options.rounds)}
    costs = measure_rounds(list(dict.fromkeys(point.job for point in points)), options.rounds)
    rows = [_row(point, costs[point.job]) for point in points]
    report |= {"points": rows, "fits": fits(rows), "skipped": skipped}
    benchmarking.write_report(options.output or OUTPUT, report)
    _print(report)
    _draw(report, options.output or OUTPUT)


def measure_rounds(jobs: list[Job], rounds: int) -> dict[Job, list[dict[str, float]]]:
    """Return the cost of every job, once a round, all jobs in turn."""
    costs: dict[Job, list[dict[str, float]]] = {job: [] for job in jobs}
    for number in range(1, rounds + 1):
        for job in jobs:
            costs[job].append(benchmarking.in_fresh_process(measure_job, job))
            print(f"round {number}/{rounds}: {job}, {costs[job][-1]['cpu_seconds']:.3g} s", file=sys.stderr)
    return costs


def measure_job(job: Job) -> dict[str, float]:
    """Measure the job after a warm-up; return its times and this process's memory."""
    return benchmarking.after_warm_up(lambda: find_norms(job))[1]


def find_norms(job: Job) -> None:
    """Draw the cell and find the norms of the job's layers, as `hessfig run` does."""
    from hessfig.measurements.block_norms import Estimator
    from hessfig.rng import probe_stream
    from hessfig.sweep.measure import draw_problem

    cell = Cell(Variant("", config_of(job)), SIGMA, SEED)
    estimator = Estimator(draw_problem(cell), cell.config.model, cell.config.estimator)
    for layer, col, members in columns(cell.variant.blocks):
        if layer in job.layers:
            generator = probe_stream(SEED, FROBENIUS, SIGMA, layer, col)
            estimator.column_norms(layer, col, members, cell.config.parts, generator=generator)


def _row(point: Point, costs: list[dict[str, float]]) -> dict[str, Any]:
    middle = {name: median(cost[name] for cost in costs) for name in costs[0]}
    rounds = {f"all_{name}": [cost[name] for cost in costs] for name in ("seconds", "cpu_seconds")}
    where = {"axis": point.axis, "x": point.x, "engine": point.engine, "layers": point.job.layers}
    return where | {"setting": asdict(point.job.setting)} | middle | rounds


def _settings(base: Setting, rounds: int) -> dict[str, Any]:
    fixed = {"norm": "none", "dtype": "float64", "sigma": SIGMA, "seed": SEED, "blocks": ["W_V", "W_Q"]}
    return asdict(base) | fixed | {"rounds": rounds}


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("axis", "engine", "clock", "from", "to", "exponent", "standard error")
    table.title = benchmarking.TOY_WORDS if report["quick"] else None
    for fit in report["fits"]:
        numbers = (f"{fit[name]:.3g}" for name in ("low", "high", "exponent", "standard_error"))
        table.add_row(fit["axis"], fit["engine"], fit["clock"], *numbers)
    Console(width=110).print(table)


def _draw(report: dict[str, Any], output: Path) -> None:
    from bench_figures import draw_scaling

    draw_scaling(report, output)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--axes", nargs="+", choices=list(AXES), default=list(AXES), help="which to vary (all)")


if __name__ == "__main__":
    main()
