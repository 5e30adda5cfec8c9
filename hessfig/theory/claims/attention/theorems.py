"""Theorems 3.1 and 3.2: every block of the Hessian of one softmax attention layer, literal and contracted."""

from __future__ import annotations

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import attention_point, attention_weights, normal
from hessfig.theory.autodiff.oracle import hessian_blocks, square_loss
from hessfig.theory.claims.attention.softmax import Pair, named, oracle_blocks
from hessfig.theory.formulas.attention import literal
from hessfig.theory.formulas.attention.softmax import MATRICES, AttentionPoint
from hessfig.theory.verify.statement import Dims, Statement, Values, Verdict

Q, K, V = MATRICES
_PRINTED_PAIRS: list[Pair] = [(V, V), (Q, Q), (V, Q), (Q, K)]
_KEY_PAIRS: list[Pair] = [(K, K), (V, K)]


def contracted(point: AttentionPoint, part: Part, pairs: list[Pair]) -> Values:
    """The contracted forms of `attention.py`."""
    return named(part, {(row, col): point.hessian(part, row, col) for row, col in pairs})


def _deep_draw(
    dims: Dims, generator: torch.Generator
) -> tuple[Tensor, Tensor, dict[tuple[int, Matrix], Tensor]]:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    layers = {n: attention_weights(dims, generator) for n in (1, 2)}
    return X, Y, {(n, m): w for n, layer in layers.items() for m, w in layer.items()}


def _footnote_oracle(problem: tuple[Tensor, Tensor, dict[tuple[int, Matrix], Tensor]]) -> Values:
    X, Y, weights = problem
    values: dict[str, Tensor] = {}
    for part in Part:
        blocks = hessian_blocks(
            lambda w: networks.stacked(networks.attention, X, w), square_loss(Y), weights, part
        )
        values |= named(part, {(a, b): blocks[(2, a), (2, b)] for a in MATRICES for b in MATRICES})
    return values


def _footnote_printed(problem: tuple[Tensor, Tensor, dict[tuple[int, Matrix], Tensor]]) -> Values:
    X, Y, weights = problem
    entering = networks.attention(X, networks.at_index(weights, 1))
    point = AttentionPoint(entering, Y, networks.at_index(weights, 2))
    return {
        **named(Part.H_o, {**literal.theorem_31(point), **literal.theorem_31_keys(point)}),
        **named(Part.H_f, {**literal.theorem_32(point), **literal.theorem_32_keys(point)}),
    }


STATEMENTS = [
    Statement(
        "thm31",
        "Theorem 3.1, p. 4",
        "H_o of (V,V), (Q,Q), (V,Q) and (Q,K) in terms of M_1 and Z_1.",
        Verdict.yes,
        attention_point,
        oracle=lambda p: oracle_blocks(p, Part.H_o),
        printed=lambda p: named(Part.H_o, literal.theorem_31(p)),
        corrected=lambda p: contracted(p, Part.H_o, _PRINTED_PAIRS),
        correction="Contracted, with no matrix larger than d_V² x d_V²: (c/d_K) R^T U_o R, U_o = Σ_i x_i "
        "x_i^T ⊗ M_2,i W_V W_V^T M_2,i, "
        "and (c/sqrt(d_K)) (Σ_i m_i x_i^T ⊗ W_V^T M_2,i) R_Q.",
        note="The third line of the proof has a spurious 1/sqrt(d_K), and T_1 for M_1.",
    ),
    Statement(
        "thm31-K",
        "left out of Theorem 3.1, p. 4",
        "H_o of (K,K) and (V,K).",
        Verdict.left_out,
        attention_point,
        oracle=lambda p: oracle_blocks(p, Part.H_o),
        printed=None,
        corrected=lambda p: named(Part.H_o, literal.theorem_31_keys(p)),
        correction="(c/d_K) R_K^T Z_1^T (I ⊗ W_V W_V^T) Z_1 R_K and (c/sqrt(d_K)) (M_1^T ⊗ W_V^T) Z_1 R_K.",
        note="The paper calls them essentially symmetric: R_Q becomes R_K.",
    ),
    Statement(
        "thm32",
        "Theorem 3.2, p. 5",
        "H_f of (V,V) = 0, (Q,Q), (V,Q) and (Q,K) in terms of Z_1, Z_2, R_m and S.",
        Verdict.yes,
        attention_point,
        oracle=lambda p: oracle_blocks(p, Part.H_f),
        printed=lambda p: named(Part.H_f, literal.theorem_32(p)),
        corrected=lambda p: contracted(p, Part.H_f, _PRINTED_PAIRS),
        correction="Contracted: (c/d_K) R^T U_f R, U_f = Σ_i x_i x_i^T ⊗ Σ_j A_ij (z_ij·W_V d_i) z_ij "
        "z_ij^T; (Q,K) adds "
        "(c/sqrt(d_K)) B ⊗ I, B = Σ_i x_i (M_2,i W_V d_i)^T.",
        note="The second term of (Q,K) has to be read as [R (..)(..) S] ⊗ I.",
    ),
    Statement(
        "thm32-K",
        "left out of Theorem 3.2, p. 5",
        "H_f of (K,K) and (V,K).",
        Verdict.left_out,
        attention_point,
        oracle=lambda p: oracle_blocks(p, Part.H_f),
        printed=None,
        corrected=lambda p: named(Part.H_f, literal.theorem_32_keys(p)),
        correction="(c/d_K) R_{d_V d_K} (I ⊗ W_V^T ⊗ R_K^T) Z_2 R_K and (c/sqrt(d_K)) R_{d_V²} (I ⊗ S) Z_1 "
        "R_K, R_m the paper's "
        "duplicated residual.",
    ),
    Statement(
        "foot3",
        "footnote 3, p. 10",
        "The theorems hold for the last layer of a deep attention network.",
        Verdict.yes,
        _deep_draw,
        oracle=_footnote_oracle,
        printed=_footnote_printed,
        note="Two layers, all blocks with the keys'; X becomes the output of the layer below.",
    ),
]
