"""The query-key part of the Hessian: one matrix W_QK (Lemma 4.1), and the split at the scores T (Appendix D).

With V = [R_Q R_K] and the blocks in the order [W_Q; W_K], score scale s = 1/(t sqrt(d_K)) and c = 2/(L d_V):

    H_o^T = c s^2 V^T U V,     H_f^T = c s [[0, B], [B^T, 0]] (x) I_{d_K}.

NOTE(paper): Lemma 4.1 and Remark D.1 leave out c, and Remark D.1 prints V for the order [W_K; W_Q].
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.formulas.attention.literal import literal_B, literal_U
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.formulas.matrix_calculus import identity, kron


def single_matrix_hessian(
    X: Float[Tensor, "L d_V"],
    Y: Float[Tensor, "L d_V"],
    W_QK: Float[Tensor, "d_V d_V"],
    W_V: Float[Tensor, "d_V d_V"],
) -> Float[Tensor, "dd dd"]:
    """H(W_QK, W_QK) = c U for F = softmax(X W_QK X^T) X W_V (Lemma 4.1, with the factor c = 2/(L d_V))."""
    point = single_matrix_point(X, Y, W_QK, W_V)
    return point.c * point.curvature_of_scores(Part.H)


def single_matrix_point(
    X: Float[Tensor, "L d_V"],
    Y: Float[Tensor, "L d_V"],
    W_QK: Float[Tensor, "d_V d_V"],
    W_V: Float[Tensor, "d_V d_V"],
) -> AttentionPoint:
    """The same attention map written with two matrices: W_Q = sqrt(d_V) W_QK, W_K = I."""
    size = X.shape[1]
    weights = {Matrix.W_Q: math.sqrt(size) * W_QK, Matrix.W_K: identity(size), Matrix.W_V: W_V}
    return AttentionPoint(X, Y, weights)


def score_outer_product(point: AttentionPoint) -> Float[Tensor, "both both"]:
    """H_o^T of Remark D.1 in the order [W_Q; W_K]: c s^2 V^T U V."""
    selector = torch.cat([point.selectors[Matrix.W_Q], point.selectors[Matrix.W_K]], dim=1)
    return point.c * point.score_scale**2 * selector.T @ point.curvature_of_scores(Part.H) @ selector


def score_functional(point: AttentionPoint) -> Float[Tensor, "both both"]:
    """H_f^T of Remark D.1 in the order [W_Q; W_K]: c s [[0, B], [B^T, 0]] (x) I_{d_K}."""
    d_K = point.weights[Matrix.W_Q].shape[1]
    return point.c * point.score_scale * kron(_hollow(point.gradient_of_scores()), identity(d_K))


def printed_score_split(point: AttentionPoint) -> dict[Part, Float[Tensor, "both both"]]:
    """Remark D.1 as printed: no factor c, V = [R_K R_Q], [[0, B^T], [B, 0]]."""
    d_K = point.weights[Matrix.W_Q].shape[1]
    selector = torch.cat([point.selectors[Matrix.W_K], point.selectors[Matrix.W_Q]], dim=1)
    return {
        Part.H_o: selector.T @ literal_U(point) @ selector / d_K,
        Part.H_f: kron(_hollow(literal_B(point).T), identity(d_K)) / math.sqrt(d_K),
    }


def score_functional_eigenvalues(point: AttentionPoint) -> Float[Tensor, " both"]:
    """Ascending eigenvalues of H_f^T: +- c s times the singular values of B, each d_K times (Appendix D)."""
    values = point.c * point.score_scale * torch.linalg.svdvals(point.gradient_of_scores())
    d_K = point.weights[Matrix.W_Q].shape[1]
    return torch.cat([values, -values]).sort().values.repeat_interleave(d_K)


def stacked_kronecker(A: Float[Tensor, "m n"], B: Float[Tensor, "p q"]) -> Float[Tensor, "rows qn"]:
    """[I_q (x) A; B (x) I_n], the matrix of Lemma D.1."""
    return torch.cat([kron(identity(B.shape[1]), A), kron(B, identity(A.shape[1]))])


def stacked_kronecker_rank(A: Float[Tensor, "m n"], B: Float[Tensor, "p q"]) -> int:
    """q rk(A) + n rk(B) - rk(A) rk(B) (Lemma D.1)."""
    rank_a, rank_b = numerical_rank(A), numerical_rank(B)
    return B.shape[1] * rank_a + A.shape[1] * rank_b - rank_a * rank_b


def rank_bound(d_V: int, d_K: int) -> int:
    """2 d_K d_V - d_K^2 for d_K < d_V and d_V^2 otherwise: bounds rk(H_o^T) (Lemma D.2)."""
    return 2 * d_K * d_V - d_K**2 if d_K < d_V else d_V**2


def token_rank_bound(L: int, d_V: int) -> int:
    """min(L, d_V) min(L - 1, d_V): rk(U), since U acts on tokens (x) centred tokens; sharper for short
    sequences.
    """
    return min(L, d_V) * min(L - 1, d_V)


def numerical_rank(matrix: Float[Tensor, "n m"], tolerance: float = 1e-10) -> int:
    """The number of singular values above `tolerance` times the largest."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values.max()).sum())


def multiplicities(eigenvalues: Float[Tensor, " n"], tolerance: float = 1e-10) -> list[int]:
    """Sizes of the groups of equal numbers, in ascending order of the number."""
    ordered = eigenvalues.sort().values
    breaks = (ordered.diff() > tolerance * ordered.abs().max()).nonzero().flatten() + 1
    return [len(group) for group in torch.tensor_split(ordered, breaks)]


def _hollow(B: Float[Tensor, "d_V d_V"]) -> Float[Tensor, "two_d two_d"]:
    return torch.cat([torch.cat([torch.zeros_like(B), B], 1), torch.cat([B.T, torch.zeros_like(B)], 1)])
