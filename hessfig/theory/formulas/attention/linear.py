"""The Hessian of linear self-attention F = X W_Q W_K^T X^T X W_V / sqrt(d_K) (Remark 4.1, Table 1).

Sigma = X^T X / L and Omega = X^T (F - Y) / L. Every outer-product block is cubic in Sigma, every non-zero
functional block is linear in Omega and in Sigma; diagonal functional blocks vanish.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix
from hessfig.theory.autodiff.networks import Weights, linear_attention
from hessfig.theory.formulas.matrix_calculus import commutation, identity, kron, shuffle, vec

Pair = tuple[Matrix, Matrix]
Q, K, V = Matrix.W_Q, Matrix.W_K, Matrix.W_V


@dataclass(frozen=True)
class LinearPoint:
    """Data, weights and the two covariances."""

    X: Float[Tensor, "L d_V"]
    Y: Float[Tensor, "L d_V"]
    weights: Weights

    @property
    def Sigma(self) -> Float[Tensor, "d_V d_V"]:
        return self.X.T @ self.X / len(self.X)

    @property
    def residual(self) -> Float[Tensor, "L d_V"]:
        return linear_attention(self.X, self.weights) - self.Y

    @property
    def Omega(self) -> Float[Tensor, "d_V d_V"]:
        return self.X.T @ self.residual / len(self.X)

    @property
    def outer_scale(self) -> float:
        """2 L^2 / (d_V d_K)."""
        d_V, d_K = self.weights[Q].shape
        return 2 * len(self.X) ** 2 / (d_V * d_K)

    @property
    def functional_scale(self) -> float:
        """2 / (d_V sqrt(d_K))."""
        d_V, d_K = self.weights[Q].shape
        return 2 / (d_V * math.sqrt(d_K))


def outer_product_blocks(point: LinearPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_o of (V,V), (Q,Q), (V,Q), (Q,K) as printed in Remark 4.1."""
    W_Q, W_K, W_V = (point.weights[m] for m in (Q, K, V))
    S, c, (d_V, d_K) = point.Sigma, point.outer_scale, W_Q.shape
    chain, values = S @ W_K @ W_Q.T @ S, S @ W_V @ W_V.T @ S
    return {
        (V, V): c * kron(chain @ W_Q @ W_K.T @ S, identity(d_V)),
        (Q, Q): c * kron(S, W_K.T @ values @ W_K),
        (V, Q): c * kron(chain, W_V.T @ S @ W_K),
        (Q, K): c * kron(S @ W_Q, W_K.T @ values) @ commutation(d_K, d_V),
    }


def outer_product_key_blocks(point: LinearPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_o of (K,K) and (V,K), left out of Remark 4.1, with K = K_{d_K,d_V}."""
    W_Q, W_K, W_V = (point.weights[m] for m in (Q, K, V))
    S, c, (d_V, d_K) = point.Sigma, point.outer_scale, W_Q.shape
    permute = commutation(d_K, d_V)
    return {
        (K, K): c * permute.T @ kron(W_Q.T @ S @ W_Q, S @ W_V @ W_V.T @ S) @ permute,
        (V, K): c * kron(S @ W_K @ W_Q.T @ S @ W_Q, W_V.T @ S) @ permute,
    }


def functional_blocks(point: LinearPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_f of (V,Q) and (Q,K) as printed in Remark 4.1; the second is read as [(..) S] (x) I."""
    W_K, W_V, (d_V, d_K) = point.weights[K], point.weights[V], point.weights[Q].shape
    delta, c, S = vec(point.residual)[None, :], point.functional_scale, point.Sigma
    values = kron(delta, identity(d_V**2)) @ kron(identity(len(point.X)), shuffle(d_V))
    keys = kron(delta @ kron(point.X, W_V.T @ S), identity(d_V)) @ shuffle(d_V)
    return {
        (V, Q): c * values @ kron(point.X, S @ W_K),
        (Q, K): c * kron(keys, identity(d_K)),
    }


def functional_key_block(point: LinearPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_f of (V,K), left out of Remark 4.1: (delta^T (x) I) (I (x) S) (X W_Q (x) Sigma) K_{d_K,d_V}."""
    d_V, d_K = point.weights[Q].shape
    delta = kron(vec(point.residual)[None, :], identity(d_V**2))
    spread = kron(identity(len(point.X)), shuffle(d_V)) @ kron(point.X @ point.weights[Q], point.Sigma)
    return {(V, K): point.functional_scale * delta @ spread @ commutation(d_K, d_V)}


def contracted_functional_blocks(point: LinearPoint) -> dict[Pair, Float[Tensor, "rows cols"]]:
    """H_f in Omega and Sigma alone: (Q,K) is (2 L/(d_V sqrt(d_K))) (Omega W_V^T Sigma) (x) I_{d_K} (Table 1).

    (V,Q) and (V,K) are the second derivatives of <Omega, W_Q W_K^T Sigma W_V>, an L^2-free bilinear form.
    """
    W_Q, W_K, W_V = (point.weights[m] for m in (Q, K, V))
    c, S, Omega, d_K = len(point.X) * point.functional_scale, point.Sigma, point.Omega, W_Q.shape[1]
    permute = commutation(Omega.shape[1], Omega.shape[0])
    by_query = c * permute @ kron(Omega.T, S @ W_K)
    by_key = c * permute @ kron(Omega.T @ W_Q, S) @ commutation(d_K, len(S))
    return {(Q, K): c * kron(Omega @ W_V.T @ S, identity(d_K)), (V, Q): by_query, (V, K): by_key}
