"""The feed-forward sublayer G = phi(Y W_in) W_out: Jacobians, and second derivatives paired with an output
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix
from hessfig.theory.autodiff.networks import Weights
from hessfig.theory.formulas.matrix_calculus import identity, kron, vec

Pair = tuple[Matrix, Matrix]
IN, OUT = Matrix.W_in, Matrix.W_out


@dataclass(frozen=True)
class Activation:
    """An entrywise function with its first two derivatives (ReLU: almost everywhere)."""

    name: str
    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor], Tensor]


def _normal_density(h: Tensor) -> Tensor:
    return torch.exp(-h.square() / 2) / math.sqrt(2 * math.pi)


def _gelu_slope(h: Tensor) -> Tensor:
    return (1 + torch.erf(h / math.sqrt(2))) / 2 + h * _normal_density(h)


def _gelu_curvature(h: Tensor) -> Tensor:
    return (2 - h.square()) * _normal_density(h)


RELU = Activation("relu", torch.relu, lambda h: (h > 0).to(h.dtype), torch.zeros_like)
GELU = Activation("gelu", torch.nn.functional.gelu, _gelu_slope, _gelu_curvature)


def weight_jacobians(
    Y: Float[Tensor, "L d"], weights: Weights, activation: Activation
) -> dict[Matrix, Float[Tensor, "Ld p"]]:
    """dG/dW_in = (I (x) W_out^T) diag(vec phi') (Y (x) I) and dG/dW_out = phi(Y W_in) (x) I."""
    hidden = Y @ weights[IN]
    return {
        IN: _slope_map(hidden, weights, activation) @ kron(Y, identity(hidden.shape[1])),
        OUT: kron(activation.function(hidden), identity(Y.shape[1])),
    }


def input_jacobian(
    Y: Float[Tensor, "L d"], weights: Weights, activation: Activation
) -> Float[Tensor, "Ld Ld"]:
    """dG/dY = (I (x) W_out^T) diag(vec phi') (I (x) W_in^T)."""
    hidden = Y @ weights[IN]
    return _slope_map(hidden, weights, activation) @ kron(identity(len(Y)), weights[IN].T)


def paired_second_derivatives(
    Y: Float[Tensor, "L d"], weights: Weights, activation: Activation, gradient: Float[Tensor, "L d"]
) -> dict[Pair, Float[Tensor, "p q"]]:
    """sum_i g_i . d2 G_i for the pairs of W_in and W_out, g the gradient at the output.

    (in,in): sum_i y_i y_i^T (x) diag(phi''(h_i) o W_out g_i), zero for ReLU; (in,out): sum_i y_i (x)
    diag(phi'(h_i)) (x) g_i^T; (out,out): zero.
    """
    hidden = Y @ weights[IN]
    d, d_ff = weights[IN].shape
    bend = activation.curvature(hidden) * (gradient @ weights[OUT].T)
    eye = identity(d_ff)
    return {
        (IN, IN): torch.einsum("ia,ib,ik,kl->akbl", Y, Y, bend, eye).reshape(d * d_ff, d * d_ff),
        (IN, OUT): torch.einsum("ia,ik,kl,ib->aklb", Y, activation.slope(hidden), eye, gradient).reshape(
            d * d_ff, d_ff * d
        ),
        (OUT, OUT): torch.zeros(d_ff * d, d_ff * d, dtype=Y.dtype),
    }


def _slope_map(
    hidden: Float[Tensor, "L d_ff"], weights: Weights, activation: Activation
) -> Float[Tensor, "Ld Lf"]:
    return kron(identity(len(hidden)), weights[OUT].T) @ torch.diag(vec(activation.slope(hidden)))
