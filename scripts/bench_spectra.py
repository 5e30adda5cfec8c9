"""Largest eigenvalue and density of a whole network's Hessian, by hessfig and by its peers, at equal accuracy.

    python scripts/bench_spectra.py [--n-layers 1 2] [--rounds 3] [--only largest] [--device cuda] [--output FILE.json]

writes the JSON (outputs/benchmarks/spectra.json) and prints a table. Peers come with the extra `bench` (see
docs/performance.md); one that is not installed, or does not run on this torch, is named with the reason. Every
contender runs in a fresh process, all in turn, several rounds. Largest eigenvalue: to a relative residual ||H v -
value v|| / |value| of 1e-3 and 1e-6, which a plain double backward judges afterwards, for everybody. A peer that
stops by another rule is run with rising effort until its residual is small enough: `seconds` are those of that run
alone, as if the effort had been known, and `seconds_with_search` those of all runs up to it. "PyHessian, as its users
run it" is float32, tol=1e-3, maxIter=100, once, whatever its residual. A second table says where hessfig's time goes.
Density: the same steps and probes for everybody; its error is the Wasserstein distance to a longer run with probes of
its own, in units of the spectrum's standard deviation, and `seconds_at_equal_error` scales the time by (error /
hessfig's error)^2, for probes' errors fall like that.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import benchmarking
from spectral_runs import DENSITY, LARGEST, LONG, OURS, long_density, measure_density, measure_largest, where_time_goes

from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant

FIRST_SEED, SIGMA = 1234, 0.5
TARGETS = (1e-3, 1e-6)
TOY = {"d_model": 8, "digits": 1, "batch_size": 4, "rounds": 1, "n_layers": [1], "steps": 10, "num_probes": 2}
SETTINGS = ("n_layers", "d_model", "digits", "batch_size", "steps", "num_probes", "rounds", "device")
Runs = list[dict[str, Any]]


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the tables."""
    options = benchmarking.parse(__doc__, _add_options, TOY, words)
    benchmarking.prepare(options.allocator)
    report = benchmarking.heading(options) | {"settings": {name: getattr(options, name) for name in SETTINGS}}
    report |= {"largest": [], "stages": [], "density": []}
    for layers in options.n_layers:
        cells = [_cell(options, layers, FIRST_SEED + number) for number in range(options.rounds)]
        if options.only != "density":
            report["largest"] += [row for target in TARGETS for row in _largest(cells, layers, target)]
            report["stages"] += [_stages(cells, layers, target) for target in TARGETS]
        if options.only != "largest":
            report["density"] += _density(cells, layers, options.steps, options.num_probes)
    benchmarking.write_report(options.output or Path("outputs/benchmarks/spectra.json"), report)
    _print("largest eigenvalue", report["largest"])
    _print("where the time of hessfig's largest eigenvalue goes, seconds", report["stages"])
    _print("density", report["density"])


def _largest(cells: list[Cell], layers: int, target: float) -> Runs:
    rows: dict[str, Runs] = {name: [] for name in LARGEST}
    for cell in cells:
        for name in LARGEST:
            found = benchmarking.in_fresh_process(measure_largest, name, cell, target)
            rows[name].append(_said(f"largest eigenvalue to {target:g}, {layers} layers, {name}", found))
    return [{"n_layers": layers, "target": target, **_summary(name, runs, rows[OURS])} for name, runs in rows.items()]


def _stages(cells: list[Cell], layers: int, target: float) -> dict[str, Any]:
    """Return medians over rounds of the seconds of every stage of our own run."""
    found = [benchmarking.in_fresh_process(where_time_goes, cell, target) for cell in cells]
    middle = {stage: median(run[stage] for run in found) for stage in found[0]}
    return {"n_layers": layers, "target": target, "name": OURS, **middle}


def _density(cells: list[Cell], layers: int, steps: int, probes: int) -> Runs:
    rows: dict[str, Runs] = {name: [] for name in DENSITY}
    for cell in cells:
        truth = benchmarking.in_fresh_process(long_density, cell, LONG * steps // 2, LONG * probes)
        for name in DENSITY:
            found = benchmarking.in_fresh_process(measure_density, name, cell, steps, probes, truth)
            rows[name].append(_said(f"density, {layers} layers, {name}", found))
    return [{"n_layers": layers, **_summary(name, runs, rows[OURS])} for name, runs in rows.items()]


def _said(what: str, found: dict[str, Any]) -> dict[str, Any]:
    told = found["failed"] if "failed" in found else f"{found['seconds']:.3g} s, error {found['error']:.2g}"
    print(f"{what}: {told}", file=sys.stderr)
    return found


def _summary(name: str, runs: Runs, ours: Runs) -> dict[str, Any]:
    """Return medians over rounds, and how many times faster hessfig is; a contender that failed says why."""
    if any("failed" in run for run in runs):
        return {"name": name, "failed": next(run["failed"] for run in runs if "failed" in run)}
    middle = {key: median(run[key] for run in runs) for key in runs[0]}
    against = [run["seconds"] / own["seconds"] for run, own in zip(runs, ours, strict=True)]
    found = {"name": name, **middle, "times_ours": median(against), "rounds": runs}
    if "products" not in runs[0]:
        share = (middle["error"] / median(own["error"] for own in ours)) ** 2
        found["seconds_at_equal_error"] = middle["seconds"] * share
    return found


def _cell(options: argparse.Namespace, layers: int, seed: int) -> Cell:
    config = Config(
        task=TaskConfig(digits=options.digits, batch_size=options.batch_size),
        model=ModelConfig(n_layers=layers, d_model=options.d_model),
        device=options.device,
    )
    return Cell(Variant("", benchmarking.checked(config)), SIGMA, seed)


def _print(title: str, rows: Runs) -> None:
    print(f"\n{title}")
    for row in rows:
        where = f"{row['n_layers']} layers" + (f", to {row['target']:g}" if "target" in row else "")
        told = row.get("failed") or json.dumps(
            {key: float(f"{value:.3g}") for key, value in row.items() if isinstance(value, float)}
        )
        print(f"  {where:20} {row['name']:36} {told}")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n-layers", type=int, nargs="+", default=[1, 2], help="depths (1 2)")
    parser.add_argument("--only", choices=("largest", "density"), help="one of the two comparisons (both)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, of all contenders; peaks are the device's (cpu)")
    parser.add_argument("--d-model", type=int, default=128, help="width (128)")
    parser.add_argument("--digits", type=int, default=5, help="digits of the summands (5)")
    parser.add_argument("--batch-size", type=int, default=64, help="sequences (64)")
    parser.add_argument("--steps", type=int, default=80, help="Lanczos steps of a density (80)")
    parser.add_argument("--num-probes", type=int, default=10, help="probes of a density (10)")


if __name__ == "__main__":
    main()
