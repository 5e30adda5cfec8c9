"""Steps that are fixed linear maps over positions: factors, prefixes of a sequence, means over tokens."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.products.linearised.node import Tangent


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
