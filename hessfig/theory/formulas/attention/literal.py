"""The blocks of Theorems 3.1 and 3.2 as they are printed, with Z_1, Z_2, R_m and S, and the key blocks left
out.

These build matrices with L d_V^3 rows: for reading and checking. `attention/softmax.py` has the contracted forms.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix
from hessfig.theory.formulas import moments
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.formulas.matrix_calculus import commutation, identity, kron, shuffle, vec

Pair = tuple[Matrix, Matrix]
Q, K, V = Matrix.W_Q, Matrix.W_K, Matrix.W_V


def jacobians(point: AttentionPoint) -> dict[Matrix, Float[Tensor, "Ld p"]]:
    """dF/dW_V and dF/dW_Q of Lemma B.1, and dF/dW_K = (I (x) W_V^T) Z_1 R_K / sqrt(d_K)."""
    X, W_K, W_V, d_K, L = _sizes(point)
    scores_to_output = kron(identity(L), W_V.T @ X.T) @ moments.softmax_jacobian(point.A)
    Z_1 = moments.z1_by_definition(point.A, X)
    return {
        V: kron(point.A @ X, identity(X.shape[1])),
        Q: scores_to_output @ kron(X, X @ W_K) / math.sqrt(d_K),
        K: kron(identity(L), W_V.T) @ Z_1 @ _right(point, K) / math.sqrt(d_K),
    }


def theorem_31(point: AttentionPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_o of (V,V), (Q,Q), (V,Q) and (Q,K), Theorem 3.1."""
    X, _, W_V, d_K, L = _sizes(point)
    c, Z_1, d_V = point.c, moments.z1_by_definition(point.A, X), X.shape[1]
    middle = Z_1.T @ kron(identity(L), W_V @ W_V.T) @ Z_1
    left = _right(point, Q).T
    return {
        (V, V): c * kron(point.M1.T @ point.M1, identity(d_V)),
        (Q, Q): c / d_K * left @ middle @ _right(point, Q),
        (V, Q): c / math.sqrt(d_K) * kron(point.M1.T, W_V.T) @ Z_1 @ _right(point, Q),
        (Q, K): c / d_K * left @ middle @ _right(point, K),
    }


def theorem_31_keys(point: AttentionPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_o of (K,K) and (V,K), which the paper leaves out: R_Q becomes R_K."""
    X, _, W_V, d_K, L = _sizes(point)
    Z_1, R_K = moments.z1_by_definition(point.A, X), _right(point, K)
    return {
        (K, K): point.c / d_K * R_K.T @ Z_1.T @ kron(identity(L), W_V @ W_V.T) @ Z_1 @ R_K,
        (V, K): point.c / math.sqrt(d_K) * kron(point.M1.T, W_V.T) @ Z_1 @ R_K,
    }


def theorem_32(point: AttentionPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_f of (V,V), (Q,Q), (V,Q) and (Q,K), Theorem 3.2; the last is read as [R (..) (..) S] (x) I."""
    X, W_K, W_V, d_K, L = _sizes(point)
    c, d_V = point.c, X.shape[1]
    Z_1, Z_2 = moments.z1_by_definition(point.A, X), moments.z2_by_definition(point.A, X)
    left = duplicated_residual(point, d_V * d_K) @ kron(identity(L), W_V.T, identity(d_V), W_K.T) @ Z_2
    values = duplicated_residual(point, d_V**2) @ kron(identity(L), shuffle(d_V)) @ Z_1
    return {
        (V, V): torch.zeros(d_V**2, d_V**2, dtype=X.dtype),
        (Q, Q): c / d_K * left @ _right(point, Q),
        (V, Q): c / math.sqrt(d_K) * values @ _right(point, Q),
        (Q, K): c / d_K * left @ _right(point, K)
        + c / math.sqrt(d_K) * kron(literal_B(point), identity(d_K)),
    }


def theorem_32_keys(point: AttentionPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_f of (K,K) and (V,K), left out in the paper: (c/d_K) R (I (x) W_V^T (x) R_K^T) Z_2 R_K and R (I (x)
    S) Z_1 R_K.
    """
    X, _, W_V, d_K, L = _sizes(point)
    d_V, R_K = X.shape[1], _right(point, K)
    Z_1, Z_2 = moments.z1_by_definition(point.A, X), moments.z2_by_definition(point.A, X)
    left = duplicated_residual(point, d_V * d_K) @ kron(identity(L), W_V.T, R_K.T)
    values = duplicated_residual(point, d_V**2) @ kron(identity(L), shuffle(d_V)) @ Z_1
    return {
        (K, K): point.c / d_K * left @ Z_2 @ R_K,
        (V, K): point.c / math.sqrt(d_K) * values @ R_K,
    }


def duplicated_residual(point: AttentionPoint, m: int) -> Float[Tensor, "m mLd"]:
    """R_m = vec_r(F - Y)^T (x) I_m (Theorem 3.2)."""
    return kron(vec(point.residual)[None, :], identity(m))


def literal_B(point: AttentionPoint) -> Float[Tensor, "d_V d_V"]:
    """B = R_{d_V} (I_L (x) W_V^T (x) I) (Z_1 (x) I) S (Remark D.1)."""
    X, _, W_V, _, L = _sizes(point)
    eye = identity(X.shape[1])
    spread = kron(identity(L), W_V.T, eye) @ kron(moments.z1_by_definition(point.A, X), eye)
    return duplicated_residual(point, X.shape[1]) @ spread @ shuffle(X.shape[1])


def literal_U(point: AttentionPoint) -> Float[Tensor, "dd dd"]:
    """U = Z_1^T (I (x) W_V W_V^T) Z_1 + (delta^T (I (x) W_V^T) (x) I) Z_2 (Remark D.1)."""
    X, _, W_V, _, L = _sizes(point)
    Z_1, Z_2 = moments.z1_by_definition(point.A, X), moments.z2_by_definition(point.A, X)
    pulled = vec(point.residual)[None, :] @ kron(identity(L), W_V.T)
    outer = Z_1.T @ kron(identity(L), W_V @ W_V.T) @ Z_1
    return outer + kron(pulled, identity(X.shape[1] ** 2)) @ Z_2


def literal_bytes(L: int, d_V: int, d_K: int) -> int:
    """Bytes of the largest matrix these forms build: I_L (x) W_V^T (x) I (x) W_K^T, or Z_2, or d2A/dT2."""
    rows = L * d_V**3
    largest_d = max(d_V, d_K)
    return 8 * max(rows * L * d_V**2 * largest_d, rows * L**4, L**6)


def _right(point: AttentionPoint, matrix: Matrix) -> Float[Tensor, "dd p"]:
    """I (x) W_K for queries, (W_Q (x) I) K_{d_K,d_V} for keys."""
    d_V, d_K = point.weights[Q].shape
    if matrix == Q:
        return kron(identity(d_V), point.weights[K])
    return kron(point.weights[Q], identity(d_V)) @ commutation(d_K, d_V)


def _sizes(point: AttentionPoint) -> tuple[Tensor, Tensor, Tensor, int, int]:
    W_K, W_V = point.weights[K], point.weights[V]
    return point.X, W_K, W_V, W_K.shape[1], len(point.X)
