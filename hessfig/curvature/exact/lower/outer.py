"""H_o of any weight below the last layer, by the few outputs of a sequence.

With F_b = R_b df_b/dW of sequence b (rows: scored positions times outputs, R^T R = d2l/df2) H_o = sum_b F_b^T F_b, so
||H_o(A, B)||_F^2 = sum_bc <F_b^A F_c^A^T, F_b^B F_c^B^T>. A weight that maps x_i to y_i at every position i has
F_b = sum_i (R_b df_b/dy_i) (x) x_i: only Gram matrices of inputs and of rows are needed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.exact.lower.passes import pull_to
from hessfig.curvature.exact.readout import loss_rows
from hessfig.curvature.problem import Problem
from hessfig.curvature.products.linearised.tape import Tape
from hessfig.curvature.products.linearised.weights import LinearMap
from hessfig.terms import Matrix

_ATTENTION = (Matrix.W_Q, Matrix.W_K, Matrix.W_QK, Matrix.W_V, Matrix.W_O)
_MLP = (Matrix.W_in, Matrix.W_out)

Rows = Float[Tensor, "batch rank length m"]


class OutputRows:
    """R df/dy for the weights of one layer at a time; 72 rows a sequence for five-digit addition."""

    def __init__(self, problem: Problem, tape: Tape) -> None:
        self.tape = tape
        batch, scored = tape.output.shape[:2]
        root = loss_rows(problem, tape.output)[1].expand(batch * scored, -1, -1)
        self.root: Float[Tensor, "batch scored outputs outputs"] = root.unflatten(0, (batch, scored))
        self._held: tuple[int, tuple[Matrix, ...]] = (0, ())
        self._rows: dict[str, Rows] = {}

    def outer_squared_norm(self, layer: int, row: Matrix, col: Matrix) -> float:
        """Return ||H_o(row, col)||_F^2 of `layer`."""
        first, second = self.factor(layer, row), self.factor(layer, col)
        total = 0.0
        for b in range(len(self.root)):
            gram = _gram(*first, b)
            other = gram if row == col else _gram(*second, b)
            products = (gram * other).sum(dim=(1, 2))
            total += float(2 * products.sum() - products[0])
        return total

    def mixed(self, layer: int) -> Rows:
        """Return the rows R df/dz of the mixed values z of `layer`."""
        return self._at(layer, Matrix.W_V)[f"m{layer}"]

    def factor(self, layer: int, matrix: Matrix) -> tuple[Float[Tensor, "batch length v"], Rows]:
        """Return the inputs of `matrix` and the rows R df/dy of its outputs y."""
        holder = self.tape.holders[layer, matrix]
        assert isinstance(holder, LinearMap)
        return holder.x, self._at(layer, matrix)[holder.output]

    def _at(self, layer: int, matrix: Matrix) -> dict[str, Rows]:
        """Pull the rows back to all weights of the attention or of the MLP of `layer` at once; keep the last ones."""
        group = _MLP if matrix in _MLP else _ATTENTION
        if self._held != (layer, group):
            self._held, self._rows = (layer, group), {}
            self._rows = self._pulled(self._names(layer, group))
        return self._rows

    def _pulled(self, names: list[str]) -> dict[str, Rows]:
        """Fill in place: the rows are the largest thing here, (positions times outputs) of every variable."""
        scored, outputs = self.root.shape[1:3]
        shapes = {name: self.tape.values[name].shape for name in names}
        rows = {
            name: self.root.new_zeros(batch, scored, outputs, length, m)
            for name, (batch, length, m) in shapes.items()
        }
        for position in range(scored):
            for name, piece in pull_to(self.tape, names, self._seed(position), None).items():
                if piece is not None:
                    rows[name][:, position] = piece.transpose(1, 2)
        return {name: filled.flatten(1, 2) for name, filled in rows.items()}

    def _names(self, layer: int, group: tuple[Matrix, ...]) -> list[str]:
        names = [self.tape.holders[layer, m].output for m in group if (layer, m) in self.tape.holders]
        return names if group == _MLP else [*names, f"m{layer}"]

    def _seed(self, position: int) -> Float[Tensor, "batch scored outputs outputs"]:
        seed = torch.zeros_like(self.root)
        seed[:, position] = self.root[:, position]
        return seed


def _gram(inputs: Float[Tensor, "batch length v"], rows: Rows, b: int) -> Float[Tensor, "later rank rank"]:
    """Return F_b F_c^T for every c >= b."""
    pieces = [
        _products(inputs[b], rows[b], *piece)
        for piece in zip(inputs[b:].split(16), rows[b:].split(16), strict=True)
    ]
    return torch.cat(pieces)


def _products(x: Tensor, rows: Tensor, others: Tensor, other_rows: Rows) -> Tensor:
    mixed = (others @ x.T)[:, None] @ rows
    return other_rows.flatten(2) @ mixed.flatten(2).mT
