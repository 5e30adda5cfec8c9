"""Statements about the Hessian of one self-attention layer with softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from hessfig.terms import Matrix, Part
from hessfig.theory import attention_formulas, autodiff
from hessfig.theory import attention_formulas as qk
from hessfig.theory.attention_formulas import MATRICES, AttentionPoint, literal_U
from hessfig.theory.autodiff import (
    dense_hessian,
    hessian_blocks,
    jacobian,
    second_derivative,
    square_loss,
    weight_jacobian,
)
from hessfig.theory.matrix_formulas import identity, kron, softmax_jacobian, softmax_second_derivative
from hessfig.theory.statement import Dims, Statement, Values, Verdict, attention_point, attention_weights, normal

Q, K, V = MATRICES
Pair = tuple[Matrix, Matrix]


def oracle_blocks(point: AttentionPoint, part: Part) -> dict[str, Tensor]:
    """All blocks of one part by automatic differentiation, named."""
    return named(part, hessian_blocks(_network(point), square_loss(point.Y), point.weights, part))


def named(part: Part, blocks: Mapping[Pair, Tensor]) -> dict[str, Tensor]:
    """Blocks keyed by words instead of pairs."""
    return {f"{part}({row}, {col})": block for (row, col), block in blocks.items()}


def _network(point: AttentionPoint) -> Callable[[Mapping[Matrix, Tensor]], Tensor]:
    return lambda weights: autodiff.attention(point.X, weights, point.temperature)


def _eq2_oracle(point: AttentionPoint) -> Values:
    return {"H": dense_hessian(_network(point), square_loss(point.Y), point.weights)}


def _eq2_printed(point: AttentionPoint) -> Values:
    """J^T (d2l/dF2) J + (dl/dF (x) I) d2F/dW2 with the layout of eq. 4."""
    flat, output = _flattened(point)
    loss, F = square_loss(point.Y), output(flat)
    J = jacobian(output, flat)
    outer = J.T @ (2 / F.numel() * identity(F.numel())) @ J
    gradient = grad(loss)(F).reshape(1, -1)
    return {"H": outer + kron(gradient, identity(len(flat))) @ second_derivative(output, flat)}


def _flattened(point: AttentionPoint) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    shapes = {m: w.shape for m, w in point.weights.items()}
    sizes = [shape.numel() for shape in shapes.values()]

    def output(flat: Tensor) -> Tensor:
        pieces = zip(shapes.items(), flat.split(sizes), strict=True)
        return _network(point)({m: piece.reshape(shape) for (m, shape), piece in pieces})

    return torch.cat([w.reshape(-1) for w in point.weights.values()]), output


def _lemma_b1_oracle(point: AttentionPoint) -> Values:
    T = autodiff.scores(point.X, point.weights)
    values = {f"dF/d{m}": weight_jacobian(_network(point), point.weights, m) for m in MATRICES}
    return {**values, "dA/dT": jacobian(lambda scores: torch.softmax(scores, -1), T)}


def _lemma_b1_all(point: AttentionPoint) -> dict[str, Tensor]:
    jacobians = {f"dF/d{m}": block for m, block in attention_formulas.jacobians(point).items()}
    return {**jacobians, "dA/dT": softmax_jacobian(point.A)}


def _lemma_b1_printed(point: AttentionPoint) -> Values:
    values = _lemma_b1_all(point)
    del values[f"dF/d{K}"]
    return values


def _lemma_c1_draw(dims: Dims, generator: torch.Generator) -> list[Tensor]:
    return [normal(size, size, generator=generator) for size in (2, dims.L)]


def _lemma_c1_oracle(scores: list[Tensor]) -> Values:
    second = [second_derivative(lambda T: torch.softmax(T, -1), T) for T in scores]
    return {"Remark C.1": second[0], "Lemma C.1": second[1]}


def _lemma_c1_printed(scores: list[Tensor]) -> Values:
    small, large = (torch.softmax(T, -1) for T in scores)
    return {"Remark C.1": _remark_c1(small), "Lemma C.1": softmax_second_derivative(large)}


def _remark_c1(A: Tensor) -> Tensor:
    """The 16 x 4 matrix of Remark C.1, b_ij = 1 - 2 a_ij."""
    matrix = torch.zeros(16, 4, dtype=A.dtype)
    for i, (p, q) in enumerate(A):
        b1, b2 = 1 - 2 * p, 1 - 2 * q
        first = [[(p - p**2) * b1, -p * q * b1], [-p * q * b1, -p * q * b2]]
        second = [[-p * q * b1, -p * q * b2], [-p * q * b2, (q - q**2) * b2]]
        for j, block in enumerate((first, second)):
            row, col = 8 * i + 4 * j + 2 * i, 2 * i
            matrix[row : row + 2, col : col + 2] = torch.tensor(block, dtype=A.dtype)
    return matrix


SOFTMAX = [
    Statement(
        "eq2",
        "eq. 2, p. 3",
        "H = J^T (d²l/dF²) J + (dl/dF ⊗ I) d²F/dW², the Gauss-Newton split.",
        Verdict.yes,
        attention_point,
        oracle=_eq2_oracle,
        printed=_eq2_printed,
    ),
    Statement(
        "lemB1",
        "Lemma B.1 and eq. 19, p. 16",
        "Jacobians of F in W_V and W_Q, and of the row-wise softmax.",
        Verdict.yes,
        attention_point,
        oracle=_lemma_b1_oracle,
        printed=_lemma_b1_printed,
        corrected=_lemma_b1_all,
        correction="Added: dF/dW_K = (I ⊗ W_V^T) Z_1 R_K / sqrt(d_K).",
        note="The Jacobian in W_K is left out.",
    ),
    Statement(
        "lemC1",
        "Lemma C.1, eq. 23 and Remark C.1, p. 21-22",
        "The second derivative of the row-wise softmax.",
        Verdict.yes,
        _lemma_c1_draw,
        oracle=_lemma_c1_oracle,
        printed=_lemma_c1_printed,
        note="Labelled d²F/dT² in the paper: it is d²A/dT².",
    ),
]


_PRINTED_PAIRS: list[Pair] = [(V, V), (Q, Q), (V, Q), (Q, K)]
_KEY_PAIRS: list[Pair] = [(K, K), (V, K)]


def contracted(point: AttentionPoint, part: Part, pairs: list[Pair]) -> Values:
    """The contracted forms of `theory/attention_formulas.py`."""
    return named(part, {(row, col): point.hessian(part, row, col) for row, col in pairs})


def _deep_draw(dims: Dims, generator: torch.Generator) -> tuple[Tensor, Tensor, dict[tuple[int, Matrix], Tensor]]:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    layers = {n: attention_weights(dims, generator) for n in (1, 2)}
    return X, Y, {(n, m): w for n, layer in layers.items() for m, w in layer.items()}


def _footnote_oracle(problem: tuple[Tensor, Tensor, dict[tuple[int, Matrix], Tensor]]) -> Values:
    X, Y, weights = problem
    values: dict[str, Tensor] = {}
    for part in Part:
        blocks = hessian_blocks(lambda w: autodiff.stacked(autodiff.attention, X, w), square_loss(Y), weights, part)
        values |= named(part, {(a, b): blocks[(2, a), (2, b)] for a in MATRICES for b in MATRICES})
    return values


def _footnote_printed(problem: tuple[Tensor, Tensor, dict[tuple[int, Matrix], Tensor]]) -> Values:
    X, Y, weights = problem
    entering = autodiff.attention(X, autodiff.at_index(weights, 1))
    point = AttentionPoint(entering, Y, autodiff.at_index(weights, 2))
    return {
        **named(Part.H_o, {**attention_formulas.theorem_31(point), **attention_formulas.theorem_31_keys(point)}),
        **named(Part.H_f, {**attention_formulas.theorem_32(point), **attention_formulas.theorem_32_keys(point)}),
    }


THEOREMS = [
    Statement(
        "thm31",
        "Theorem 3.1, p. 4",
        "H_o of (V,V), (Q,Q), (V,Q) and (Q,K) in terms of M_1 and Z_1.",
        Verdict.yes,
        attention_point,
        oracle=lambda p: oracle_blocks(p, Part.H_o),
        printed=lambda p: named(Part.H_o, attention_formulas.theorem_31(p)),
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
        corrected=lambda p: named(Part.H_o, attention_formulas.theorem_31_keys(p)),
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
        printed=lambda p: named(Part.H_f, attention_formulas.theorem_32(p)),
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
        corrected=lambda p: named(Part.H_f, attention_formulas.theorem_32_keys(p)),
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


TEMPERATURE = 2.0
HOT = 1e7


@dataclass(frozen=True)
class _SingleMatrix:
    X: Tensor
    Y: Tensor
    W_QK: Tensor
    W_V: Tensor


def score_split(point: AttentionPoint, part: Part, order: tuple[Matrix, Matrix] = (Q, K)) -> Tensor:
    """The split at the scores by autodiff: the network is T(W_Q, W_K), the loss all that comes after."""
    values = point.X @ point.weights[V]
    after = square_loss(point.Y)
    return dense_hessian(
        lambda weights: autodiff.scores(point.X, weights, point.temperature),
        lambda T: after(torch.softmax(T, -1) @ values),
        {matrix: point.weights[matrix] for matrix in order},
        part,
    )


def _single_draw(dims: Dims, generator: torch.Generator) -> _SingleMatrix:
    shapes = ((dims.L, dims.d_V), (dims.L, dims.d_V), (dims.d_V, dims.d_V), (dims.d_V, dims.d_V))
    X, Y, W_QK, W_V = (normal(*shape, generator=generator) for shape in shapes)
    return _SingleMatrix(X, Y, W_QK / dims.d_V, W_V)


def _single_oracle(p: _SingleMatrix) -> Values:
    hessian = dense_hessian(
        lambda w: autodiff.single_matrix_attention(p.X, {**w, V: p.W_V}), square_loss(p.Y), {Matrix.W_QK: p.W_QK}
    )
    return {"H": hessian}


def _single_printed(p: _SingleMatrix) -> Values:
    return {"H": literal_U(qk.single_matrix_point(p.X, p.Y, p.W_QK, p.W_V))}


def _remark_oracle(point: AttentionPoint) -> Values:
    """Both orders of the two weights; Remark D.1 says [W_Q; W_K]."""
    parts = (Part.H_o, Part.H_f)
    return {f"{part}, W_Q first": score_split(point, part) for part in parts} | {
        f"{part}, W_K first": score_split(point, part, (K, Q)) for part in parts
    }


def _remark_printed(point: AttentionPoint) -> Values:
    return {f"{part}, W_Q first": block for part, block in qk.printed_score_split(point).items()}


def _remark_corrected(point: AttentionPoint) -> Values:
    swapped = {f"{part}, W_K first": point.c * block for part, block in qk.printed_score_split(point).items()}
    outer, functional = qk.score_outer_product(point), qk.score_functional(point)
    return {**swapped, "H_o, W_Q first": outer, "H_f, W_Q first": functional}


def _hotter(point: AttentionPoint, temperature: float) -> AttentionPoint:
    return AttentionPoint(point.X, point.Y, point.weights, temperature)


def _temperature_oracle(point: AttentionPoint) -> Values:
    warm, ends = _hotter(point, TEMPERATURE), [_hotter(point, t) for t in (HOT, 2 * HOT)]
    norms = {part: [torch.linalg.matrix_norm(score_split(p, part)) for p in ends] for part in (Part.H_o, Part.H_f)}
    slopes = {f"slope of {part} at large t": torch.log2(n[1] / n[0]).round(decimals=3) for part, n in norms.items()}
    return {str(part): score_split(warm, part) for part in norms} | slopes


def _temperature_printed(point: AttentionPoint) -> Values:
    return {"H_o": score_split(point, Part.H_o) / TEMPERATURE**2, "H_f": score_split(point, Part.H_f) / TEMPERATURE}


def _temperature_corrected(point: AttentionPoint) -> Values:
    warm = _hotter(point, TEMPERATURE)
    slopes = {f"slope of {part} at large t": torch.tensor(slope).double() for part, slope in (("H_o", -2), ("H_f", -1))}
    return {"H_o": qk.score_outer_product(warm), "H_f": qk.score_functional(warm), **slopes}


QUERY_KEY = [
    Statement(
        "lem41",
        "Lemma 4.1, p. 9",
        "H(W_QK, W_QK) = U, U = Z_1^T (I ⊗ W_V W_V^T) Z_1 + (δ^T (I ⊗ W_V^T) ⊗ I) Z_2.",
        Verdict.no,
        _single_draw,
        oracle=_single_oracle,
        printed=_single_printed,
        corrected=lambda p: {"H": qk.single_matrix_hessian(p.X, p.Y, p.W_QK, p.W_V)},
        correction="H(W_QK, W_QK) = c U.",
        note="The factor c = 2/(L d_V) of the loss is missing.",
    ),
    Statement(
        "remD1",
        "Remark D.1, p. 26",
        "For [W_Q; W_K]: H_o^T = V^T U V/d_K, V = [R_K R_Q], and H_f^T = [[0, B^T], [B, 0]] ⊗ I/sqrt(d_K).",
        Verdict.no,
        attention_point,
        oracle=_remark_oracle,
        printed=_remark_printed,
        corrected=_remark_corrected,
        correction="c times that, for the order [W_K; W_Q]. For [W_Q; W_K]: (c/d_K) V^T U V with V = [R_Q "
        "R_K], and "
        "(c/sqrt(d_K)) [[0, B], [B^T, 0]] ⊗ I.",
        note="The factor c is missing, and the order of the blocks is the other one.",
    ),
    Statement(
        "temp",
        "Section 4.3, p. 9-10",
        "A temperature t scales H_o^T by 1/t² and H_f^T by 1/t.",
        Verdict.no,
        attention_point,
        oracle=_temperature_oracle,
        printed=_temperature_printed,
        corrected=_temperature_corrected,
        correction="Only the prefactors scale: H_o^T = (c/(d_K t²)) V^T U(A_t) V with A_t = softmax(T/t), "
        "and likewise H_f^T. The slopes "
        "-2 and -1 are reached as t → ∞.",
        note=f"A changes with t as well. Tried at t = {TEMPERATURE:g}; slopes at t = {HOT:g}, to three digits.",
    ),
]
