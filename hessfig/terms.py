"""The vocabulary shared by everything: weight matrices, parts of the Hessian, blocks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """The full Hessian and the two terms of its Gauss-Newton split (eq. 2): H = H_o + H_f."""

    H_o = "H_o"
    H_f = "H_f"
    H = "H"

    @property
    def label(self) -> str:
        """Words for an axis title."""
        return _PART_LABELS[self]


class Matrix(StrEnum):
    """Weight matrices, in the order in which the parameters of a transformer are listed."""

    W_E = "W_E"
    W_pos = "W_pos"
    W_Q = "W_Q"
    W_K = "W_K"
    W_QK = "W_QK"
    W_V = "W_V"
    W_O = "W_O"
    W_in = "W_in"
    W_out = "W_out"
    W_U = "W_U"
    W = "W"

    @property
    def label(self) -> str:
        """Mathtext, without the dollar signs."""
        head, _, index = self.value.partition("_")
        return f"{head}_{{\\mathrm{{{index}}}}}" if index else head

    @property
    def has_layer(self) -> bool:
        """Whether every layer has its own (embeddings and unembedding exist once, in 'layer 0')."""
        return self not in (Matrix.W_E, Matrix.W_pos, Matrix.W_U)


@dataclass(frozen=True, order=True)
class Block:
    """One block of the Hessian: second derivatives with respect to weights `row` and `col` of `layer`.

    `layer` is 1-based; it is 0 when neither weight belongs to a layer, and the layer of the other
    one when a single weight does not. A diagonal block has row == col.
    """

    layer: int
    row: Matrix
    col: Matrix

    @property
    def is_diagonal(self) -> bool:
        return self.row == self.col

    def __str__(self) -> str:
        return f"({self.row}, {self.col}) of layer {self.layer}"


_PART_LABELS = {Part.H: "full Hessian", Part.H_o: "outer-product Hessian", Part.H_f: "functional Hessian"}
