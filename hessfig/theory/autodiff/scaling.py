"""Measured growth: the exponent of every Hessian block when the input X of a network is scaled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Part
from hessfig.theory.autodiff.oracle import hessian_blocks, square_loss

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class ScaledNetwork(Generic[Key]):
    """A network at fixed weights under ||F - Y||^2/(L d), read as a function of the size of its input.

    With `at_fixed_residual` the targets move along so that F - Y = `Y` at every scale.
    """

    X: Float[Tensor, "L d_in"]
    Y: Float[Tensor, "L d_out"]
    weights: Mapping[Key, Tensor]
    network: Callable[[Tensor, Mapping[Key, Tensor]], Tensor]
    at_fixed_residual: bool = False

    def exponents(self, part: Part, sigma: float) -> dict[tuple[Key, Key], Tensor]:
        """log2 of the growth of every block's Frobenius norm from sigma X to 2 sigma X; zero blocks are left
        out.
        """
        low, high = (self.norms(part, scale) for scale in (sigma, 2 * sigma))
        return {pair: torch.log2(high[pair] / low[pair]) for pair in low if low[pair] > 0}

    def norms(self, part: Part, sigma: float) -> dict[tuple[Key, Key], Tensor]:
        """The Frobenius norm of every block at the input sigma X."""
        X = sigma * self.X
        Y = self.network(X, self.weights) - self.Y if self.at_fixed_residual else self.Y
        blocks = hessian_blocks(lambda weights: self.network(X, weights), square_loss(Y), self.weights, part)
        return {pair: torch.linalg.matrix_norm(block) for pair, block in blocks.items()}
