"""Measure how the cost of one cell grows: CPU and wall seconds and peak memory along one setting at a time.

The settings are d_model, n_layers, sequence length (3 digits + 3), batch_size and
num_probes, each varied round the paper's cell (d_model 128, 1 layer, 5 digits, batch
64, 20 probes, float64; d_head and d_mlp grow with d_model). Engines: hutchinson, and
exact where `exactness` calls it cheap: of several layers that is the top one, and the
products of the top layer alone are measured next to it. What is left out stands in the
JSON with its reason. Every point is measured in a fresh process with one thread after a
warm-up cell; all points take turns in every round.

    python scripts/benchmarks/scaling.py [--axes d_model batch_size] [--rounds 3]
    [--output FILE.json]

writes the JSON (outputs/benchmarks/scaling.json). seconds = c x^p is fitted by least
squares in logs to the upper half of each axis, its middle included (the medians over
the rounds); the error of p is that of the regression.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import linear_regression
from typing import Any

import runner
from runner import Run

from hessfig.config.enums import Method
from hessfig.config.science import EstimatorConfig
from hessfig.measurements.quantity import columns
from hessfig.models.exact.support import Level, exactness
from hessfig.record import FROBENIUS
from hessfig.sweep.plan import Cell

WHOLE = "hutchinson"
TOP = "hutchinson, top layer"
EXACT = "exact"
HEADS = ("axis", "engine", "clock", "from", "to", "exponent", "standard error")


@dataclass(frozen=True)
class Setting:
    """What is varied; the defaults are the paper's cell."""

    d_model: int = 128
    n_layers: int = 1
    digits: int = 5
    batch_size: int = 64
    num_probes: int = 20


PAPER = Setting()
TOY = Setting(d_model=8, digits=2, batch_size=4, num_probes=4)
AXES: dict[str, tuple[int, ...]] = {
    "d_model": (32, 64, 128, 256),
    "n_layers": (1, 2, 3, 4, 5),
    "sequence_length": (2, 3, 4, 5, 6, 7, 8),  # digits
    "batch_size": (16, 32, 64, 128, 256),
    "num_probes": (5, 10, 20, 40, 80),
}
TOY_AXES: dict[str, tuple[int, ...]] = {
    "d_model": (4, 8, 16),
    "n_layers": (1, 2, 3),
    "sequence_length": (1, 2, 3),
    "batch_size": (2, 4, 8),
    "num_probes": (2, 4, 8),
}


@dataclass(frozen=True)
class Job:
    """One thing to measure: the blocks of some layers, by one method, at one setting."""

    method: Method
    setting: Setting
    layers: tuple[int, ...]

    def __str__(self) -> str:
        settings = ", ".join(
            f"{key}={value}" for key, value in vars(self.setting).items()
        )
        return f"{self.method}, {settings}, layers {', '.join(map(str, self.layers))}"


@dataclass(frozen=True)
class Point:
    """A place on an axis: what is varied, to what, and the job that tells an engine's cost there."""

    axis: str
    x: int
    engine: str
    job: Job


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the fits."""
    options = runner.parse(__doc__, _options, {"rounds": 1}, words)
    base, axes = (TOY, TOY_AXES) if options.quick else (PAPER, AXES)
    points, skipped = plan(base, {axis: axes[axis] for axis in options.axes})
    runner.prepare(options.allocator)
    fixed = {
        "norm": "none",
        "dtype": "float64",
        "sigma": runner.SIGMA,
        "seed": runner.SEED,
        "blocks": ["W_V", "W_Q"],
    }
    report = runner.heading(options, (), **asdict(base), **fixed, rounds=options.rounds)
    costs = runner.in_turn(
        [{point.job: (measure_job, point.job) for point in points}] * options.rounds
    )
    rows = [_row(point, costs[point.job]) for point in points]
    report |= {"points": rows, "fits": fits(rows), "skipped": skipped}
    runner.write_report(options, "scaling", report)
    _print(report)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--axes",
        nargs="+",
        choices=list(AXES),
        default=list(AXES),
        help="which to vary (all)",
    )


def measure_job(job: Job) -> dict[str, float]:
    """Measure the job after a warm-up; return its times and this process's memory."""
    return runner.after_warm_up(lambda: find_norms(job))[1]


def find_norms(job: Job) -> None:
    """Draw the cell and find the norms of the job's layers, as `hessfig run` does."""
    from hessfig.measurements.block_norms import Estimator
    from hessfig.rng import probe_stream
    from hessfig.sweep.measure import draw_problem

    cell = _cell(job)
    estimator = Estimator(draw_problem(cell), cell.config.model, cell.config.estimator)
    for layer, col, members in columns(cell.variant.blocks):
        if layer in job.layers:
            generator = probe_stream(runner.SEED, FROBENIUS, runner.SIGMA, layer, col)
            estimator.column_norms(
                layer, col, members, cell.config.parts, generator=generator
            )


def _cell(job: Job) -> Cell:
    estimator = EstimatorConfig(job.method, num_probes=job.setting.num_probes)
    return runner.cell_of(job.setting, job.setting.n_layers, estimator=estimator)


def _row(point: Point, costs: list[Run]) -> Run:
    rounds = {
        f"all_{name}": [cost[name] for cost in costs]
        for name in ("seconds", "cpu_seconds")
    }
    where = {
        "axis": point.axis,
        "x": point.x,
        "engine": point.engine,
        "layers": point.job.layers,
    }
    return (
        where | {"setting": asdict(point.job.setting)} | runner.medians(costs) | rounds
    )


def _print(report: dict[str, Any]) -> None:
    numbers = ("low", "high", "exponent", "standard_error")
    rows = [
        (*(fit[name] for name in HEADS[:3]), *(f"{fit[name]:.3g}" for name in numbers))
        for fit in report["fits"]
    ]
    runner.print_table(HEADS, rows, runner.TOY_WORDS if report["quick"] else None)


def plan(
    base: Setting, axes: Mapping[str, tuple[int, ...]]
) -> tuple[list[Point], list[dict[str, Any]]]:
    """Return the points of every axis, and what is not measured there with the reason."""
    points = []
    skipped = []
    for axis, value in (
        (axis, value) for axis, values in axes.items() for value in values
    ):
        setting, x = _varied(base, axis, value)
        expensive = _expensive_layers(
            setting, only_probes_vary=axis == "num_probes" and setting != base
        )
        points += [
            Point(axis, x, engine, job)
            for engine, job in _jobs(axis, setting, expensive).items()
        ]
        reasons = [
            {"layer": layer, "reason": reason} for layer, reason in expensive.items()
        ]
        skipped += [
            {"axis": axis, "x": x, "engine": EXACT, **reason} for reason in reasons
        ]
    return points, skipped


def _varied(base: Setting, axis: str, value: int) -> tuple[Setting, int]:
    """Return the setting and its place on the axis: sequences of d-digit sums are 3 d + 3 tokens long."""
    if axis == "sequence_length":
        return replace(base, digits=value), 3 * value + 3
    return replace(base, **{axis: value}), value


def _jobs(axis: str, setting: Setting, expensive: Mapping[int, str]) -> dict[str, Job]:
    every = tuple(range(1, setting.n_layers + 1))
    jobs = {WHOLE: Job(Method.hutchinson, setting, every)}
    if axis == "n_layers":
        jobs[TOP] = Job(Method.hutchinson, setting, every[-1:])
    if cheap := tuple(layer for layer in every if layer not in expensive):
        jobs[EXACT] = Job(Method.exact, setting, cheap)
    return jobs


def _expensive_layers(setting: Setting, *, only_probes_vary: bool) -> dict[int, str]:
    """Return the layers whose exact norms are not all cheap, or not worth measuring, and why."""
    if only_probes_vary:
        return {1: "exact norms take no probes: one point serves the whole axis"}
    variant = _cell(Job(Method.exact, setting, ())).variant
    config = variant.config
    reasons = dict[int, list[str]]()
    for block in variant.blocks:
        found = {part: exactness(config.model, block, part) for part in config.parts}
        expensive = [
            f"{part} ({e.level}, {e.reason})"
            for part, e in found.items()
            if e.level != Level.cheap
        ]
        if expensive:
            reasons.setdefault(block.layer, []).append(
                f"{block.row}: {', '.join(expensive)}"
            )
    return {layer: "; ".join(words) for layer, words in reasons.items()}


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient x^exponent between `low` and `high`; the error is that of the regression, None for two points."""

    coefficient: float
    exponent: float
    standard_error: float | None
    low: float
    high: float


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Fit a straight line to log y against log x."""
    u, v = [math.log(x) for x in xs], [math.log(y) for y in ys]
    line = linear_regression(u, v)
    residual = sum(
        (b - line.intercept - line.slope * a) ** 2 for a, b in zip(u, v, strict=True)
    )
    spread = sum((a - sum(u) / len(u)) ** 2 for a in u)
    error = math.sqrt(residual / (len(u) - 2) / spread) if len(u) > 2 else None
    return PowerLaw(math.exp(line.intercept), line.slope, error, min(xs), max(xs))


def upper_half(rows: list[Run]) -> list[Run]:
    """Return the rows with the larger x, the middle (of an even number, both) included; three at least."""
    return sorted(rows, key=lambda row: row["x"])[-max(3, len(rows) // 2 + 1) :]


def fits(rows: list[Run]) -> list[Run]:
    """Return a power law for every axis, engine and clock with three points or more in its upper half."""
    found = []
    for axis, engine in dict.fromkeys((row["axis"], row["engine"]) for row in rows):
        series = [row for row in rows if (row["axis"], row["engine"]) == (axis, engine)]
        upper = upper_half(series)
        for clock in ("cpu_seconds", "seconds") if len(upper) > 2 else ():
            law = fit_power_law(
                [row["x"] for row in upper], [row[clock] for row in upper]
            )
            found.append(
                {"axis": axis, "engine": engine, "clock": clock, **asdict(law)}
            )
    return found


if __name__ == "__main__":
    main()
