"""Tables behind the two figures of theory that need no sweep."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import torch

import hessfig
from hessfig.files import fingerprint
from hessfig.register import publish
from hessfig.rng import stream
from hessfig.theory import further_formulas as bounds
from hessfig.theory import scalar_formulas as scalar
from hessfig.theory.attention_formulas import MATRICES, AttentionPoint
from hessfig.theory.bound_claims import SLACK, scaled
from hessfig.theory.statement import Dims, attention_point, normal
from hessfig.theory.verification import csv_text, quartiles

SEAL = "sha256.json"
KIND = "table of a study"


def keep(folder: Path, tables: Mapping[str, str]) -> list[Path]:
    """Write folder/<name>.csv for every table, then the seal (an older one is no longer true); return the paths."""
    known = _sealed(folder)
    texts = {folder / f"{name}.csv": text for name, text in tables.items()}
    paths = list(texts)
    publish(texts, KIND, known=known)
    publish(
        {folder / SEAL: json.dumps(_seal(paths), indent=2) + "\n"}, KIND, known=known
    )
    return paths


def is_whole(folder: Path) -> bool:
    """Whether the tables that this version of hessfig writes are there, every byte of them."""
    try:
        seal = json.loads((folder / SEAL).read_text("utf-8"))
        paths = [folder / name for name in seal["tables"]]
        return bool(paths) and seal == _seal(paths)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _sealed(folder: Path) -> list[str]:
    """Return the SHA-256 of the seal that is there and of the tables that it lists, of whatever version."""
    try:
        seal = json.loads((folder / SEAL).read_text("utf-8"))
        if seal["hessfig"]:
            return [fingerprint(folder / SEAL), *map(str, seal["tables"].values())]
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _seal(paths: list[Path]) -> dict[str, object]:
    tables = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }
    return {"hessfig": hessfig.__version__, "tables": tables}


DIMS = Dims(L=8, d_V=6, d_K=4)
BOUNDS_SEED = 1234
BOUNDS_PROBLEMS = 30
RANDOM_SCALES = 150
SIGMAS = tuple(10 ** (-2 + k / 5) for k in range(13))

WHOLE = ("whole", "whole")
Ratios = dict[tuple[str, str, str], list[float]]


def run_bounds(output_dir: Path) -> list[Path]:
    """Compute and write both tables; return their paths."""
    looseness = ("sigma", "bound", "row", "col", "q25", "median", "q75", "count")
    table = (
        "bound",
        "row",
        "col",
        "minimum",
        "q25",
        "median",
        "q75",
        "violations",
        "count",
    )
    tables = {
        "looseness": csv_text(looseness, _against_sigma()),
        "table": csv_text(table, _over_scales()),
    }
    return keep(output_dir / "bounds", tables)


def ratios(points: list[AttentionPoint]) -> Ratios:
    """Return the ratios of bound and true spectral norm by (bound, row, col), the latter weights or both 'whole'."""
    by_bound: Ratios = defaultdict(list)
    spreads = {"norm": bounds.spread_from_norm, "diameter": bounds.spread_from_diameter}
    for point in points:
        blocks, whole = bounds.true_norms(point)
        for name, spread in spreads.items():
            claimed = bounds.block_bounds(point, spread(point))
            for row, col in combinations_with_replacement(MATRICES, 2):
                by_bound[name, row, col].append(claimed[row, col] / blocks[row, col])
            by_bound[name, *WHOLE].append(bounds.whole_bound(claimed) / whole)
        by_bound["arXiv 2510.16927", *WHOLE].append(
            bounds.published_bound(point) / whole
        )
    return by_bound


def _against_sigma() -> Iterator[tuple[object, ...]]:
    points = []
    for k in range(BOUNDS_PROBLEMS):
        points.append(attention_point(DIMS, stream(BOUNDS_SEED, "bounds", k)))
    for sigma in SIGMAS:
        moved = [scaled(point, sigma, 1.0, 1.0) for point in points]
        for names, values in ratios(moved).items():
            yield (sigma, *names, *quartiles(values), len(values))


def _over_scales() -> Iterator[tuple[object, ...]]:
    """Tokens, query-key weights and targets of sizes 0.1 to 3, log-uniform and independent."""
    points = []
    for k in range(RANDOM_SCALES):
        generator = stream(BOUNDS_SEED, "bounds", "scales", k)
        uniform = torch.rand(3, generator=generator, dtype=torch.float64)
        sizes = 10 ** (1.5 * uniform - 1)
        points.append(scaled(attention_point(DIMS, generator), *sizes.tolist()))
    for names, values in ratios(points).items():
        violations = sum(value * SLACK < 1 for value in values)
        yield (*names, min(values), *quartiles(values), violations, len(values))


L = 16
D_K = 8
SEED = 1234
PROBLEMS = 200
CONDITION_PROBLEMS = 40
NORM_FACTORS = tuple(2.0**k for k in range(8))
BETAS = tuple(0.75 * k for k in range(17))

Rows = Iterator[tuple[object, ...]]


def run_scalar(output_dir: Path) -> list[Path]:
    """Compute and write the four tables; return their paths."""
    problems = []
    for k in range(PROBLEMS):
        generator = stream(SEED, "scalar", k)
        problems.append(scalar.draw_scalar_problem(L, D_K, generator, w_V=1.0))
    spread = ("q25", "median", "q75", "count")
    tables = {
        "spectrum": csv_text(
            ("index", "kind", "autodiff", "closed_form"), _spectrum(problems[0])
        ),
        "condition": csv_text(
            ("norm_squared", *spread, "closed_form", "limit"),
            _condition(problems[:CONDITION_PROBLEMS]),
        ),
        "ggn": csv_text(("where", "model", *spread), _ggn(problems)),
        "sinks": csv_text(
            ("sink", "beta", "quantity", *spread), _sinks(problems[: PROBLEMS // 2])
        ),
    }
    return keep(output_dir / "scalar", tables)


def _spectrum(problem: scalar.ScalarProblem) -> Rows:
    """Ascending eigenvalues of the full Hessian; a bulk eigenvalue is one of +-b."""
    closed = problem.hessian(problem.response("attention"))
    eigenvalues = scalar.spectrum(problem, scalar.MIXINGS["attention"](problem.x))
    pairs = zip(eigenvalues.tolist(), closed.eigenvalues.tolist(), strict=True)
    for index, (value, formula) in enumerate(pairs, start=1):
        kind = "bulk" if abs(abs(formula) - abs(closed.b)) < 1e-12 else "outlier"
        yield index, kind, value, formula


def _condition(problems: list[scalar.ScalarProblem]) -> Rows:
    """Medians of the autodiff number, of the closed form, and of its limit for large N."""
    balanced = [_balanced(problem) for problem in problems]
    for factor in NORM_FACTORS:
        first = balanced[0].unbalanced(factor)
        N = float(first.w_Q.square().sum() + first.w_K.square().sum())
        numbers = []
        formulas = []
        limits = []
        for problem in balanced:
            moved = problem.unbalanced(factor)
            closed = moved.hessian(moved.response("attention"))
            numbers.append(float(scalar.condition_number(moved)))
            formulas.append(closed.condition_number)
            limits.append(closed.condition_growth * N**2)
        formula = quartiles(formulas)[1]
        limit = quartiles(limits)[1]
        yield (N, *quartiles(numbers), len(numbers), formula, limit)


def _balanced(problem: scalar.ScalarProblem) -> scalar.ScalarProblem:
    """Both weight vectors at norm sqrt(d_K), so that every problem starts at N = 2 d_K."""
    w_Q = D_K**0.5 * problem.w_Q / torch.linalg.vector_norm(problem.w_Q)
    w_K = D_K**0.5 * problem.w_K / torch.linalg.vector_norm(problem.w_K)
    return replace(problem, w_Q=w_Q, w_K=w_K)


def _ggn(problems: list[scalar.ScalarProblem]) -> Rows:
    """At random weights, and with targets moved so that the gradient vanishes."""
    for model in scalar.RESPONSES:
        random = []
        critical = []
        for k, problem in enumerate(problems):
            response = problem.response(model)
            noise = normal(L, generator=stream(SEED, "scalar", "noise", k))
            moved = problem.at_critical_point(response, noise)
            random.append(scalar.outer_product_gap(problem, response))
            critical.append(scalar.outer_product_gap(moved, response))
        yield "random weights", model, *quartiles(random), len(random)
        yield "critical points", model, *quartiles(critical), len(critical)


def _sinks(problems: list[scalar.ScalarProblem]) -> Rows:
    for sink in scalar.AttentionSink:
        for beta in BETAS:
            sizes = defaultdict(list)
            for problem in problems:
                effect = scalar.sink_effect(problem, sink, beta)
                sizes["bulk"].append(effect.bulk)
                for rank, outlier in enumerate(effect.outliers.tolist(), start=1):
                    sizes[f"outlier {rank}"].append(outlier)
            for quantity, values in sizes.items():
                yield sink, beta, quantity, *quartiles(values), len(values)


RUNS = {"bounds": run_bounds, "scalar": run_scalar}
