"""The engine of exact norms: one per cell, with the data that all columns of blocks share.

No estimate is involved: each route computes ||block||_F from an identity that holds for
the structure of the network (`support.Route`). The error is that of rounding in
float64.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any

import torch

from hessfig.config.science import ModelConfig
from hessfig.curvature.column import chunks, squared_norms
from hessfig.curvature.problem import Objective
from hessfig.models.blocks import matrices_of
from hessfig.models.exact.lower_blocks import LowerScores, OutputRows
from hessfig.models.exact.scored_attention import LastLayer
from hessfig.models.exact.support import Route, check_exact, route_of
from hessfig.models.exact.top_blocks import (
    last_layer_norms,
    last_layer_traces,
    linear_mlp_norms,
    linear_mlp_traces,
)
from hessfig.models.tape.columns import LinearisedNetwork, flush_denormals
from hessfig.models.tape.steps import mixing_of
from hessfig.terms import PARTS, Block, Matrix, Part

_COLUMNS_AT_ONCE = 64

Norms = dict[tuple[str, Part], float]


class ExactEngine:
    """Exact norms of the blocks of a problem, column by column, in float64 whatever the type of the problem.

    What several blocks share is computed once: the last layer's chain, the tape, the rows R
    df/dy of one group of weights, and the curvature in the scores of one layer.

    Parameters
    ----------
    objective : Objective
        Cast to float64. With a problem in float32, subnormal numbers are flushed to zero
        during the computation, as in its products.
    model : ModelConfig
        Of a built-in network.
    """

    def __init__(self, objective: Objective, model: ModelConfig) -> None:
        self.problem = objective.cast(torch.float64)
        self.model = model
        self.given_dtype = objective.dtype
        self._held: tuple[int, LowerScores] | None = None
        self._columns: dict[tuple[int, str, bool], dict[tuple[str, Part], float]] = {}

    @torch.no_grad()
    def column(
        self, layer: int, col: str, rows: Sequence[str], parts: Sequence[Part]
    ) -> Norms:
        """Return the norms of the blocks (row, col) of `layer`, by row and part.

        Parameters
        ----------
        layer : int
            From 1; 0 for weights outside the layers.
        col, rows : str
            Names of weights.
        parts : sequence of Part
            H, H_o, H_f; H_fT only between W_Q and W_K and zero elsewhere.

        Raises
        ------
        UserError
            If a block has no exact norm of a part.
        """
        check_exact(self.model, [Block(layer, row, col) for row in rows], parts)
        norms: Norms = {}
        for row in rows:
            others = [part for part in parts if part != Part.H_fT]
            with flush_denormals(self.given_dtype):
                if others:
                    values = self._block(Block(layer, row, col), others)
                else:
                    values = {}
                if Part.H_fT in parts:
                    values[Part.H_fT] = self._at_scores(Block(layer, row, col))
            norms.update({(row, part): values[part] for part in parts})
        return norms

    @torch.no_grad()
    def traces(self, layer: int, name: str, parts: Sequence[Part]) -> dict[Part, float]:
        r"""Return the traces of the diagonal block of a weight of the last layer, or of a linear MLP.

        .. math:: \operatorname{tr} \sum_n c_n c_n^T \otimes M_n = \sum_n |c_n|^2 \operatorname{tr} M_n.
        """
        if route_of(self.model, Block(layer, name, name), Part.H_o) == Route.tokens:
            return linear_mlp_traces(self.problem, layer, parts)
        return last_layer_traces(self._last_layer, Matrix(name), parts)

    def _at_scores(self, block: Block) -> float:
        r"""Return ||H_fT||_F for pairs of W_Q and W_K of a layer, and for both together.

        T = X_q W_Q W_K^T X_k^T / c is bilinear, so that the split at the scores has the block

        .. math:: H_f^T(W_Q, W_K) = \frac{B_h}{c} \otimes I, \qquad
                  B_h = \sum_{\text{batch}} X_q^T \frac{\partial \ell}{\partial T_h} X_k

        in head h, where X_q and X_k are the inputs of queries and keys and c = t sqrt(d_head)
        (Remark D.1). It is 0 everywhere else. ||B (x) I||_F = ||B||_F sqrt(d_head); a group with
        both weights contains the block and its transpose, which is counted by `pairs`.
        """
        side = self.problem.layout.side
        rows, cols = (
            {weight.name for weight in side(block.layer, name)}
            for name in (block.row, block.col)
        )
        pairs = [
            pair
            for pair in product(rows, cols)
            if set(pair) == {Matrix.W_Q, Matrix.W_K}
        ]
        if not pairs:
            return 0.0
        tape = self._network.tape
        scores = mixing_of(tape, block.layer)
        made_from = [
            tape.values[tape.holders[block.layer, name].inputs[0]]
            for name in (Matrix.W_Q, Matrix.W_K)
        ]
        between = (
            torch.einsum(
                "bip,bhij,bjq->hpq", made_from[0], scores.score_gradient, made_from[1]
            )
            / scores.scale
        )
        return float(between.norm()) * (len(pairs) * scores.q.shape[-1]) ** 0.5

    def _block(self, block: Block, parts: Sequence[Part]) -> dict[Part, float]:
        """Return the norms of a block by its route."""
        route = route_of(self.model, block, Part.H_o)
        if route == Route.last_layer:
            return last_layer_norms(
                self._last_layer, Matrix(block.row), Matrix(block.col), parts
            )
        if route == Route.tokens:
            return linear_mlp_norms(self.problem, block.layer, parts)
        if route == Route.columns:
            return self._by_columns(block, parts)
        return self._lower(block, parts)

    def _lower(self, block: Block, parts: Sequence[Part]) -> dict[Part, float]:
        """Return the norms below the last layer: H_o from the rows of the outputs, H and H_f from the scores."""
        squares: dict[Part, float] = {}
        others = [part for part in parts if part != Part.H_o]
        if Part.H_o in parts:
            squares[Part.H_o] = self._rows.outer_squared_norm(
                block.layer, Matrix(block.row), Matrix(block.col)
            )
        if others:
            scores = self._scores(block.layer)
            squares |= scores.squared_norms(
                Matrix(block.row), self._rows.mixed(block.layer), others
            )
        return {part: max(square, 0.0) ** 0.5 for part, square in squares.items()}

    def _by_columns(self, block: Block, parts: Sequence[Part]) -> dict[Part, float]:
        """Return the norms of the block, or of its transpose, from the column of the smaller weight.

        ||H(row, col)||_F = ||H(col, row)||_F, so the weight with fewer entries may be the one
        whose unit vectors are multiplied. The result is kept for the other rows.
        """
        small, large = sorted(
            (block.row, block.col),
            key=lambda m: self.problem.weight(block.layer, m).numel(),
        )
        key = (block.layer, small, block.is_diagonal)
        if key not in self._columns:
            others = [matrix for matrix in matrices_of(self.model) if matrix != small]
            rows: Sequence[str] = [small] if block.is_diagonal else others
            self._columns[key] = self._whole_column(block.layer, small, rows)
        return {part: self._columns[key][large, part] for part in parts}

    def _whole_column(
        self, layer: int, col: str, rows: Sequence[str]
    ) -> dict[tuple[str, Part], float]:
        r"""Return the norms of all blocks (row, col), by the squares of their columns in one pass for all rows.

        .. math:: \|H(\text{row}, \text{col})\|_F^2 = \sum_i |H(\text{row}, \text{col}) \, e_i|^2,

        with `_COLUMNS_AT_ONCE` unit vectors per pass. This is exact, at one product per entry
        of `col`. Squares are kept in units, so that those of tiny products do not underflow.
        """
        column = self._network.column(max(layer, 1), col, rows)
        totals: dict[Any, float] = {(row, part): 0.0 for row in rows for part in PARTS}
        for piece in chunks(
            torch.eye(column.dim, dtype=column.dtype), column, _COLUMNS_AT_ONCE
        ):
            for key, squares in squared_norms(column, list(PARTS), piece).items():
                totals[key] += float(squares.values.sum()) * squares.unit * squares.unit
        return {key: total**0.5 for key, total in totals.items()}

    def _scores(self, layer: int) -> LowerScores:
        """Return the scores of a layer; only the last layer is kept, since their curvature is a matrix per sequence."""
        if self._held is None or self._held[0] != layer:
            self._held = (
                layer,
                LowerScores(self._network.tape, layer, self.problem.batch.scored.stop),
            )
        return self._held[1]

    @cached_property
    def _last_layer(self) -> LastLayer:
        return LastLayer(self.problem, self.model)

    @cached_property
    def _network(self) -> LinearisedNetwork:
        with torch.enable_grad():
            return LinearisedNetwork(self.problem, self.model)

    @cached_property
    def _rows(self) -> OutputRows:
        return OutputRows(self.problem, self._network.tape)
