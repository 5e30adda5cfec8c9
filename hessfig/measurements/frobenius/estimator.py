"""Block norms of one problem by the configured estimator; what its columns share is computed once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Generator

from hessfig.config import EstimatorConfig, Method, ModelConfig
from hessfig.curvature.column import Column
from hessfig.curvature.curvlinops import ColumnOperator, differentiable_twice, xtrace_squared_frobenius
from hessfig.curvature.exact.support import Level, exactness
from hessfig.curvature.problem import OtherNetwork, Problem
from hessfig.curvature.routes import Engines
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.frobenius.aligned import aligned
from hessfig.measurements.frobenius.dense import dense_norms
from hessfig.measurements.frobenius.hutchinson import hutchinson
from hessfig.terms import Block, Part

Norms = dict[tuple[Block, Part], Estimate]


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
        self.engines = Engines(problem, model, settings.products)
        self.allotted = allotted or {}
        self._takes_exact = True  # until the exact engine finds that this is another network

    def column_norms(
        self, layer: int, col: str, blocks: Sequence[Block], parts: Sequence[Part], *, generator: Generator
    ) -> Norms:
        """Return ||H_part(block)||_F for every block of one column and every part."""
        method = self.settings.method
        if method == Method.exact:
            return self._exact(layer, col, blocks, parts)
        if method == Method.auto:
            return self._auto(layer, col, blocks, parts, generator)
        if method == Method.xtrace:
            return self._xtrace(blocks, parts, generator)
        column = self.engines.column(layer, col, blocks)
        if method == Method.dense:
            return _as_norms(dense_norms(column, parts))
        return self._probed(column, Block(layer, col, col), parts, generator)

    def _probed(self, column: Column, diagonal: Block, parts: Sequence[Part], generator: Generator) -> Norms:
        count = self.settings.num_probes
        if self.settings.method == Method.aligned:
            return _as_norms(aligned(column, diagonal, parts, count, generator=generator))
        return _as_norms(hutchinson(column, parts, count, generator=generator))

    def _exact(self, layer: int, col: str, blocks: Sequence[Block], parts: Sequence[Part]) -> Norms:
        norms = self.engines.exact.column(layer, col, [block.row for block in blocks], parts)
        return {
            (block, part): Estimate(norms[block.row, part], 0.0, 0, Method.exact) for block in blocks for part in parts
        }

    def _auto(
        self, layer: int, col: str, blocks: Sequence[Block], parts: Sequence[Part], generator: Generator
    ) -> Norms:
        """Take exact norms where they are cheaper than probing; the other rows of the column share their probes."""
        norms: Norms = {}
        for cheap, alike in self._by_cheap_parts(blocks, parts).items():
            if cheap:
                norms |= self._exact_if_same(layer, col, alike, cheap)
            probed = [part for part in parts if (alike[0], part) not in norms]
            if probed:
                column = self.engines.column(layer, col, alike)
                norms |= self._auto_probed(column, Block(layer, col, col), alike, probed, generator)
        return {(block, part): norms[block, part] for block in blocks for part in parts}

    def _exact_if_same(self, layer: int, col: str, blocks: Sequence[Block], parts: Sequence[Part]) -> Norms:
        try:
            return self._exact(layer, col, blocks, parts)
        except OtherNetwork as error:
            self._takes_exact = False
            warnings.warn(f"{error}; auto probes it", RuntimeWarning, stacklevel=2)
            return {}

    def _auto_probed(
        self,
        column: Column,
        diagonal: Block,
        blocks: Sequence[Block],
        parts: Sequence[Part],
        generator: Generator,
    ) -> Norms:
        count = self.allotted.get(str(diagonal.col), self.settings.num_probes)
        if column.dim <= count:
            dense = _as_norms(dense_norms(column, parts))
            return {key: replace(norm, by=Method.dense.value) for key, norm in dense.items()}
        if diagonal in blocks and len(column.shape) == 2:
            return _as_norms(aligned(column, diagonal, parts, count, generator=generator))
        return _as_norms(hutchinson(column, parts, count, generator=generator))

    def _by_cheap_parts(self, blocks: Sequence[Block], parts: Sequence[Part]) -> dict[tuple[Part, ...], list[Block]]:
        """Group the blocks by the parts whose exact norm is cheap."""
        groups: dict[tuple[Part, ...], list[Block]] = {}
        for block in blocks:
            cheap = tuple(part for part in parts if self._is_cheap(block, part))
            groups.setdefault(cheap, []).append(block)
        return groups

    def _is_cheap(self, block: Block, part: Part) -> bool:
        return self._takes_exact and exactness(self.model, block, part).level == Level.cheap

    def _xtrace(self, blocks: Sequence[Block], parts: Sequence[Part], generator: Generator) -> Norms:
        (block,) = blocks
        column = ColumnOperator(self.problem, block.layer, block.col, [block.col])
        return {(block, part): _xtrace_norm(column, part, self.settings.num_probes, generator) for part in parts}


def _as_norms(found: Mapping[tuple[object, Part], Estimate]) -> Norms:
    return {(block, part): norm for (block, part), norm in found.items() if isinstance(block, Block)}


def _xtrace_norm(column: ColumnOperator, part: Part, num_probes: int, generator: Generator) -> Estimate:
    """Take the root of XTrace's estimate of ||A||_F^2; curvlinops gives no error with it (NaN)."""

    operator, sketch = column.square_operator(part), torch.ones(column.dim, 1, dtype=column.dtype)
    with differentiable_twice():
        if not (operator @ sketch).any():
            return Estimate(0.0, 0.0, 0)
        squared = xtrace_squared_frobenius(operator, num_probes, generator=generator)
    return Estimate(max(squared, 0.0) ** 0.5, float("nan"), num_probes)
