"""Largest eigenvalue and density of a whole network's Hessian, by hessfig and by its peers, at equal accuracy.

    python scripts/benchmarks/spectra.py [--n-layers 1 2] [--rounds 3] [--only largest] [--device cuda]

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

With --only long: the largest eigenvalue of a network of 5 M parameters (tanh, --width 1000) in float32, once with the
vectors that hessfig takes and once with float64 bases. `vectors` is the peak of memory beyond that of single products,
in vectors of float32 (CPU of Linux only).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import runner
from runner import Run

from hessfig.config.enums import DType
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Part

if TYPE_CHECKING:
    from torch import Tensor

    from hessfig.curvature.problem import Objective

TARGETS = (1e-3, 1e-6)
TOY = {"d_model": 8, "digits": 1, "batch_size": 4, "rounds": 1, "n_layers": [1], "steps": 10, "num_probes": 2}
TOY |= {"width": 120}
SETTINGS = ("n_layers", "d_model", "digits", "batch_size", "steps", "num_probes", "rounds", "device", "width")
OURS, OURS_FLOAT32 = "hessfig", "hessfig, float32 products"
_PEERS = ("curvlinops + eigsh", "PyHessian", "PyHessian, as its users run it", "hessian-eigenthings")
LARGEST = (OURS, *_PEERS)
DENSITY = (OURS, OURS_FLOAT32, "curvlinops", "PyHessian", "hessian-eigenthings")
LONG = 3  # the truth of a density: half as many times more steps, as many times more probes
_OTHER = 10**6  # seeds of the truth's probes begin here
_FAILURES = (ImportError, RuntimeError, AttributeError)
Runs = list[Run]
Nodes = tuple[Any, Any]


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the tables."""
    options = runner.parse(__doc__, _options, TOY, words)
    runner.prepare(options.allocator)
    report = runner.heading(options, SETTINGS) | {"largest": [], "stages": [], "density": [], "long": []}
    if options.only == "long":
        report["long"] = [runner.in_fresh_process(long_vectors, options.width, bases) for bases in LONG_BASES]
    for layers in options.n_layers if options.only != "long" else ():
        seeds = range(runner.SEED, runner.SEED + options.rounds)
        cells = [runner.cell_of(options, layers, seed=seed, device=options.device) for seed in seeds]
        if options.only != "density":
            names = LARGEST if options.peers is None else (OURS, *options.peers)
            report["largest"] += [row for target in TARGETS for row in _largest(cells, layers, target, names)]
            report["stages"] += [_stages(cells, layers, target) for target in TARGETS]
        if options.only != "largest":
            report["density"] += _density(cells, layers, options.steps, options.num_probes)
    runner.write_report(options, "spectra", report)
    for row in report["long"]:
        print(json.dumps(row))
    _print("largest eigenvalue", report["largest"])
    _print("where the time of hessfig's largest eigenvalue goes, seconds", report["stages"])
    _print("density", report["density"])


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n-layers", type=int, nargs="+", default=[1, 2], help="depths (1 2)")
    parser.add_argument("--only", choices=("largest", "density", "long"), help="one comparison (the first two)")
    parser.add_argument("--peers", nargs="+", choices=_PEERS, help="for the largest eigenvalue alone (all)")
    parser.add_argument("--width", type=int, default=1000, help="of the network of --only long (1000)")
    parser.add_argument("--device", default="cpu", help=runner.DEVICES)
    runner.add_sizes(parser)
    parser.add_argument("--steps", type=int, default=80, help="Lanczos steps of a density (80)")
    parser.add_argument("--num-probes", type=int, default=10, help="probes of a density (10)")


def _largest(cells: list[Cell], layers: int, target: float, names: Sequence[str]) -> Runs:
    rows = runner.in_turn([{name: (measure_largest, name, cell, target) for name in names} for cell in cells])
    return [{"n_layers": layers, "target": target, **_summary(name, runs, rows[OURS])} for name, runs in rows.items()]


def _stages(cells: list[Cell], layers: int, target: float) -> Run:
    """Return runner.medians over rounds of the seconds of every stage of our own run."""
    found = [runner.in_fresh_process(where_time_goes, cell, target) for cell in cells]
    return {"n_layers": layers, "target": target, "name": OURS, **runner.medians(found)}


def _density(cells: list[Cell], layers: int, steps: int, probes: int) -> Runs:
    truths = [runner.in_fresh_process(long_density, cell, LONG * steps // 2, LONG * probes) for cell in cells]
    rows = runner.in_turn(
        [
            {name: (measure_density, name, cell, steps, probes, truth) for name in DENSITY}
            for cell, truth in zip(cells, truths, strict=True)
        ]
    )
    return [{"n_layers": layers, **_summary(name, runs, rows[OURS])} for name, runs in rows.items()]


def _summary(name: str, runs: Runs, ours: Runs) -> Run:
    """Return runner.medians over rounds, and how many times faster hessfig is; a contender that failed says why."""
    if any("failed" in run for run in runs):
        return {"name": name, "failed": next(run["failed"] for run in runs if "failed" in run)}
    middle = runner.medians(runs)
    against = [run["seconds"] / own["seconds"] for run, own in zip(runs, ours, strict=True)]
    found = {"name": name, **middle, "times_ours": median(against), "rounds": runs}
    if "products" not in runs[0]:
        share = (middle["error"] / median(own["error"] for own in ours)) ** 2
        found["seconds_at_equal_error"] = middle["seconds"] * share
    return found


def _print(title: str, rows: Runs) -> None:
    print(f"\n{title}")
    for row in rows:
        where = f"{row['n_layers']} layers" + (f", to {row['target']:g}" if "target" in row else "")
        told = row.get("failed") or json.dumps(
            {key: float(f"{value:.3g}") for key, value in row.items() if isinstance(value, float)}
        )
        print(f"  {where:20} {row['name']:36} {told}")


def measure_largest(name: str, cell: Cell, target: float) -> Run:
    """Return what the largest eigenvalue of the whole H took: seconds, products, memory, residual reached."""
    _one_thread()
    try:
        return _ours(cell, target) if name == OURS else _peer(name, cell, target)
    except _FAILURES as error:
        return _failed(error)


LONG_BASES = ("chosen", "float64")


def long_vectors(width: int, bases: str) -> Run:
    """Return value, residual, products, seconds and memory of the largest eigenvalue of a large network in float32."""
    import torch

    import hessfig
    from hessfig.config.enums import Products
    from hessfig.config.science import ModelConfig
    from hessfig.curvature import Square, extremes
    from hessfig.curvature.double_backward import differentiating
    from hessfig.curvature.spectral.extremes import End
    from hessfig.models.routes import Engines
    from hessfig.terms import Block

    _one_thread()
    torch.manual_seed(runner.SEED)
    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    network, block = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)), Block(0, "all", "all")
    problem = hessfig.Problem(network, torch.randn(32, width), torch.randint(10, (32,))).objective("float32")
    with differentiating():
        column = Engines(problem, ModelConfig(), Products.linearised).column(0, "all", [block])
        square, generator = Square(column, block, Part.H), torch.Generator().manual_seed(runner.SEED)
        if bases == "float64":
            square.like = square.like.double()
        square.matmat(torch.ones(square.dim, 1))  # its checks, once
        Path("/proc/self/clear_refs").write_text("5")  # peaks are counted from here on
        square.matmat(torch.ones(square.dim, 1))
        alone = runner.peak_gib()
        solve = partial(extremes, square, End.largest, tolerance=TARGETS[0], generator=generator)
        result, times = runner.timed(solve)
    vectors = (runner.peak_gib() - alone) * 2**30 / (4 * square.dim)
    numbers = {"value": float(result.values[0]), "error": float(result.residuals[0]) / result.scale}
    counts = {"parameters": square.dim, "products": result.products, "converged": result.converged}
    return {"bases": bases, **counts, **numbers, "seconds": times["seconds"], "vectors": vectors}


def measure_density(name: str, cell: Cell, steps: int, probes: int, truth: Nodes) -> Run:
    """Return what a density took, and its Wasserstein distance to `truth` in standard deviations of the spectrum."""
    _one_thread()
    try:
        (nodes, weights), times = runner.timed(_density_of(name, cell, steps, probes), cell.config.device)
    except _FAILURES as error:
        return _failed(error)
    peak = runner.peak_gib(cell.config.device)
    return {"seconds": times["seconds"], "peak_gib": peak, "error": _distance((nodes, weights), truth)}


def long_density(cell: Cell, steps: int, probes: int) -> Nodes:
    """Return nodes and weights of a longer run, with probes of its own."""
    return _own_density(cell, steps, probes, _OTHER)


def _ours(cell: Cell, target: float) -> Run:
    """As `hessfig run` does it: engines built anew, two starts, a residual of products made for it."""
    from hessfig.sweep.measure import draw_problem, request_of

    asked = _asking(cell, "largest_eigenvalue", tolerance=target)
    problem = draw_problem(asked)
    run = partial(asked.variant.quantity(asked.quantity).measured, problem, request_of(asked, problem))
    run()
    found, times = runner.timed(run, cell.config.device)
    (entry,) = json.loads(str(found.arrays["entries"]))
    vector, value = _torch(found.arrays["vectors_0"][:, 0]), found.rows[0]["value"]
    products = entry["products"] + entry["rough_products"]
    return _costs(cell, times["seconds"], times["seconds"], products) | _accuracy(cell, value, vector)


# Where time goes: the function, and the one that calls it where only these calls count.
_STAGES = {
    "products of both starts, in float32": ("lanczos.py:matmat", "lanczos.py:advance"),
    "certificate: its products, in float64": ("lanczos.py:matmat", "extremes.py:certify"),
    "orthogonal vectors and Ritz values of the runs": ("lanczos.py:absorb", ""),
    "recording the network, in both precisions": ("recording.py:build_tape", ""),
}


def where_time_goes(cell: Cell, target: float) -> Run:
    """Return the seconds of our own run by stage, by the profiler of Python (whose own cost is in all of them)."""
    from hessfig.sweep.measure import draw_problem, request_of

    _one_thread()
    asked = _asking(cell, "largest_eigenvalue", tolerance=target)
    problem = draw_problem(asked)
    run = partial(asked.variant.quantity(asked.quantity).measured, problem, request_of(asked, problem))
    run()
    profile = cProfile.Profile()
    seconds = runner.timed(partial(profile.runcall, run), cell.config.device)[1]["seconds"]
    calls = {f"{Path(file).name}:{name}": of for (file, _, name), of in vars(pstats.Stats(profile))["stats"].items()}
    found = {}
    for stage, (name, caller) in _STAGES.items():
        *_, spent, callers = calls.get(name, (0.0, {}))
        by = {f"{Path(file).name}:{one}": of[-1] for (file, _, one), of in callers.items()}
        found[stage] = by.get(caller, 0.0) if caller else spent
    return {**found, "the rest": seconds - sum(found.values()), "all": seconds}


def _peer(name: str, cell: Cell, target: float) -> Run:
    from peers import LARGEST as PEERS

    peer, spent, found = PEERS[name], 0.0, {}
    peer.solve(_problem(cell), peer.efforts[0])  # as `_ours`: the import and a first call are not counted
    for effort in peer.efforts:
        (value, vector, products), times = runner.timed(partial(peer.solve, _problem(cell), effort), cell.config.device)
        spent += times["seconds"]
        found = _costs(cell, times["seconds"], spent, products) | _accuracy(cell, value, vector) | {"effort": effort}
        if found["error"] <= target or not peer.judged:
            return found
    return {"failed": f"residual {found['error']:.1e} at its largest effort, {found['effort']:g}"}


def _density_of(name: str, cell: Cell, steps: int, probes: int) -> Callable[[], Nodes]:
    if name == OURS:
        return partial(_own_density, cell, steps, probes)
    if name == OURS_FLOAT32:
        config = replace(cell.config, dtype=DType.float32)
        return partial(_own_density, replace(cell, variant=Variant("", config)), steps, probes)
    from peers import DENSITIES

    return lambda: DENSITIES[name](_problem(cell), steps, probes)


def _own_density(cell: Cell, steps: int, probes: int, other: int = 0) -> Nodes:
    from hessfig.rng import probe_stream
    from hessfig.sweep.measure import draw_problem, request_of

    asked = _asking(cell, "density", steps=steps, num_probes=probes)
    problem = draw_problem(asked)
    stream = partial(probe_stream, asked.seed + other, asked.quantity, asked.sigma)
    request = replace(request_of(asked, problem), stream=stream)
    arrays = asked.variant.quantity(asked.quantity).measured(problem, request).arrays
    return arrays["nodes_0"].ravel(), arrays["weights_0"].ravel() / probes


def _asking(cell: Cell, quantity: str, **spectrum: Any) -> Cell:
    settings = replace(cell.config.spectrum, **spectrum)
    config = replace(cell.config, quantities=[quantity], blocks=["all"], parts=[Part.H], spectrum=settings)
    return replace(cell, variant=Variant("", config), quantity=quantity)


def _accuracy(cell: Cell, value: float, vector: Tensor) -> Run:
    """Return the eigenvalue and its relative residual, by one plain double backward."""
    from peers import exact_product

    vector = vector / vector.norm()
    rest = exact_product(_problem(cell), vector) - value * vector
    return {"value": value, "error": float(rest.norm()) / abs(value)}


def _distance(found: Nodes, truth: Nodes) -> float:
    from scipy.stats import wasserstein_distance

    mean = float(np.average(truth[0], weights=truth[1]))
    spread = float(np.average((truth[0] - mean) ** 2, weights=truth[1])) ** 0.5
    return float(wasserstein_distance(found[0], truth[0], found[1], truth[1])) / spread


def _problem(cell: Cell) -> Objective:
    from hessfig.sweep.measure import draw_problem

    return draw_problem(cell)


def _costs(cell: Cell, seconds: float, with_search: float, products: int) -> Run:
    peak = runner.peak_gib(cell.config.device)
    return {"seconds": seconds, "seconds_with_search": with_search, "products": float(products), "peak_gib": peak}


def _failed(error: Exception) -> Run:
    return {"failed": f"{type(error).__name__}: {error}"[:200]}


def _torch(values: Any) -> Tensor:
    import torch

    return torch.from_numpy(values)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
