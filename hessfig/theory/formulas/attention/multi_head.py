"""Several heads F = sum_h A^h X W_V^h, and a value weight of low rank W_V = W_O W_U (Appendix E)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff.networks import IndexedWeights, Weights, at_index
from hessfig.theory.formulas.attention.literal import jacobians
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.formulas.matrix_calculus import commutation, identity, kron

O, U = Matrix.W_O, Matrix.W_U  # noqa: E741


def head_jacobians(X: Float[Tensor, "L d_V"], weights: IndexedWeights, head: int) -> dict[Matrix, Tensor]:
    """dF/dW^h: the single-head Jacobians of Lemma B.1 with the weights of that head alone (Remark E.1)."""
    return jacobians(AttentionPoint(X, 0 * X, at_index(weights, head)))


def low_rank_blocks(
    X: Float[Tensor, "L d_V"], Y: Float[Tensor, "L d_V"], weights: Weights, part: Part
) -> dict[tuple[Matrix, Matrix], Float[Tensor, "rows cols"]]:
    """Blocks of W_O in R^{d_V x r} and W_U in R^{r x d_V}, G = M_1^T M_1, residual D (Appendix E.1):

    H_o(O,O) = c G (x) W_U W_U^T, H_o(U,U) = c W_O^T G W_O (x) I, H_o(O,U) = c G W_O (x) W_U, H_f(O,O) =
    H_f(U,U) = 0, H_f(O,U) = c (M_1^T D (x) I_r) K_{d_V,r}.
    """
    point = low_rank_point(X, Y, weights)
    W_O, W_U, c, M1 = weights[O], weights[U], point.c, point.M1
    if part == Part.H:
        outer, functional = (low_rank_blocks(X, Y, weights, p) for p in (Part.H_o, Part.H_f))
        return {pair: outer[pair] + functional[pair] for pair in outer}
    outer_product = {
        (O, O): c * kron(M1.T @ M1, W_U @ W_U.T),
        (U, U): c * kron(W_O.T @ M1.T @ M1 @ W_O, identity(W_U.shape[1])),
        (O, U): c * kron(M1.T @ M1 @ W_O, W_U),
    }
    if part == Part.H_o:
        return outer_product
    mixed = c * kron(M1.T @ point.residual, identity(W_O.shape[1])) @ commutation(W_U.shape[1], W_O.shape[1])
    return {(O, O): 0 * outer_product[O, O], (U, U): 0 * outer_product[U, U], (O, U): mixed}


def low_rank_point(X: Float[Tensor, "L d_V"], Y: Float[Tensor, "L d_V"], weights: Weights) -> AttentionPoint:
    """The same layer with the product W_V = W_O W_U: its query-key blocks are those of any W_V."""
    full = {
        Matrix.W_Q: weights[Matrix.W_Q],
        Matrix.W_K: weights[Matrix.W_K],
        Matrix.W_V: weights[O] @ weights[U],
    }
    return AttentionPoint(X, Y, full)
