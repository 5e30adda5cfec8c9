"""Block norms of one problem by the configured estimator; what its columns share is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Generator

from hessfig.config import EstimatorConfig, Method, ModelConfig, Products
from hessfig.curvature.deflated import deflated
from hessfig.curvature.dense import dense_norms
from hessfig.curvature.hutchinson import Column, hutchinson
from hessfig.curvature.linearised.column import LinearisedNetwork
from hessfig.curvature.norms import Norm
from hessfig.curvature.operators import ColumnOperator, xtrace_squared_frobenius
from hessfig.curvature.problem import Problem
from hessfig.terms import Matrix, Part


class Estimator:
    """Frobenius norms of the blocks of `problem`, column by column."""

    def __init__(self, problem: Problem, model: ModelConfig, settings: EstimatorConfig) -> None:
        self.problem, self.model, self.settings = problem, model, settings

    def column_norms(
        self, layer: int, col: Matrix, rows: Sequence[Matrix], parts: Sequence[Part], *, generator: Generator
    ) -> dict[tuple[Matrix, Part], Norm]:
        """Return ||H_part(row, col)||_F of `layer` for every row and part."""
        settings = self.settings
        if settings.method == Method.xtrace:
            operator = ColumnOperator(self.problem, layer, col, [col])
            return {
                (col, part): _xtrace_norm(operator, part, settings.num_probes, generator) for part in parts
            }
        column = self._column(layer, col, rows)
        if settings.method == Method.dense:
            return dense_norms(column, parts)
        if settings.method == Method.deflated:
            return deflated(column, col, parts, settings.num_probes, generator=generator)
        return hutchinson(column, parts, settings.num_probes, generator=generator)

    def _column(self, layer: int, col: Matrix, rows: Sequence[Matrix]) -> Column:
        if self.settings.products == Products.curvlinops:
            return ColumnOperator(self.problem, layer, col, rows)
        return self._linearised.column(layer, col, rows)

    @cached_property
    def _linearised(self) -> LinearisedNetwork:
        return LinearisedNetwork(self.problem, self.model)


def _xtrace_norm(column: ColumnOperator, part: Part, num_probes: int, generator: Generator) -> Norm:
    """Take the root of XTrace's estimate of ||A||_F^2; curvlinops gives no error with it (NaN)."""
    operator, sketch = column.square_operator(part), torch.ones(column.dim, 1, dtype=column.dtype)
    if not (operator @ sketch).any():
        return Norm(0.0, 0.0, 0)
    squared = xtrace_squared_frobenius(operator, num_probes, generator=generator)
    return Norm(max(squared, 0.0) ** 0.5, float("nan"), num_probes)
