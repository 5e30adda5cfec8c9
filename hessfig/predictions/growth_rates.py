"""Growth rates: how the norm of every Hessian block scales with sigma, by counting powers of the input.

The one place where predictions live; figures, slopes and `verify` take them from here. As sigma -> 0 the
output of a network without LayerNorm is a sum of monomials in the input and the weights. Differentiating a
monomial with respect to a weight keeps its power of the input, so that with

    e(A)    = the lowest input power among the monomials that hold A         (df/dA ~ sigma^e(A))
    e(A, B) = the lowest input power among those that hold both A and B      (d2f/dAdB ~ sigma^e(A, B))

H_o(A, B) ~ sigma^(e(A) + e(B)) and H_f(A, B) ~ sigma^(e(A, B) + r), where the loss gradient is ~ sigma^r
(r = 0 unless the targets are zero). The larger term rules: H has the smaller exponent of the two. A block
whose weights share no monomial has H_f identically zero. This gives eq. 5, Remark 4.1, Table 1, the 2 * 3^D
of Section 4.1, and what the paper leaves out. A softmax counts as 1 + s + s^2 + ... in its scores s, a ReLU
as its (piecewise constant) slope. Scale factors - temperature, heads, widths - change no exponent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from hessfig.predictions.architecture import MLP, Architecture, Attention, Kind, Norm, QueryKey
from hessfig.terms import Block, Matrix, Part

Powers = tuple[int, int]


@dataclass(frozen=True)
class Monomials:
    """The lowest power of the input for every pair of powers of a block's two weights."""

    table: dict[Powers, int]

    @classmethod
    def one(cls) -> Monomials:
        """Return the constant."""
        return cls({(0, 0): 0})

    @classmethod
    def input(cls) -> Monomials:
        """Return one power of the input."""
        return cls({(0, 0): 1})

    @classmethod
    def weight(cls, block: Block, matrix: Matrix, layer: int) -> Monomials:
        """Return `matrix` of `layer` (0: none), marked if it is the block's row or off-diagonal column."""
        here = layer in (0, block.layer)
        is_row = here and matrix == block.row
        is_col = here and matrix == block.col and not block.is_diagonal
        return cls({(int(is_row), int(is_col)): 0})

    def __add__(self, other: Monomials) -> Monomials:
        table = dict(self.table)
        for key, power in other.table.items():
            table[key] = min(table.get(key, power), power)
        return Monomials(table)

    def __mul__(self, other: Monomials) -> Monomials:
        table: dict[Powers, int] = {}
        for (row, col), power in self.table.items():
            for (other_row, other_col), other_power in other.table.items():
                key = (min(row + other_row, 2), min(col + other_col, 2))
                table[key] = min(table.get(key, power + other_power), power + other_power)
        return Monomials(table)

    def lowest(self, *, row: int = 0, col: int = 0) -> float:
        """Return the lowest input power among monomials with at least these powers of the weights, or inf."""
        powers = (power for (r, c), power in self.table.items() if r >= row and c >= col)
        return float(min(powers, default=math.inf))


class Prediction(StrEnum):
    """What theory says about a block: a power of sigma, identically zero, or nothing."""

    exponent = "exponent"
    structural_zero = "structural zero"
    unknown = "unknown"


class Regime(StrEnum):
    """Where an exponent holds."""

    small_sigma = "sigma -> 0"
    every_sigma = "every sigma"


@dataclass(frozen=True)
class GrowthRate:
    """||block||_F ~ sigma^exponent in `regime`; `exponent` is None unless `prediction` is one.

    `reference` says where the claim stands, or why there is none.
    """

    prediction: Prediction
    exponent: float | None
    regime: Regime
    reference: str


@cache
def growth_rate(block: Block, part: Part, architecture: Architecture) -> GrowthRate:
    """Return the predicted growth of ||part(block)||_F with sigma (the rule: see the module's docstring).

    Unknown for networks, names and pairs that the rule was not written for: a wrong theorem is worse than none.
    """
    reason = _beyond_the_rule(block, architecture)
    if reason:
        return _unknown(reason)
    if part == Part.H_f and block.row == block.col == Matrix.W_U:
        return GrowthRate(Prediction.structural_zero, None, Regime.every_sigma, "the output is affine in W_U")
    if architecture.norm != Norm.none:
        return _unknown(f"with {architecture.norm}-LN the output is not a power series in sigma")
    counted = _counted(block, part, architecture)
    is_power = counted.prediction == Prediction.exponent
    return _unknown(architecture.no_power) if is_power and architecture.no_power else counted


def _beyond_the_rule(block: Block, architecture: Architecture) -> str:
    """Return why the rule says nothing about this block, or nothing."""
    if not architecture.is_counted:
        return f"nobody has counted the powers of model.kind={architecture.kind}"
    strange = [name for name in (block.row, block.col) if name not in list(Matrix)]
    if strange:
        return f"{strange[0]} is no single weight of the paper's networks"
    return "the two weights belong to different layers" if block.is_across else ""


def _unknown(reason: str) -> GrowthRate:
    return GrowthRate(Prediction.unknown, None, Regime.small_sigma, f"no prediction: {reason}")


def _counted(block: Block, part: Part, architecture: Architecture) -> GrowthRate:
    output = _output(block, architecture)
    diagonal = block.is_diagonal
    first = output.lowest(row=1) + (output.lowest(row=1) if diagonal else output.lowest(col=1))
    second = output.lowest(row=2) if diagonal else output.lowest(row=1, col=1)
    taken = _embeddings(block.row, block.col)
    gradient = output.lowest() if architecture.zero_targets else 0
    outer, functional = first - taken, second - taken + gradient
    exponent = {Part.H_o: outer, Part.H_f: functional, Part.H: min(outer, functional)}[part]
    if exponent == math.inf:
        return GrowthRate(Prediction.structural_zero, None, Regime.every_sigma, _zero_reference(block, architecture))
    outer_only = part == Part.H_o or functional == math.inf
    exact = architecture.is_homogeneous and architecture.square_loss and outer_only
    regime = Regime.every_sigma if exact else Regime.small_sigma
    return GrowthRate(Prediction.exponent, float(exponent), regime, _reference(block, part, architecture))


def _embeddings(*names: str) -> int:
    """Count the weights of order sigma themselves: a derivative with respect to one takes a power away."""
    return sum(name in (Matrix.W_E, Matrix.W_pos) for name in names)


def _output(block: Block, architecture: Architecture) -> Monomials:
    """Return the monomials of the network's output, with the powers of the block's two weights marked."""
    if architecture.kind == Kind.self_attention:
        return _attention(Monomials.input(), block, 1, architecture)
    hidden = (Monomials.weight(block, Matrix.W_E, 0) + Monomials.weight(block, Matrix.W_pos, 0)) * Monomials.input()
    for layer in range(1, architecture.num_layers + 1):
        hidden = _layer(hidden, block, layer, architecture)
    return hidden * Monomials.weight(block, Matrix.W_U, 0)


def _layer(hidden: Monomials, block: Block, layer: int, architecture: Architecture) -> Monomials:
    if architecture.kind == Kind.linear_mlp:
        return hidden * Monomials.weight(block, Matrix.W, layer)
    attended = _attention(hidden, block, layer, architecture) * Monomials.weight(block, Matrix.W_O, layer)
    residual = hidden + attended if architecture.attention_skip else attended
    if architecture.mlp == MLP.none:
        return residual
    inner = residual * Monomials.weight(block, Matrix.W_in, layer)
    # gelu(z) = z/2 + z^2/sqrt(2 pi) + O(z^4)
    activated = inner + inner * inner if architecture.mlp == MLP.gelu else inner
    return residual + activated * Monomials.weight(block, Matrix.W_out, layer)


def _attention(hidden: Monomials, block: Block, layer: int, architecture: Architecture) -> Monomials:
    scores = hidden * hidden * _query_key(block, layer, architecture)
    mixed = scores if architecture.attention == Attention.linear else Monomials.one() + scores + scores * scores
    return mixed * hidden * Monomials.weight(block, Matrix.W_V, layer)


def _query_key(block: Block, layer: int, architecture: Architecture) -> Monomials:
    if architecture.query_key == QueryKey.single:
        return Monomials.weight(block, Matrix.W_QK, layer)
    return Monomials.weight(block, Matrix.W_Q, layer) * Monomials.weight(block, Matrix.W_K, layer)


_ATTENTION_WEIGHTS = frozenset({Matrix.W_Q, Matrix.W_K, Matrix.W_QK, Matrix.W_V})
_COUNTING = "power counting (not in the paper)"


def _reference(block: Block, part: Part, architecture: Architecture) -> str:
    """Say where the paper makes the claim, if it does."""
    last = block.layer == architecture.num_layers
    if architecture.kind == Kind.linear_mlp:
        return "Section 4.1, Table 1 (MLP)"
    if not {block.row, block.col} <= _ATTENTION_WEIGHTS or architecture.zero_targets or architecture.mlp == MLP.gelu:
        return _COUNTING
    if architecture.attention == Attention.linear:
        return "Remark 4.1, Section 4.1 (2 * 3^D)" if last or part == Part.H_o else _COUNTING
    if last:
        return "eq. 5"
    figured = block.is_diagonal and (part != Part.H_f or block.row == Matrix.W_Q)
    return "eq. 5, Figure 6" if figured else _COUNTING


def _zero_reference(block: Block, architecture: Architecture) -> str:
    if architecture.kind == Kind.linear_mlp:
        return "Section 2: a linear MLP has a block-hollow H_f"
    if block.row in (Matrix.W_V, Matrix.W_O):
        return "Theorem 3.2: the output is (piecewise) affine in this weight"
    if architecture.attention == Attention.linear and block.row in _ATTENTION_WEIGHTS:
        return "Remark 4.1: linear attention has a block-hollow H_f"
    return "no term of the output holds both weights"
