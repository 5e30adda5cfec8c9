"""Block norms of one problem by the configured estimator; what its columns share is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Generator

from hessfig.config import EstimatorConfig, Method, ModelConfig, Products
from hessfig.curvature.column import Column, hutchinson
from hessfig.curvature.exact.engine import ExactEngine
from hessfig.curvature.exact.support import Level, exactness
from hessfig.curvature.problem import Problem
from hessfig.curvature.products.curvlinops import ColumnOperator, xtrace_squared_frobenius
from hessfig.curvature.products.linearised.column import LinearisedNetwork
from hessfig.measurements.frobenius.aligned import aligned
from hessfig.measurements.frobenius.dense import dense_norms
from hessfig.measurements.frobenius.norms import BlockNorm
from hessfig.terms import Block, Matrix, Part

Norms = dict[tuple[Matrix, Part], BlockNorm]


class Estimator:
    """Frobenius norms of the blocks of `problem`, column by column.

    `allotted`: how many probes `auto` takes for a column of that name, instead of settings.num_probes.
    """

    def __init__(
        self,
        problem: Problem,
        model: ModelConfig,
        settings: EstimatorConfig,
        allotted: Mapping[str, int] | None = None,
    ) -> None:
        self.problem, self.model, self.settings = problem, model, settings
        self.allotted = allotted or {}

    def column_norms(
        self, layer: int, col: Matrix, rows: Sequence[Matrix], parts: Sequence[Part], *, generator: Generator
    ) -> Norms:
        """Return ||H_part(row, col)||_F of `layer` for every row and part."""
        method = self.settings.method
        if method == Method.exact:
            return self._exact.column(layer, col, rows, parts)
        if method == Method.auto:
            return self._auto(layer, col, rows, parts, generator)
        if method == Method.xtrace:
            return self._xtrace(layer, col, parts, generator)
        column = self._column(layer, col, rows)
        return (
            dense_norms(column, parts)
            if method == Method.dense
            else self._probed(column, col, parts, generator)
        )

    def _probed(self, column: Column, col: Matrix, parts: Sequence[Part], generator: Generator) -> Norms:
        count = self.settings.num_probes
        if self.settings.method == Method.aligned:
            return aligned(column, col, parts, count, generator=generator)
        return hutchinson(column, parts, count, generator=generator)

    def _auto(
        self, layer: int, col: Matrix, rows: Sequence[Matrix], parts: Sequence[Part], generator: Generator
    ) -> Norms:
        """Take exact norms where they are cheaper than probing; the other rows of the column share their probes."""
        norms: Norms = {}
        for cheap, alike in self._by_cheap_parts(layer, col, rows, parts).items():
            probed = [part for part in parts if part not in cheap]
            if cheap:
                norms |= self._exact.column(layer, col, alike, cheap)
            if probed:
                norms |= self._auto_probed(self._column(layer, col, alike), col, alike, probed, generator)
        return {(row, part): norms[row, part] for row in rows for part in parts}

    def _auto_probed(
        self, column: Column, col: Matrix, rows: Sequence[Matrix], parts: Sequence[Part], generator: Generator
    ) -> Norms:
        count = self.allotted.get(col.value, self.settings.num_probes)
        if column.dim <= count:
            return dense_norms(column, parts)
        if col in rows:
            return aligned(column, col, parts, count, generator=generator)
        return hutchinson(column, parts, count, generator=generator)

    def _by_cheap_parts(
        self, layer: int, col: Matrix, rows: Sequence[Matrix], parts: Sequence[Part]
    ) -> dict[tuple[Part, ...], list[Matrix]]:
        """Group the rows by the parts whose exact norm is cheap."""
        groups: dict[tuple[Part, ...], list[Matrix]] = {}
        for row in rows:
            cheap = tuple(part for part in parts if self._is_cheap(Block(layer, row, col), part))
            groups.setdefault(cheap, []).append(row)
        return groups

    def _is_cheap(self, block: Block, part: Part) -> bool:
        return exactness(self.model, block, part).level == Level.cheap

    def _xtrace(self, layer: int, col: Matrix, parts: Sequence[Part], generator: Generator) -> Norms:
        column = ColumnOperator(self.problem, layer, col, [col])
        return {
            (col, part): _xtrace_norm(column, part, self.settings.num_probes, generator) for part in parts
        }

    def _column(self, layer: int, col: Matrix, rows: Sequence[Matrix]) -> Column:
        if self.settings.products == Products.curvlinops:
            return ColumnOperator(self.problem, layer, col, rows)
        return self._linearised.column(layer, col, rows)

    @cached_property
    def _linearised(self) -> LinearisedNetwork:
        return LinearisedNetwork(self.problem, self.model)

    @cached_property
    def _exact(self) -> ExactEngine:
        return ExactEngine(self.problem, self.model)


def _xtrace_norm(column: ColumnOperator, part: Part, num_probes: int, generator: Generator) -> BlockNorm:
    """Take the root of XTrace's estimate of ||A||_F^2; curvlinops gives no error with it (NaN)."""
    operator, sketch = column.square_operator(part), torch.ones(column.dim, 1, dtype=column.dtype)
    if not (operator @ sketch).any():
        return BlockNorm(0.0, 0.0, 0)
    squared = xtrace_squared_frobenius(operator, num_probes, generator=generator)
    return BlockNorm(max(squared, 0.0) ** 0.5, float("nan"), num_probes)
