"""The ways to a cell's norms that bench_norms.py compares, each as one call that a fresh process can make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarking import after_warm_up

from hessfig.config.enums import DType, Method, Products
from hessfig.sweep.plan import Cell
from hessfig.terms import Matrix, Part

if TYPE_CHECKING:
    from torch import Tensor

    from hessfig.curvature.problem import Objective

PUBLISHED, PUBLISHED_2 = "published, float32", "published, float32, 2 threads"
EXACT, DEFAULT = "exact, float64", "hutchinson, float64"
PROBES = 20
Numbers = dict[str, dict[str, float]]


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
    "hutchinson on curvlinops, float64": Engine(Method.hutchinson, products=Products.curvlinops),
    DEFAULT: Engine(Method.hutchinson),
    "hutchinson, float32": Engine(Method.hutchinson, DType.float32),
    "aligned, float64": Engine(Method.aligned),
    "auto, float64": Engine(Method.auto),
    "auto, float32": Engine(Method.auto, DType.float32),
    EXACT: Engine(Method.exact),
}


def measure_engine(name: str, cell: Cell) -> dict[str, Any]:
    """Measure one cell after a warm-up; return its times, this process's memory, and its numbers."""
    engine = ENGINES[name]
    work = published_numbers if engine.method is None else hessfig_numbers
    numbers, cost = after_warm_up(partial(work, cell), threads=engine.threads)
    return {**cost, "numbers": numbers}


def hessfig_numbers(cell: Cell) -> Numbers:
    """Return norm, standard error and number of probes of every block and part, as `hessfig run` finds them."""
    from hessfig.sweep.measure import measure

    return {
        _key(row["layer"], row["row"], row["part"]): _number(row["value"], row["error"], row["num_probes"])
        for row in measure(cell).rows
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


def _as_published(problem: Objective) -> Any:
    """Return the network as the published code runs it: logits at every position, then those of the answer."""
    from torch import nn

    network: Any = problem.network

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, tokens: Tensor) -> Tensor:
            return network(tokens)[:, problem.batch.scored]

    return Whole()


def _operators(problem: Objective, layer: int, matrix: Matrix) -> dict[Part, Any]:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    whole, batch = _as_published(problem), problem.batch
    weights, data = [problem.weight(layer, matrix)], [(batch.inputs, batch.targets)]
    settings = {"check_deterministic": False, "num_data": len(batch.inputs)}
    h = HessianLinearOperator(whole, problem.loss, weights, data, **settings)
    h_o = GGNLinearOperator(whole, problem.loss, weights, data, **settings)
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
        self.shape, self.device, self.dtype = operator.shape, operator.device, operator.dtype

    def __matmul__(self, vectors: Tensor) -> Tensor:
        products = self._operator @ vectors
        self.squared_norms = products.square().sum(dim=0)
        return products


def _key(layer: int, matrix: str, part: str) -> str:
    return f"{layer} {matrix} {part}"


def _number(frob: float, sem: float, probes: int) -> dict[str, float]:
    return {"frob": frob, "sem": sem, "probes": probes}
