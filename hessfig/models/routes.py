"""Selects the route for the products of a column of blocks, and builds whole Hessians from columns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from hessfig.config.enums import Products as Choice
from hessfig.config.science import ModelConfig
from hessfig.curvature.batched import BatchedColumn, SmallNetwork
from hessfig.curvature.column import Column, DecayedColumn
from hessfig.curvature.differences import DifferencedColumn
from hessfig.curvature.problem import Layered, Objective, OtherNetwork
from hessfig.terms import Block

if TYPE_CHECKING:
    from hessfig.curvature.large.own_column import LargeNetwork
    from hessfig.models.exact.exact_blocks import ExactEngine
    from hessfig.models.tape.columns import LinearisedNetwork


# From this number of parameters on, products of a column take half the time in float32.
LARGE = 2**14


class Engines:
    """The engines of one problem, each built on first use.

    Engines for networks of the package are imported only then, so that networks of
    users never need them.
    """

    def __init__(
        self, objective: Objective, model: ModelConfig, products: Choice
    ) -> None:
        self.problem = objective
        self.model = model
        self.products = products

    @cached_property
    def exact(self) -> ExactEngine:
        """The exact engine, for networks that it supports."""
        from hessfig.models.exact.exact_blocks import ExactEngine

        return ExactEngine(self.problem, self.model)

    def column(self, layer: int, col: str, blocks: Sequence[Block]) -> Column:
        """Return the blocks of one column as operators, by block, including weight decay."""
        column = self._column(layer, col, blocks)
        decay = self.problem.decay
        if decay:
            return DecayedColumn(column, self.problem, layer, col, _rows(blocks))
        return column

    def _column(self, layer: int, col: str, blocks: Sequence[Block]) -> Column:
        rows = _rows(blocks)
        witness = self.problem.witness
        if witness:
            witness.check_products(by_differences=self.products == Choice.differences)
        if self.products == Choice.differences:
            return DifferencedColumn(self.problem, layer, col, rows)
        if self.products == Choice.linearised:
            if SmallNetwork.can_take(self.problem):
                return BatchedColumn(self._small, self.problem, layer, col, rows)
            from hessfig.curvature.large.own_column import LargeNetwork, OwnColumn

            if LargeNetwork.can_take(self.problem):
                return OwnColumn(self._large, self.problem, layer, col, rows)
            network = self._linearised
            sides = [(layer, col), *rows.values()]
            if network is not None and all(network.holds(*side) for side in sides):
                return network.column(layer, col, rows)
        from hessfig.curvature.curvlinops import ColumnOperator

        return ColumnOperator(self.problem, layer, col, rows)

    def low_precision(
        self, column: Column, layer: int, col: str, blocks: Sequence[Block]
    ) -> Column | None:
        """Return the blocks of a `column` of these engines with products in float32.

        None if float32 is not much faster: it takes half the time on the tape for
        columns of at least LARGE parameters (smaller columns spend most time outside
        matrix products), if products are in float64.
        """
        if (
            not isinstance(self.problem.network, Layered)
            or column.dtype != torch.float64
        ):
            return None
        from hessfig.models.tape.columns import LinearisedColumn

        if not isinstance(column, LinearisedColumn) or column.dim < LARGE:
            return None
        return self._narrow.column(layer, col, _rows(blocks))

    @cached_property
    def _small(self) -> SmallNetwork:
        return SmallNetwork(self.problem)

    @cached_property
    def _large(self) -> LargeNetwork:
        from hessfig.curvature.large.own_column import LargeNetwork

        return LargeNetwork.of(self.problem)

    @cached_property
    def _narrow(self) -> LinearisedNetwork:
        from hessfig.models.tape.columns import LinearisedNetwork

        return LinearisedNetwork(self.problem, self.model, products=torch.float32)

    @cached_property
    def _linearised(self) -> LinearisedNetwork | None:
        """The tape; None for networks without one, for several batches, or (with a warning) if outputs differ."""
        if self.problem.more or not isinstance(self.problem.network, Layered):
            return None
        from hessfig.models.tape.columns import LinearisedNetwork
        from hessfig.models.tape.recording import can_build

        if not can_build(self.problem.network, self.model):
            return None
        try:
            return LinearisedNetwork(self.problem, self.model)
        except OtherNetwork as error:
            warnings.warn(f"{error}, which is used here", RuntimeWarning, stacklevel=2)
            return None


def _rows(blocks: Sequence[Block]) -> dict[Block, tuple[int, str]]:
    return {block: (block.row_layer, str(block.row)) for block in blocks}
