"""Steps that are fixed linear maps over positions: factors, prefixes of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.products.linearised.node import Tangent
from hessfig.models.mlp.network import known, prefixes


class Scale:
    """y = c x with a fixed factor c for every position."""

    cotangent: Tensor | None = None

    def __init__(
        self, inputs: tuple[str, ...], output: str, x: Tensor, factors: Float[Tensor, "length 1"]
    ) -> None:
        self.inputs, self.output, self.value = inputs, output, x * factors
        self.factors = factors.unsqueeze(1)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return None if dxs[0] is None else dxs[0] * self.factors

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return [None if dy_bar is None else dy_bar * self.factors]


class Prefixes:
    """y_p = (x_1, ..., x_p, 0, ..., 0) side by side, for chosen positions p (the inputs of an MLP)."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, positions: slice) -> None:
        self.inputs, self.output, self.value = inputs, output, prefixes(x, positions)
        self.known = known(x, positions)[:, None, :, None]

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return None if dxs[0] is None else (dxs[0].transpose(1, 2)[:, None] * self.known).flatten(3)

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        if dy_bar is None:
            return [None]
        rows = dy_bar.unflatten(-1, (self.known.shape[2], -1)) * self.known
        return [rows.sum(dim=1).transpose(1, 2)]
