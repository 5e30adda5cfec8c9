"""The runs that bench_spectra.py compares, each as one call that a fresh process can make."""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarking import peak_gib, synchronised

from hessfig.config.enums import DType
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Part

if TYPE_CHECKING:
    from torch import Tensor

    from hessfig.curvature.problem import Objective

OURS, OURS_FLOAT32 = "hessfig", "hessfig, float32 products"
_PEERS = ("curvlinops + eigsh", "PyHessian", "PyHessian, as its users run it", "hessian-eigenthings")
LARGEST = (OURS, *_PEERS)
DENSITY = (OURS, OURS_FLOAT32, "curvlinops", "PyHessian", "hessian-eigenthings")
LONG = 3  # the truth of a density: half as many times more steps, as many times more probes
_OTHER = 10**6  # seeds of the truth's probes begin here
_FAILURES = (ImportError, RuntimeError, AttributeError)
Found = dict[str, Any]
Nodes = tuple[Any, Any]


def measure_largest(name: str, cell: Cell, target: float) -> Found:
    """Return what the largest eigenvalue of the whole H took: seconds, products, memory, residual reached."""
    _one_thread()
    try:
        return _ours(cell, target) if name == OURS else _peer(name, cell, target)
    except _FAILURES as error:
        return _failed(error)


def measure_density(name: str, cell: Cell, steps: int, probes: int, truth: Nodes) -> Found:
    """Return what a density took, and its Wasserstein distance to `truth` in standard deviations of the spectrum."""
    _one_thread()
    try:
        (nodes, weights), seconds = _timed(_density_of(name, cell, steps, probes), cell.config.device)
    except _FAILURES as error:
        return _failed(error)
    peak = peak_gib(cell.config.device)
    return {"seconds": seconds, "peak_gib": peak, "error": _distance((nodes, weights), truth)}


def long_density(cell: Cell, steps: int, probes: int) -> Nodes:
    """Return nodes and weights of a longer run, with probes of its own."""
    return _own_density(cell, steps, probes, _OTHER)


def _ours(cell: Cell, target: float) -> Found:
    """As `hessfig run` does it: engines built anew, two starts, a residual of products made for it."""
    from hessfig.sweep.measure import draw_problem, request_of

    asked = _asking(cell, "largest_eigenvalue", tolerance=target)
    problem = draw_problem(asked)
    run = partial(asked.variant.quantity(asked.quantity).measured, problem, request_of(asked, problem))
    run()
    found, seconds = _timed(run, cell.config.device)
    (entry,) = json.loads(str(found.arrays["entries"]))
    vector, value = _torch(found.arrays["vectors_0"][:, 0]), found.rows[0]["value"]
    products = entry["products"] + entry["rough_products"]
    return _costs(cell, seconds, seconds, products) | _accuracy(cell, value, vector)


# Where time goes: the function, and the one that calls it where only these calls count.
_STAGES = {
    "products of both starts, in float32": ("lanczos.py:matmat", "lanczos.py:advance"),
    "certificate: its products, in float64": ("lanczos.py:matmat", "extremes.py:certify"),
    "orthogonal vectors and Ritz values of the runs": ("lanczos.py:absorb", ""),
    "recording the network, in both precisions": ("recording.py:build_tape", ""),
}


def where_time_goes(cell: Cell, target: float) -> Found:
    """Return the seconds of our own run by stage, by the profiler of Python (whose own cost is in all of them)."""
    from hessfig.sweep.measure import draw_problem, request_of

    _one_thread()
    asked = _asking(cell, "largest_eigenvalue", tolerance=target)
    problem = draw_problem(asked)
    run = partial(asked.variant.quantity(asked.quantity).measured, problem, request_of(asked, problem))
    run()
    profile = cProfile.Profile()
    _, seconds = _timed(partial(profile.runcall, run), cell.config.device)
    calls = {f"{Path(file).name}:{name}": of for (file, _, name), of in vars(pstats.Stats(profile))["stats"].items()}
    found = {}
    for stage, (name, caller) in _STAGES.items():
        *_, spent, callers = calls[name]
        by = {f"{Path(file).name}:{one}": of[-1] for (file, _, one), of in callers.items()}
        found[stage] = by[caller] if caller else spent
    return {**found, "the rest": seconds - sum(found.values()), "all": seconds}


def _peer(name: str, cell: Cell, target: float) -> Found:
    from spectral_peers import LARGEST as PEERS

    peer, spent, found = PEERS[name], 0.0, {}
    peer.solve(_problem(cell), peer.efforts[0])  # as `_ours`: the import and a first call are not counted
    for effort in peer.efforts:
        (value, vector, products), seconds = _timed(partial(peer.solve, _problem(cell), effort), cell.config.device)
        spent += seconds
        found = _costs(cell, seconds, spent, products) | _accuracy(cell, value, vector) | {"effort": effort}
        if found["error"] <= target or not peer.judged:
            return found
    return {"failed": f"residual {found['error']:.1e} at its largest effort, {found['effort']:g}"}


def _density_of(name: str, cell: Cell, steps: int, probes: int) -> Callable[[], Nodes]:
    if name == OURS:
        return partial(_own_density, cell, steps, probes)
    if name == OURS_FLOAT32:
        config = replace(cell.config, dtype=DType.float32)
        return partial(_own_density, replace(cell, variant=Variant("", config)), steps, probes)
    from spectral_peers import DENSITIES

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


def _accuracy(cell: Cell, value: float, vector: Tensor) -> Found:
    """Return the eigenvalue and its relative residual, by one plain double backward."""
    from spectral_peers import exact_product

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


def _costs(cell: Cell, seconds: float, with_search: float, products: int) -> Found:
    peak = peak_gib(cell.config.device)
    return {"seconds": seconds, "seconds_with_search": with_search, "products": float(products), "peak_gib": peak}


def _timed(run: Callable[[], Any], device: str) -> tuple[Any, float]:
    started = time.perf_counter()
    found = run()
    synchronised(device)
    return found, time.perf_counter() - started


def _failed(error: Exception) -> Found:
    return {"failed": f"{type(error).__name__}: {error}"[:200]}


def _torch(values: Any) -> Tensor:
    import torch

    return torch.from_numpy(values)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
