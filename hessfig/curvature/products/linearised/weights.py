"""Steps that hold a weight: linear maps and embeddings, with the products of the Hessian's rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.products.linearised.node import Tangent, plus

Probes = Float[Tensor, "k outputs inputs"]


class LinearMap:
    """y = x W^T + b. A perturbation dW adds x dW^T to dy and ybar dW to the tangent of xbar."""

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, linear: nn.Linear) -> None:
        self.inputs, self.output, self.x, self.weight = inputs, output, x, linear.weight
        self.value = linear(x)
        self.cotangent: Tensor | None = None
        self.dw: Probes | None = None

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        from_input = None if dxs[0] is None else dxs[0] @ self.weight.T
        if self.dw is None:
            return from_input
        return plus(from_input, (self.x @ self.dw.flatten(0, 1).T).unflatten(-1, self.dw.shape[:2]))

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        if not needed[0]:
            return [None]
        first = None if dy_bar is None else dy_bar @ self.weight
        return [first if dxs is None or self.dw is None else plus(first, self._from_weight(self.dw))]

    def weight_product(self, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of Wbar: dybar^T x + ybar^T dx, summed over batch and positions."""
        product = None
        if dy_bar is not None:
            product = (dy_bar.flatten(0, 1).flatten(1).T @ self.x.flatten(0, 1)).unflatten(
                0, dy_bar.shape[2:]
            )
        if dxs is None or dxs[0] is None:
            return product
        assert self.cotangent is not None
        mixed = self.cotangent.flatten(0, 1).T @ dxs[0].flatten(0, 1).flatten(1)
        return plus(product, mixed.unflatten(1, dxs[0].shape[2:]).transpose(0, 1))

    def _from_weight(self, dw: Probes) -> Float[Tensor, "batch length k inputs"]:
        assert self.cotangent is not None
        k, outputs, inputs = dw.shape
        return (self.cotangent @ dw.transpose(0, 1).reshape(outputs, k * inputs)).unflatten(-1, (k, inputs))


class Lookup:
    """y = rows of the table W picked by `index`: token and position embeddings (linear in W)."""

    inputs: tuple[str, ...] = ()

    def __init__(self, output: str, index: Tensor, weight: Tensor) -> None:
        self.output, self.index, self.weight, self.value = output, index, weight, weight[index]
        self.cotangent: Tensor | None = None
        self.dw: Probes | None = None

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return None if self.dw is None else torch.movedim(self.dw[:, self.index], 0, 2)

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return []

    def weight_product(self, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of Wbar: the rows of dybar summed by index."""
        if dy_bar is None:
            return None
        table = dy_bar.new_zeros(len(self.weight), *dy_bar.shape[2:])
        return table.index_add(0, self.index.flatten(), dy_bar.flatten(0, 1)).transpose(0, 1)
