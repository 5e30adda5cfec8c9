"""Columns of blocks on the tape: one pass up and two down serve H_o and H_f of every row, for all probes at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config import ModelConfig
from hessfig.curvature.problem import Problem
from hessfig.curvature.products.linearised.network import build_tape
from hessfig.curvature.products.linearised.node import Tangent
from hessfig.curvature.products.linearised.tape import Tape, Weight, zeros_like_weight
from hessfig.curvature.products.linearised.weights import Probes
from hessfig.tasks.losses import output_gradient
from hessfig.terms import Matrix, Part


class LinearisedNetwork:
    """The tape of a problem and the Hessian of its loss in the outputs, shared by every column."""

    def __init__(self, problem: Problem, model: ModelConfig) -> None:
        with torch.no_grad():
            self.tape: Tape = build_tape(problem.network, problem.batch, model)
        self.problem, self.dtype = problem, problem.dtype
        self.tape.record(output_gradient(problem.loss, self.tape.output, problem.batch.targets))

    def column(self, layer: int, col: Matrix, rows: Sequence[Matrix]) -> LinearisedColumn:
        """Return the blocks (row, col) of `layer`."""
        return LinearisedColumn(self, layer, col, rows)

    def output_hessian(
        self, df: Float[Tensor, "batch scored k vocab"]
    ) -> Float[Tensor, "batch scored k vocab"]:
        """Multiply by d2l/df2, which couples the outputs of one position only."""
        return self.problem.loss.hessian_product(self.tape.output, df)  # type: ignore[operator]


class LinearisedColumn:
    """The blocks (row, col) of one layer as operators on vectors in col's space."""

    def __init__(self, network: LinearisedNetwork, layer: int, col: Matrix, rows: Sequence[Matrix]) -> None:
        self.network, self.rows = network, {row: _weight(layer, row) for row in rows}
        self.col = _weight(layer, col)
        self.weight = network.tape.holders[self.col].weight
        self.dim, self.shape, self.dtype = self.weight.numel(), self.weight.shape, network.dtype

    @property
    def bytes_per_probe(self) -> int:
        """Memory of one probe's tangents, counted from above: every variable up and twice down."""
        entries = sum(value.numel() for value in self.network.tape.values.values())
        return 3 * entries * self.weight.element_size()

    @torch.no_grad()
    def split_matmat(self, probes: Float[Tensor, "dim k"]) -> dict[tuple[Matrix, Part], Float[Tensor, "n k"]]:
        """Return H_o V and H_f V of every row, for all columns of `probes`."""
        dw = probes.to(self.weight.device).T.unflatten(1, self.weight.shape)
        tape, rows = self.network.tape, list(self.rows.values())
        tangents = tape.push({self.col: dw})
        df = tangents[tape.nodes[-1].output]
        df_bar: Tangent = None if df is None else self.network.output_hessian(df)
        outer = tape.pull_back(df_bar, None, rows)
        functional = tape.pull_back(None, tangents, rows)
        tape.release([self.col])
        products = {Part.H_o: outer, Part.H_f: functional}
        return {
            (row, part): self._flat(found[at], at, len(dw))
            for row, at in self.rows.items()
            for part, found in products.items()
        }

    def _flat(self, product: Probes | None, row: Weight, k: int) -> Float[Tensor, "n k"]:
        filled = zeros_like_weight(self.network.tape.holders[row].weight, k) if product is None else product
        return filled.flatten(1).T


def _weight(layer: int, matrix: Matrix) -> Weight:
    return (layer if matrix.has_layer else 0, matrix)
