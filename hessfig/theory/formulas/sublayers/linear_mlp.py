"""Linear MLP F(x) = W^D ... W^1 x: the Hessian recalled in Section 2, and how its size depends on the data
(Table 1).
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from hessfig.theory.formulas.matrix_calculus import commutation, identity, kron


def outer_product_block(
    X: Float[Tensor, "L d_in"], weights: Mapping[int, Tensor], layer: int
) -> Float[Tensor, "p p"]:
    """After^T After (x) Before Sigma Before^T, for half the mean squared error per token (Section 2).

    After and Before are the products of the weights above and below `layer`. For ||F - Y||^2/(L d_out)
    multiply with 2/d_out.
    """
    before, after = below(weights, layer, X.shape[1]), above(weights, layer)
    Sigma = X.T @ X / len(X)
    return kron(after.T @ after, before @ Sigma @ before.T)


def functional_block(
    X: Float[Tensor, "L d_in"],
    residual: Float[Tensor, "L d_out"],
    weights: Mapping[int, Tensor],
    pair: tuple[int, int],
) -> Float[Tensor, "p q"]:
    """H_f(W^i, W^j), i > j, for half the mean squared error: linear in Omega = X^T D / L (Section 2, Table
    1).
    """
    upper, lower = pair
    between = below({k: w for k, w in weights.items() if k > lower}, upper, weights[lower].shape[0])
    Omega = X.T @ residual / len(X)
    left = between
    right = below(weights, lower, X.shape[1]) @ Omega @ above(weights, upper)
    return kron(right.T, left) @ commutation(weights[lower].shape[1], weights[lower].shape[0])


def below(weights: Mapping[int, Tensor], layer: int, width: int) -> Float[Tensor, "fan_in d_in"]:
    """W^{layer-1} ... W^1, the identity of size `width` when there is none."""
    product = identity(width)
    for number in sorted(number for number in weights if number < layer):
        product = weights[number] @ product
    return product


def above(weights: Mapping[int, Tensor], layer: int) -> Float[Tensor, "d_out fan_out"]:
    """W^D ... W^{layer+1}, the identity when `layer` is the last."""
    product = identity(weights[layer].shape[0])
    for number in sorted(number for number in weights if number > layer):
        product = weights[number] @ product
    return product
