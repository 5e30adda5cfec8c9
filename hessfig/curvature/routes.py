"""Whose products a problem gets: those of its tape or of its head, where it has one, else curvlinops'."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from hessfig.config import ModelConfig, Products
from hessfig.curvature.column import Column
from hessfig.curvature.problem import Problem
from hessfig.curvature.products.curvlinops import ColumnOperator
from hessfig.curvature.products.headed.column import HeadedColumn, can_take
from hessfig.curvature.same_network import OtherNetwork
from hessfig.models.layered import Layered
from hessfig.terms import Block

if TYPE_CHECKING:
    from hessfig.curvature.exact.engine import ExactEngine
    from hessfig.curvature.products.linearised.column import LinearisedNetwork


class Engines:
    """The engines of one problem, each built once, when it is first asked for.

    Those that rebuild networks of the package import TransformerLens (seconds); networks of others never need them.
    """

    def __init__(self, problem: Problem, model: ModelConfig, products: Products) -> None:
        self.problem, self.model, self.products = problem, model, products

    @cached_property
    def exact(self) -> ExactEngine:
        """The exact engine, for networks it knows."""
        from hessfig.curvature.exact.engine import ExactEngine

        return ExactEngine(self.problem, self.model)

    def column(self, layer: int, col: str, blocks: Sequence[Block]) -> Column:
        """Return the blocks of one column as operators, keyed by block."""
        rows = {block: (block.row_layer, str(block.row)) for block in blocks}
        if self.products == Products.linearised and can_take(self.problem):
            return HeadedColumn(self.problem, layer, col, rows)
        network = self._linearised if self.products == Products.linearised else None
        if network is None or not all(network.holds(*side) for side in [(layer, col), *rows.values()]):
            return ColumnOperator(self.problem, layer, col, rows)
        return network.column(layer, col, rows)

    @cached_property
    def _linearised(self) -> LinearisedNetwork | None:
        """The tape; None for a network that has none, or that computes something else (which is said)."""
        if not isinstance(self.problem.network, Layered):
            return None
        from hessfig.curvature.products.linearised.column import LinearisedNetwork
        from hessfig.curvature.products.linearised.network import can_build

        if not can_build(self.problem.network):
            return None
        try:
            return LinearisedNetwork(self.problem, self.model)
        except OtherNetwork as error:
            warnings.warn(f"{error}; taken here", RuntimeWarning, stacklevel=2)
            return None
