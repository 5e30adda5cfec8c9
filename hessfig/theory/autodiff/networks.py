"""The networks of the paper as plain functions of named weights: what automatic differentiation
differentiates.

No mask, no bias, one sequence X in R^{L x d_V} (Section 2). Keys are `Matrix` members, or (layer or head,
Matrix).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix

Weights = Mapping[Matrix, Tensor]
IndexedWeights = Mapping[tuple[int, Matrix], Tensor]


def scores(X: Float[Tensor, "L d_V"], weights: Weights, temperature: float = 1.0) -> Float[Tensor, "L L"]:
    """T = X W_Q W_K^T X^T / (t sqrt(d_K)) (Section 2; temperature t of Section 4.3)."""
    d_K = weights[Matrix.W_Q].shape[1]
    return X @ weights[Matrix.W_Q] @ weights[Matrix.W_K].T @ X.T / (temperature * math.sqrt(d_K))


def attention(
    X: Float[Tensor, "L d_V"], weights: Weights, temperature: float = 1.0
) -> Float[Tensor, "L d_V"]:
    """F = softmax(T) X W_V (eq. 1)."""
    return torch.softmax(scores(X, weights, temperature), dim=-1) @ X @ weights[Matrix.W_V]


def linear_attention(X: Float[Tensor, "L d_V"], weights: Weights) -> Float[Tensor, "L d_V"]:
    """F = T X W_V: attention with the softmax taken out (Remark 4.1)."""
    return scores(X, weights) @ X @ weights[Matrix.W_V]


def single_matrix_attention(X: Float[Tensor, "L d_V"], weights: Weights) -> Float[Tensor, "L d_V"]:
    """F = softmax(X W_QK X^T) X W_V (Section 4.2)."""
    return torch.softmax(X @ weights[Matrix.W_QK] @ X.T, dim=-1) @ X @ weights[Matrix.W_V]


def low_rank_attention(X: Float[Tensor, "L d_V"], weights: Weights) -> Float[Tensor, "L d_V"]:
    """Attention with W_V = W_O W_U, W_O in R^{d_V x r} (Appendix E.1, eq. 24)."""
    return attention(X, {**weights, Matrix.W_V: weights[Matrix.W_O] @ weights[Matrix.W_U]})


def multi_head_attention(X: Float[Tensor, "L d_V"], weights: IndexedWeights) -> Float[Tensor, "L d_V"]:
    """F = sum_h A^h X W_V^h with keys (head, Matrix) (Appendix E)."""
    heads = sorted({head for head, _ in weights})
    return torch.stack([attention(X, at_index(weights, head)) for head in heads]).sum(0)


def stacked(
    layer: Callable[[Tensor, Weights], Tensor], X: Float[Tensor, "L d_V"], weights: IndexedWeights
) -> Float[Tensor, "L d_V"]:
    """Feed the output of one layer to the next; keys are (layer, Matrix), 1-based (footnote 3, Section
    4.1).
    """
    for number in sorted({number for number, _ in weights}):
        X = layer(X, at_index(weights, number))
    return X


def linear_mlp(X: Float[Tensor, "L d_in"], weights: Mapping[int, Tensor]) -> Float[Tensor, "L d_out"]:
    """Rows x -> W^D ... W^1 x, weights keyed by layer, W^i in R^{out x in} (Section 2)."""
    for number in sorted(weights):
        X = X @ weights[number].T
    return X


def layer_norm(X: Float[Tensor, "L d"], eps: float = 1e-5) -> Float[Tensor, "L d"]:
    """Rows centred and divided by s, s^2 = variance + eps; no gain, no bias."""
    return torch.nn.functional.layer_norm(X, X.shape[-1:], eps=eps)


def feed_forward(
    X: Float[Tensor, "L d"], weights: Weights, activation: Callable[[Tensor], Tensor]
) -> Float[Tensor, "L d"]:
    """phi(X W_in) W_out, W_in in R^{d x d_ff}."""
    return activation(X @ weights[Matrix.W_in]) @ weights[Matrix.W_out]


def post_norm_block(
    X: Float[Tensor, "L d"], weights: Weights, activation: Callable[[Tensor], Tensor]
) -> Float[Tensor, "L d"]:
    """Z = LN(Y + FFN(Y)), Y = LN(X + F(X))."""
    Y = layer_norm(X + attention(X, weights))
    return layer_norm(Y + feed_forward(Y, weights, activation))


def pre_norm_block(
    X: Float[Tensor, "L d"], weights: Weights, activation: Callable[[Tensor], Tensor]
) -> Float[Tensor, "L d"]:
    """Z = X' + FFN(LN(X')), X' = X + F(LN(X))."""
    summed = X + attention(layer_norm(X), weights)
    return summed + feed_forward(layer_norm(summed), weights, activation)


def at_index(weights: IndexedWeights, index: int) -> dict[Matrix, Tensor]:
    """The weights of one layer or head."""
    return {matrix: w for (number, matrix), w in weights.items() if number == index}
