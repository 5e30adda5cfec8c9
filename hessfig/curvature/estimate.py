"""One column of blocks, one estimator: Frobenius norms of every row and part asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from hessfig.config import EstimatorConfig, Method
from hessfig.curvature.dense import dense_norms
from hessfig.curvature.hutchinson import hutchinson
from hessfig.curvature.norms import Norm
from hessfig.curvature.operators import ColumnOperator, xtrace_squared_frobenius
from hessfig.curvature.problem import Problem
from hessfig.terms import Matrix, Part

GIB = 2**30


def column_norms(
    problem: Problem,
    layer: int,
    col: Matrix,
    rows: Sequence[Matrix],
    parts: Sequence[Part],
    estimator: EstimatorConfig,
    *,
    generator: Generator,
) -> dict[tuple[Matrix, Part], Norm]:
    """Return ||H_part(row, col)||_F of `layer` for every row and part, by the configured method."""
    column, memory = ColumnOperator(problem, layer, col, rows), estimator.memory_gb * GIB
    if estimator.method == Method.dense:
        return dense_norms(column, parts, memory=memory)
    if estimator.method == Method.xtrace:
        return {(col, part): _xtrace_norm(column, part, estimator.num_probes, generator) for part in parts}
    return hutchinson(column, parts, estimator.num_probes, generator=generator, memory=memory)


def _xtrace_norm(column: ColumnOperator, part: Part, num_probes: int, generator: Generator) -> Norm:
    operator, sketch = column.square_operator(part), torch.ones(column.dim, 1, dtype=column.dtype)
    if not (operator @ sketch).any():
        return Norm(0.0, 0.0, 0)
    squared = xtrace_squared_frobenius(operator, num_probes, generator=generator)
    return Norm(max(squared, 0.0) ** 0.5, float("nan"), num_probes)
