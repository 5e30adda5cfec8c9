"""Ground truth by automatic differentiation: dense Hessians, their Gauss-Newton split, Jacobians.

A network maps named weights to an output, a loss maps the output to a number. H_o is the Hessian of the
loss of the *linearised* network, H_f the Hessian of <dl/dF (frozen), F>; neither is found by subtraction,
so H = H_o + H_f (eq. 2) is a check and not a definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp

from hessfig.terms import Part

Key = TypeVar("Key", bound=Hashable)
Network = Callable[[Mapping[Key, Tensor]], Tensor]
Loss = Callable[[Tensor], Tensor]


def square_loss(Y: Tensor) -> Loss:
    """F -> ||F - Y||^2 / (L d_V), the paper's loss (Section 2)."""

    def loss(F: Tensor) -> Tensor:
        return (F - Y).square().mean()

    return loss


def dense_hessian(
    network: Network[Key], loss: Loss, weights: Mapping[Key, Tensor], part: Part = Part.H
) -> Float[Tensor, "p p"]:
    """The Hessian of loss(network(weights)), or a part of it, rows and columns in the order of `weights`."""
    point = torch.cat([w.reshape(-1) for w in weights.values()])

    def output(flat: Tensor) -> Tensor:
        return network(_unflatten(flat, weights))

    return hessian(_PART_FUNCTIONS[part](output, loss, point))(point)


def hessian_blocks(
    network: Network[Key], loss: Loss, weights: Mapping[Key, Tensor], part: Part = Part.H
) -> dict[tuple[Key, Key], Float[Tensor, "_ _"]]:
    """`dense_hessian` cut into blocks, one per ordered pair of weights."""
    dense = dense_hessian(network, loss, weights, part)
    slices = _slices(weights)
    return {(a, b): dense[slices[a], slices[b]] for a, b in itertools.product(weights, weights)}


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Float[Tensor, "outputs inputs"]:
    """d vec_r(function) / d vec_r(argument) in numerator layout (eq. 4)."""
    return jacrev(function)(at).reshape(-1, at.numel())


def weight_jacobian(
    network: Network[Key], weights: Mapping[Key, Tensor], key: Key
) -> Float[Tensor, "outputs inputs"]:
    """The Jacobian of a network with respect to one of its weights."""
    return jacobian(lambda weight: network({**weights, key: weight}), weights[key])


def second_derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Float[Tensor, "_ inputs"]:
    """The second derivative as a column of blocks, one Hessian per output entry (eq. 4, Fig. 2)."""
    return jacfwd(jacrev(function))(at).reshape(-1, at.numel())


def _full(output: Callable[[Tensor], Tensor], loss: Loss, point: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda flat: loss(output(flat))


def _outer_product(
    output: Callable[[Tensor], Tensor], loss: Loss, point: Tensor
) -> Callable[[Tensor], Tensor]:
    def linearised_loss(flat: Tensor) -> Tensor:
        linearised = jvp(output, (point,), (flat - point,))
        return loss(linearised[0] + linearised[1])

    return linearised_loss


def _functional(output: Callable[[Tensor], Tensor], loss: Loss, point: Tensor) -> Callable[[Tensor], Tensor]:
    residual = grad(loss)(output(point))
    return lambda flat: (residual * output(flat)).sum()


_PART_FUNCTIONS = {Part.H: _full, Part.H_o: _outer_product, Part.H_f: _functional}


def _slices(weights: Mapping[Key, Tensor]) -> dict[Key, slice]:
    ends = list(itertools.accumulate(w.numel() for w in weights.values()))
    return {key: slice(end - w.numel(), end) for (key, w), end in zip(weights.items(), ends, strict=True)}


def _unflatten(flat: Tensor, weights: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    slices = _slices(weights)
    return {key: flat[slices[key]].reshape(w.shape) for key, w in weights.items()}
