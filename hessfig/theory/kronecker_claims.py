"""Statements about Kronecker structure: which blocks of an attention layer's H_o are one Kronecker product."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory import autodiff
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.matrix_formulas import identity, kron
from hessfig.theory.statement import Check, Dims, Instance, Values, attention_weights, normal

SEQUENCES = 3
_VALUE, _QUERY = "H_o(W_V, W_V)", "H_o(W_Q, W_Q)"


def _draw(dims: Dims, generator: torch.Generator) -> Instance:
    """A batch of sequences, their targets, and the weights of one layer."""
    X, Y = (normal(SEQUENCES, dims.L, dims.d_V, generator=generator) for _ in range(2))
    return Instance(X, Y, attention_weights(dims, generator))


def _block(p: Instance, matrix: Matrix) -> Tensor:
    def network(weights: Mapping[Matrix, Tensor]) -> Tensor:
        return torch.stack([autodiff.attention(X, weights) for X in p.X])

    others = {name: weight for name, weight in p.weights.items() if name != matrix}
    one = {matrix: p.weights[matrix]}
    return autodiff.dense_hessian(lambda w: network({**others, **w}), autodiff.square_loss(p.Y), one, Part.H_o)


def _points(p: Instance) -> list[AttentionPoint]:
    return [AttentionPoint(X, Y, p.weights) for X, Y in zip(p.X, p.Y, strict=True)]


def _value_oracle(p: Instance) -> Values:
    return {_VALUE: _block(p, Matrix.W_V)}


def _value_product(p: Instance) -> Values:
    """(c Sum_b M_1b^T M_1b) (x) I, c = 2 / (number of outputs)."""
    inputs = sum((one.M1.T @ one.M1 for one in _points(p)), torch.zeros(p.X.shape[-1], p.X.shape[-1]).double())
    return {_VALUE: 2 / p.Y.numel() * kron(inputs, identity(p.X.shape[-1]))}


def _value_kfac(p: Instance) -> Values:
    """The mean of x x^T over all tokens, (x) the sum of g g^T = c A_ti^2 e_k e_k^T over tokens i and outputs (t, k)."""
    tokens = p.X.flatten(0, 1)
    outputs = 2 / p.Y.numel() * sum(float(one.A.square().sum()) for one in _points(p))
    return {_VALUE: outputs * kron(tokens.T @ tokens / len(tokens), identity(p.X.shape[-1]))}


def _query_oracle(p: Instance) -> Values:
    return {_QUERY: _block(p, Matrix.W_Q)}


def _query_terms(p: Instance) -> list[tuple[Tensor, Tensor]]:
    """x_i x_i^T and (c / d_K) W_K^T M_2,i W_V W_V^T M_2,i W_K of every position of every sequence."""
    W_K, W_V = p.weights[Matrix.W_K], p.weights[Matrix.W_V]
    scale = 2 / p.Y.numel() / W_K.shape[1]
    found = []
    for one in _points(p):
        for x, second in zip(one.X, one.M2, strict=True):
            reach = W_K.T @ second @ W_V
            found.append((torch.outer(x, x), scale * reach @ reach.T))
    return found


def _query_product(p: Instance) -> Values:
    """The nearest Kronecker product, from the leading pair of singular vectors of sum vec(P_i) vec(G_i)^T."""
    left, right = (torch.stack(list(one)) for one in zip(*_query_terms(p), strict=True))
    U, S, Vh = torch.linalg.svd(left.flatten(1).T @ right.flatten(1), full_matrices=False)
    return {_QUERY: float(S[0]) * kron(U[:, 0].reshape(left.shape[1:]), Vh[0].reshape(right.shape[1:]))}


def _query_sum(p: Instance) -> Values:
    return {_QUERY: torch.stack([kron(*term) for term in _query_terms(p)]).sum(dim=0)}


KRONECKER = {
    "kron-value": Check(_draw, _value_oracle, _value_product),
    "kron-value-kfac": Check(_draw, _value_oracle, _value_kfac, _value_product),
    "kron-query": Check(_draw, _query_oracle, _query_product, _query_sum),
}
