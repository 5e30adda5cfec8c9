"""The data of figure=scalar: spectrum, condition number, GGN and sinks of the scalar-token model, as CSV
tables.

Writes output_dir/scalar/{spectrum,condition,ggn,sinks}.csv: eigenvalues by automatic differentiation next to
the closed form for one problem; the condition number against N = |w_Q|^2 + |w_K|^2 at fixed w_Q . w_K; the
relative error of the top eigenvalue of H_o (the GGN) as a proxy for that of H; bulk and outliers against the
size of the sink, for its three kinds. Medians and quartiles over problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from hessfig.rng import stream
from hessfig.theory.autodiff.draws import normal
from hessfig.theory.autodiff.scalar_problems import (
    MIXINGS,
    RESPONSES,
    ScalarProblem,
    condition_number,
    draw_scalar_problem,
    outer_product_gap,
    spectrum,
)
from hessfig.theory.formulas.scalar_tokens.sinks import Sink, sink_effect
from hessfig.theory.studies.kept import keep
from hessfig.theory.verify.tables import csv_text, quartiles

L, D_K, SEED = 16, 8, 1234
PROBLEMS, CONDITION_PROBLEMS = 200, 40
NORM_FACTORS = tuple(2.0**k for k in range(8))
BETAS = tuple(0.75 * k for k in range(17))

Rows = Iterator[tuple[object, ...]]


def run(output_dir: Path) -> list[Path]:
    """Compute and write the four tables; return their paths."""
    problems = [draw_scalar_problem(L, D_K, stream(SEED, "scalar", k), w_V=1.0) for k in range(PROBLEMS)]
    spread = ("q25", "median", "q75", "count")
    tables: dict[str, tuple[Sequence[str], Rows]] = {
        "spectrum": (("index", "kind", "autodiff", "closed_form"), _spectrum(problems[0])),
        "condition": (
            ("norm_squared", *spread, "closed_form", "limit"),
            _condition(problems[:CONDITION_PROBLEMS]),
        ),
        "ggn": (("where", "model", *spread), _ggn(problems)),
        "sinks": (("sink", "beta", "quantity", *spread), _sinks(problems[: PROBLEMS // 2])),
    }
    return keep(output_dir / "scalar", {name: csv_text(*table) for name, table in tables.items()})


def _spectrum(problem: ScalarProblem) -> Rows:
    """Ascending eigenvalues of the full Hessian; a bulk eigenvalue is one of +-b."""
    closed = problem.hessian(problem.response("attention"))
    found = spectrum(problem, MIXINGS["attention"](problem.x))
    pairs = zip(found.tolist(), closed.eigenvalues.tolist(), strict=True)
    for index, (value, formula) in enumerate(pairs, start=1):
        kind = "bulk" if abs(abs(formula) - abs(closed.b)) < 1e-12 else "outlier"
        yield index, kind, value, formula


def _condition(problems: list[ScalarProblem]) -> Rows:
    """Medians of the autodiff number, of the closed form, and of its limit for large N."""
    balanced = [_balanced(problem) for problem in problems]
    for factor in NORM_FACTORS:
        moved = [problem.unbalanced(factor) for problem in balanced]
        N = float(moved[0].w_Q.square().sum() + moved[0].w_K.square().sum())
        closed = [problem.hessian(problem.response("attention")) for problem in moved]
        formula = quartiles([hessian.condition_number for hessian in closed])[1]
        limit = quartiles([hessian.condition_growth * N**2 for hessian in closed])[1]
        yield N, *quartiles([float(condition_number(p)) for p in moved]), len(moved), formula, limit


def _balanced(problem: ScalarProblem) -> ScalarProblem:
    """Both weight vectors at norm sqrt(d_K), so that every problem starts at N = 2 d_K."""
    w_Q, w_K = (D_K**0.5 * w / torch.linalg.vector_norm(w) for w in (problem.w_Q, problem.w_K))
    return replace(problem, w_Q=w_Q, w_K=w_K)


def _ggn(problems: list[ScalarProblem]) -> Rows:
    """At random weights, and with targets moved so that the gradient vanishes."""
    noise = [normal(L, generator=stream(SEED, "scalar", "noise", k)) for k in range(len(problems))]
    for model in RESPONSES:
        responses = [problem.response(model) for problem in problems]
        critical = [p.at_critical_point(r, d) for p, r, d in zip(problems, responses, noise, strict=True)]
        for where, points in (("random weights", problems), ("critical points", critical)):
            gaps = [outer_product_gap(point, r) for point, r in zip(points, responses, strict=True)]
            yield where, model, *quartiles(gaps), len(gaps)


def _sinks(problems: list[ScalarProblem]) -> Rows:
    for sink in Sink:
        for beta in BETAS:
            effects = [sink_effect(problem, sink, beta) for problem in problems]
            sizes = {"bulk": [effect.bulk for effect in effects]}
            sizes |= {f"outlier {rank + 1}": [float(e.outliers[rank]) for e in effects] for rank in range(3)}
            for quantity, values in sizes.items():
                yield sink, beta, quantity, *quartiles(values), len(values)
