"""Statements about the query-key part: Lemma 4.1, Appendix D, temperature (Sections 4.2 and 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import attention_point, normal
from hessfig.theory.autodiff.oracle import dense_hessian, square_loss
from hessfig.theory.formulas.attention import query_key as qk
from hessfig.theory.formulas.attention.literal import literal_U
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.verify.statement import Dims, Statement, Values, Verdict

Q, K, V = Matrix.W_Q, Matrix.W_K, Matrix.W_V
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
        lambda weights: networks.scores(point.X, weights, point.temperature),
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
        lambda w: networks.single_matrix_attention(p.X, {**w, V: p.W_V}),
        square_loss(p.Y),
        {Matrix.W_QK: p.W_QK},
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
    norms = {
        part: [torch.linalg.matrix_norm(score_split(p, part)) for p in ends] for part in (Part.H_o, Part.H_f)
    }
    slopes = {
        f"slope of {part} at large t": torch.log2(n[1] / n[0]).round(decimals=3) for part, n in norms.items()
    }
    return {str(part): score_split(warm, part) for part in norms} | slopes


def _temperature_printed(point: AttentionPoint) -> Values:
    return {
        "H_o": score_split(point, Part.H_o) / TEMPERATURE**2,
        "H_f": score_split(point, Part.H_f) / TEMPERATURE,
    }


def _temperature_corrected(point: AttentionPoint) -> Values:
    warm = _hotter(point, TEMPERATURE)
    slopes = {
        f"slope of {part} at large t": torch.tensor(slope).double()
        for part, slope in (("H_o", -2), ("H_f", -1))
    }
    return {"H_o": qk.score_outer_product(warm), "H_f": qk.score_functional(warm), **slopes}


STATEMENTS = [
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
        note=f"A changes with t as well. Tried at t = {TEMPERATURE:g}; slopes at t = {HOT:g}, to three "
        "digits.",
    ),
]
