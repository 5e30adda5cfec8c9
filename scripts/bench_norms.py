"""Time one cell by every engine in one run: seconds, peak memory, error against the exact norms.

The published recipe makes six separate 20-probe estimates (H, H_o and H_o - H of W_V and W_Q) with curvlinops'
own estimator on the whole model in float32. Each engine runs in a fresh process, all in turn, several rounds, so
that drifts of the machine hit all of them; the ratios are what counts.

    python scripts/bench_norms.py [--layers 1] [--norm none] [--rounds 3] [--json outputs/bench/norms.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENGINES: dict[str, dict[str, Any]] = {
    "published, float32, 2 threads": {"recipe": "published", "dtype": "float32", "threads": 2},
    "published, float32": {"recipe": "published", "dtype": "float32"},
    "hutchinson on curvlinops, float64": {
        "recipe": "hutchinson",
        "dtype": "float64",
        "products": "curvlinops",
    },
    "hutchinson, float64 (default)": {"recipe": "hutchinson", "dtype": "float64", "products": "linearised"},
    "hutchinson, float32": {"recipe": "hutchinson", "dtype": "float32", "products": "linearised"},
    "auto, float64": {"recipe": "auto", "dtype": "float64"},
    "exact, float64": {"recipe": "exact", "dtype": "float64"},
}
DEFAULT = "hutchinson, float64 (default)"


def main() -> None:
    options = _options()
    if options.engine:
        print(json.dumps(measure_engine(options)))
        return
    names = [name for name in ENGINES if options.layers == 1 or "exact" not in name]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            runs[name].append(_in_fresh_process(name, options))
    report = {"environment": _environment(), "settings": vars(options), "engines": _summaries(runs)}
    _print(report)
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


def measure_engine(options: argparse.Namespace) -> dict[str, Any]:
    """Build one cell, measure it twice (the first warms up), return the second's seconds, peak memory and norms."""
    import torch

    engine = ENGINES[options.engine]
    torch.set_num_threads(engine.get("threads", 1))
    run = _published_cell if engine["recipe"] == "published" else _hessfig_cell
    run(options, engine)
    before = time.perf_counter()
    norms = run(options, engine)
    seconds = time.perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "peak_gib": peak, "norms": norms}


def _hessfig_cell(options: argparse.Namespace, engine: dict[str, Any]) -> dict[str, float]:
    from hessfig.sweep.measure import measure

    rows = measure(_cell(options, engine["dtype"], engine["recipe"], engine.get("products", "linearised")))
    return {f"{row['layer']} {row['row']} {row['part']}": row["frob"] for row in rows}


def _published_cell(options: argparse.Namespace, engine: dict[str, Any]) -> dict[str, float]:
    from curvlinops import GGNLinearOperator, HessianLinearOperator, hutchinson_squared_fro

    from hessfig.sweep.measure import draw_problem
    from hessfig.terms import Matrix

    problem = draw_problem(_cell(options, engine["dtype"], "hutchinson", "curvlinops"))
    whole = problem.suffix(1, [Matrix.W_E])
    norms = {}
    for layer in range(1, options.layers + 1):
        for matrix in (Matrix.W_V, Matrix.W_Q):
            weights, data = [problem.weight(layer, matrix)], [(whole.inputs, whole.targets)]
            settings = {"check_deterministic": False, "num_data": len(whole.inputs)}
            h = HessianLinearOperator(whole, problem.loss, weights, data, **settings)
            h_o = GGNLinearOperator(whole, problem.loss, weights, data, **settings)
            for part, operator in (("H_o", h_o), ("H_f", h_o - h), ("H", h)):
                norms[f"{layer} {matrix} {part}"] = float(hutchinson_squared_fro(operator, 20)) ** 0.5
    return norms


def _cell(options: argparse.Namespace, dtype: str, method: str, products: str) -> Any:
    from hessfig.config import Config, DType, EstimatorConfig, Method, ModelConfig, Norm, Products
    from hessfig.sweep.plan import Cell

    model = ModelConfig(n_layers=options.layers, norm=Norm(options.norm), d_model=options.d_model)
    estimator = EstimatorConfig(method=Method(method), products=Products(products))
    config = Config(model=model, estimator=estimator, dtype=DType(dtype))
    return Cell("", config, options.sigma, 1234)


def _in_fresh_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = [f"--{key}={getattr(options, key)}" for key in ("layers", "norm", "sigma", "d_model")]
    threads = str(ENGINES[name].get("threads", 1))
    environment = os.environ | {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, __file__, f"--engine={name}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _summaries(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    exact = runs.get("exact, float64", runs[DEFAULT])[0]["norms"]
    seconds = {name: statistics.median(run["seconds"] for run in each) for name, each in runs.items()}
    return {
        name: {
            "seconds": seconds[name],
            "all_seconds": [run["seconds"] for run in each],
            "faster_than_published": seconds["published, float32"] / seconds[name],
            "faster_than_published_2_threads": seconds["published, float32, 2 threads"] / seconds[name],
            "peak_gib": max(run["peak_gib"] for run in each),
            "worst_relative_error": max(
                abs(each[0]["norms"][key] / value - 1) for key, value in exact.items() if value
            ),
        }
        for name, each in runs.items()
    }


def _environment() -> dict[str, Any]:
    from importlib.metadata import version

    packages = ("hessfig", "torch", "curvlinops-for-pytorch", "numpy")
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **{name: version(name) for name in packages},
    }


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("engine", "s / cell", "x published", "x published, 2 threads", "peak GiB", "worst error")
    for name, row in report["engines"].items():
        ratios = [f"{row[key]:.1f}" for key in ("faster_than_published", "faster_than_published_2_threads")]
        table.add_row(
            name,
            f"{row['seconds']:.3f}",
            *ratios,
            f"{row['peak_gib']:.2f}",
            f"{row['worst_relative_error']:.1e}",
        )
    Console(width=120).print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--norm", default="none")
    parser.add_argument("--sigma", type=float, default=0.5)
    parser.add_argument("--d_model", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="outputs/bench/norms.json")
    parser.add_argument("--engine", choices=list(ENGINES), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
