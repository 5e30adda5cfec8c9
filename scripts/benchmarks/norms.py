"""Time one cell by every engine in one run: seconds, peak memory, error, and cost at the published recipe's error.

The published recipe makes six separate 20-probe estimates a layer (H, H_o and H_o - H
of W_V and W_Q) with curvlinops' own estimator on the whole model in float32. Each
engine runs in a fresh process, all in turn, several rounds (every round with a network
of its own), so that drifts of the machine hit all; the ratios are what counts.

    python scripts/benchmarks/norms.py [--n-layers 1] [--norm none] [--rounds 3]
    [--output FILE.json]

writes the JSON (outputs/benchmarks/norms.json). Errors: relative_sem is the mean of
standard error / norm over numbers and rounds, an exact number counting as zero;
rms_deviation is that of norm / exact norm - 1 (one layer only). cost_at_equal_error is
seconds * (relative_sem / published relative_sem)^2: the time the engine would take for
the published recipe's error; cost_at_equal_error_sampled is the same over the numbers
alone which the engine samples. Blocks that vanish identically are left out of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import runner
from runner import Run

from hessfig.config.enums import DType, Method, Norm, Products
from hessfig.config.science import EstimatorConfig
from hessfig.sweep.plan import Cell
from hessfig.terms import Matrix, Part

if TYPE_CHECKING:
    from torch import Tensor

    from hessfig.curvature.problem import Objective

PUBLISHED, PUBLISHED_2 = "published, float32", "published, float32, 2 threads"
EXACT, DEFAULT = "exact, float64", "hutchinson, float64"
MACHINE = "plain matrix products"
PROBES = 20
TOY = {"d_model": 8, "digits": 1, "batch_size": 4, "rounds": 1}
SETTINGS = ("n_layers", "norm", "d_model", "digits", "batch_size", "sigma", "rounds")
COLUMNS = (
    "engine",
    "s / cell",
    "x",
    "x, 2 threads",
    "sem",
    "rms off",
    "s, equal error",
    "x",
    "peak GiB",
)
Numbers = dict[str, dict[str, float]]
Runs = dict[str, list[Run]]
Keys = list[tuple[int, str]]


@dataclass(frozen=True)
class Engine:
    """A way to a cell's numbers; `method` None is the published recipe."""

    method: Method | None
    dtype: DType = DType.float64
    products: Products = Products.linearised
    threads: int = 1


ENGINES = {
    PUBLISHED_2: Engine(None, DType.float32, threads=2),
    PUBLISHED: Engine(None, DType.float32),
    "hutchinson on curvlinops, float64": Engine(
        Method.hutchinson, products=Products.curvlinops
    ),
    DEFAULT: Engine(Method.hutchinson),
    "hutchinson, float32": Engine(Method.hutchinson, DType.float32),
    "aligned, float64": Engine(Method.aligned),
    "auto, float64": Engine(Method.auto),
    "auto, float32": Engine(Method.auto, DType.float32),
    EXACT: Engine(Method.exact),
}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the table."""
    options = runner.parse(__doc__, _options, TOY, words)
    rounds = _rounds(options)
    runner.prepare(options.allocator)
    report = runner.heading(options, SETTINGS, num_probes=PROBES, seed=runner.SEED)
    runs = runner.in_turn(rounds)
    rates = runner.medians(runs.pop(MACHINE))
    report |= {"product_gflops": rates, "engines": summaries(runs), "runs": runs}
    name = "norms" if options.n_layers == 1 else f"norms_{options.n_layers}_layers"
    runner.write_report(options, name, report)
    _print(report)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n-layers",
        type=int,
        default=1,
        help="all layers' W_V and W_Q are measured (1)",
    )
    parser.add_argument(
        "--norm", choices=list(Norm), default="none", help="LayerNorm (none)"
    )
    parser.add_argument(
        "--sigma",
        type=float,
        default=runner.SIGMA,
        help="scale of the embeddings (0.5)",
    )
    runner.add_sizes(parser)


def _rounds(options: argparse.Namespace) -> list[dict[str, tuple[Any, ...]]]:
    """Return the work of every round: the machine's own rate, and the cell of every engine."""
    left_out = {EXACT} if options.n_layers > 1 else set()
    left_out |= {PUBLISHED_2} if options.quick else set()
    names = [name for name in ENGINES if name not in left_out]
    rate = (runner.product_rates, 0.02 if options.quick else 0.5)
    return [
        {
            MACHINE: rate,
            **{
                name: (measure_engine, name, _cell(options, name, runner.SEED + number))
                for name in names
            },
        }
        for number in range(options.rounds)
    ]


def _cell(options: argparse.Namespace, name: str, seed: int) -> Cell:
    engine = ENGINES[name]
    estimator = EstimatorConfig(
        engine.method or Method.hutchinson, engine.products, PROBES
    )
    own = {"norm": options.norm, "estimator": estimator, "dtype": engine.dtype}
    return runner.cell_of(
        options, options.n_layers, sigma=options.sigma, seed=seed, **own
    )


def measure_engine(name: str, cell: Cell) -> dict[str, Any]:
    """Measure one cell after a warm-up; return its times, this process's memory, and its numbers."""
    engine = ENGINES[name]
    work = published_numbers if engine.method is None else hessfig_numbers
    numbers, cost = runner.after_warm_up(partial(work, cell), threads=engine.threads)
    return {**cost, "numbers": numbers}


def hessfig_numbers(cell: Cell) -> Numbers:
    """Return norm, standard error and number of probes of every block and part, as `hessfig run` finds them."""
    from hessfig.sweep.measure import compute_cell

    return {
        _key(row["layer"], row["row"], row["part"]): _number(
            row["value"], row["error"], row["num_probes"]
        )
        for row in compute_cell(cell).rows
    }


def published_numbers(cell: Cell) -> Numbers:
    """Return the same by the published recipe: every number from an operator and probes of its own."""
    from hessfig.sweep.measure import draw_problem

    problem = draw_problem(cell)
    return {
        _key(layer, matrix, part): _estimate(operator)
        for layer in range(1, cell.config.model.n_layers + 1)
        for matrix in (Matrix.W_V, Matrix.W_Q)
        for part, operator in _operators(problem, layer, matrix).items()
    }


def _as_published(objective: Objective) -> Any:
    """Return the network as the published code runs it: logits at every position, then those of the answer."""
    from torch import nn

    network: Any = objective.network

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, tokens: Tensor) -> Tensor:
            return network(tokens)[:, objective.batch.scored]

    return Whole()


def _operators(objective: Objective, layer: int, matrix: Matrix) -> dict[Part, Any]:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    whole = _as_published(objective)
    batch = objective.batch
    weights = [objective.weight(layer, matrix)]
    data = [(batch.inputs, batch.targets)]
    settings = {"check_deterministic": False, "num_data": len(batch.inputs)}
    h = HessianLinearOperator(whole, objective.loss, weights, data, **settings)
    h_o = GGNLinearOperator(whole, objective.loss, weights, data, **settings)
    return {Part.H_o: h_o, Part.H_f: h_o - h, Part.H: h}


def _estimate(operator: Any) -> dict[str, float]:
    """Let curvlinops estimate the norm; its error comes from the products it makes, watched in passing."""
    from curvlinops import hutchinson_squared_fro

    from hessfig.measurements.block_norms import root_of_mean

    watched = _Watched(operator)
    frob = float(hutchinson_squared_fro(watched, PROBES)) ** 0.5
    return _number(frob, root_of_mean(watched.squared_norms).error, PROBES)


class _Watched:
    """A square operator that keeps the squared lengths of the products made with it."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator
        self.shape = operator.shape
        self.device = operator.device
        self.dtype = operator.dtype

    def __matmul__(self, vectors: Tensor) -> Tensor:
        products = self._operator @ vectors
        self.squared_norms = products.square().sum(dim=0)
        return products


def _key(layer: int, matrix: str, part: str) -> str:
    return f"{layer} {matrix} {part}"


def _number(frob: float, sem: float, probes: int) -> dict[str, float]:
    return {"frob": frob, "sem": sem, "probes": probes}


def summaries(runs: Runs) -> dict[str, Run]:
    """Return what each engine costs and how far it is off, next to the published recipe."""
    found = {name: _cost(each) | _error(each, runs) for name, each in runs.items()}
    published = found[PUBLISHED]
    for row in found.values():
        row["faster_than_published"] = published["seconds"] / row["seconds"]
        if PUBLISHED_2 in found:
            row["faster_than_published_2_threads"] = (
                found[PUBLISHED_2]["seconds"] / row["seconds"]
            )
        row["memory_below_published"] = published["peak_gib"] / row["peak_gib"]
    return found


def _cost(each: list[Run]) -> dict[str, Any]:
    return {
        "seconds": median(run["seconds"] for run in each),
        "all_seconds": [run["seconds"] for run in each],
        "cpu_seconds": median(run["cpu_seconds"] for run in each),
        "peak_gib": max(run["peak_gib"] for run in each),
        "base_gib": max(run["base_gib"] for run in each),
    }


def _error(each: list[Run], runs: Runs) -> dict[str, Any]:
    """Compare the numbers whose norm is not zero; the published recipe's error is taken on the same numbers."""
    keys = _nonzero(runs)
    sampled = [
        (index, key) for index, key in keys if each[index]["numbers"][key]["sem"]
    ]
    seconds = median(run["seconds"] for run in each)
    return {
        "numbers": len(keys) // len(each),
        "sampled_numbers": len(sampled) / len(each),
        "relative_sem": _relative_sem(each, keys),
        **_deviations(each, runs, keys),
        "cost_at_equal_error": _equal_error(seconds, each, runs[PUBLISHED], keys)
        if sampled
        else None,
        "cost_at_equal_error_sampled": _equal_error(
            seconds, each, runs[PUBLISHED], sampled
        ),
    }


def _nonzero(runs: Runs) -> Keys:
    reference = runs.get(EXACT, runs[DEFAULT])
    return [
        (i, key)
        for i, run in enumerate(reference)
        for key, n in run["numbers"].items()
        if n["frob"]
    ]


def _relative_sem(each: list[Run], keys: Keys) -> float:
    numbers = [each[index]["numbers"][key] for index, key in keys]
    return mean(number["sem"] / number["frob"] for number in numbers)


def _equal_error(
    seconds: float, each: list[Run], published: list[Run], keys: Keys
) -> float | None:
    if not keys:
        return None
    return seconds * (_relative_sem(each, keys) / _relative_sem(published, keys)) ** 2


def _deviations(each: list[Run], runs: Runs, keys: Keys) -> dict[str, Any]:
    if EXACT not in runs:
        return {"rms_deviation": None, "worst_deviation": None}
    pairs = [
        (each[i]["numbers"][key]["frob"], runs[EXACT][i]["numbers"][key]["frob"])
        for i, key in keys
    ]
    off = [abs(found / exact - 1) for found, exact in pairs]
    return {
        "rms_deviation": mean(x * x for x in off) ** 0.5,
        "worst_deviation": max(off),
    }


def _print(report: dict[str, Any]) -> None:
    """Print one row per engine; x is how many times less than the published recipe on one thread."""
    engines = report["engines"]
    rows = [(name, *_cells(row, engines[PUBLISHED])) for name, row in engines.items()]
    runner.print_table(COLUMNS, rows, runner.TOY_WORDS if report["quick"] else None)
    for name, rate in report["product_gflops"].items():
        print(f"{name}: {rate:.1f} GFLOP/s on one thread")


def _cells(row: Run, published: Run) -> list[str]:
    cost = row["cost_at_equal_error"]
    return [
        f"{row['seconds']:.3g}",
        f"{row['faster_than_published']:.2f}",
        f"{row['faster_than_published_2_threads']:.2f}"
        if "faster_than_published_2_threads" in row
        else "",
        f"{row['relative_sem']:.2%}" if row["sampled_numbers"] else "exact",
        "" if row["rms_deviation"] is None else f"{row['rms_deviation']:.1e}",
        "" if cost is None else f"{cost:.3g}",
        "" if cost is None else f"{published['cost_at_equal_error'] / cost:.2f}",
        f"{row['peak_gib']:.2f}",
    ]


if __name__ == "__main__":
    main()
