"""Steps that hold weights: linear maps and embeddings, with the products of the Hessian's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.products.linearised.multiply import times_transposed
from hessfig.curvature.products.linearised.node import Node, Tangent, plus

Probes = Float[Tensor, "k *weight"]
WEIGHT, BIAS = "weight", "bias"


@runtime_checkable
class Holder(Node, Protocol):
    """A step with parameters of its own: those of its module, under the module's names for them.

    `perturbed` holds the tangents of those that are perturbed, while they are.
    """

    parameters: dict[str, Tensor]
    perturbed: dict[str, Probes]

    def weight_product(self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of the cotangent of parameter `name`, summed over batch and positions."""


class LinearMap:
    """y = x W^T + b. A perturbation dW adds x dW^T to dy and ybar dW to the tangent of xbar; db adds itself to dy."""

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, linear: nn.Linear) -> None:
        self.inputs, self.output, self.x, self.weight = inputs, output, x, linear.weight
        self.value, self.parameters = linear(x), dict[str, Tensor](linear.named_parameters())
        self.cotangent: Tensor | None = None
        self.perturbed: dict[str, Probes] = {}

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        dy = None if dxs[0] is None else times_transposed(dxs[0], self.weight)
        dw, db = self.perturbed.get(WEIGHT), self.perturbed.get(BIAS)
        if dw is not None:
            dy = plus(dy, times_transposed(self.x, dw.flatten(0, 1)).unflatten(-1, dw.shape[:2]))
        return dy if db is None else plus(dy, db.expand(*self.x.shape[:2], *db.shape))

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        if not needed[0]:
            return [None]
        first = None if dy_bar is None else times_transposed(dy_bar, self.weight.T)
        dw = self.perturbed.get(WEIGHT)
        return [first if dxs is None or dw is None else plus(first, self._from_weight(dw))]

    def weight_product(self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of Wbar, dybar^T x + ybar^T dx, or of bbar, dybar."""
        if name == BIAS:
            return None if dy_bar is None else dy_bar.sum(dim=(0, 1))
        product = None
        if dy_bar is not None:
            product = _summed(dy_bar.flatten(2), self.x).unflatten(0, dy_bar.shape[2:])
        if dxs is None or dxs[0] is None:
            return product
        assert self.cotangent is not None
        mixed = _summed(self.cotangent, dxs[0].flatten(2))
        return plus(product, mixed.unflatten(1, dxs[0].shape[2:]).transpose(0, 1))

    def _from_weight(self, dw: Probes) -> Float[Tensor, "batch length k inputs"]:
        assert self.cotangent is not None
        k, outputs, inputs = dw.shape
        by_input = dw.permute(0, 2, 1).reshape(k * inputs, outputs)
        return times_transposed(self.cotangent, by_input).unflatten(-1, (k, inputs))


def _summed(
    left: Float[Tensor, "batch length m"], right: Float[Tensor, "batch length n"]
) -> Float[Tensor, "m n"]:
    """Return the sum of left^T right over batch and positions."""
    return times_transposed(left.flatten(0, 1).T, right.flatten(0, 1).T)


class Lookup:
    """y = rows of the table W picked by `index`: token and position embeddings (linear in W)."""

    inputs: tuple[str, ...] = ()

    def __init__(self, output: str, index: Tensor, weight: Tensor) -> None:
        self.output, self.index, self.weight, self.value = output, index, weight, weight[index]
        self.parameters = {WEIGHT: weight}
        self.cotangent: Tensor | None = None
        self.perturbed: dict[str, Probes] = {}

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        dw = self.perturbed.get(WEIGHT)
        return None if dw is None else torch.movedim(dw[:, self.index], 0, 2)

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return []

    def weight_product(self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of Wbar: the rows of dybar summed by index."""
        if dy_bar is None:
            return None
        table = dy_bar.new_zeros(len(self.weight), *dy_bar.shape[2:])
        return table.index_add(0, self.index.flatten(), dy_bar.flatten(0, 1)).transpose(0, 1)
