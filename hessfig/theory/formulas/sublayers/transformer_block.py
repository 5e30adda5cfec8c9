"""Whole transformer blocks, post-LN and pre-LN: derivatives and feed-forward Hessian blocks in closed form.

Post-LN: Y = LN(X + F), S = Y + phi(Y W_in) W_out, Z = LN(S). Pre-LN: X' = X + F(LN X), Z = S = X' + phi(Y
W_in) W_out with Y = LN(X'). With J and Lambda the first and second derivative of the last norm at S (I and 0
for pre-LN), r = Z - target, g = J^T r, c = 2/(L d) and J_a = dS/dW_a:

    H_o(a, b) = c J_a^T J^T J J_b,     H_f(a, b) = c [J_a^T Lambda J_b + sum_i g_i . d2 S_i/dW_a dW_b].

For ReLU the last sum vanishes for (W_in, W_in): H_f is zero pre-LN, and c J_in^T Lambda J_in post-LN.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff.networks import Weights, attention, feed_forward
from hessfig.theory.formulas.attention.literal import jacobians
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.formulas.matrix_calculus import identity
from hessfig.theory.formulas.sublayers import feedforward, layernorm
from hessfig.theory.formulas.sublayers.feedforward import IN, OUT, Activation


class Placement(StrEnum):
    """Where the norms sit."""

    post = "post"
    pre = "pre"


@dataclass(frozen=True)
class BlockPoint:
    """One block at one input: what its derivatives need. LayerNorm eps is layernorm.EPS."""

    X: Float[Tensor, "L d"]
    target: Float[Tensor, "L d"]
    weights: Weights
    activation: Activation
    placement: Placement

    @cached_property
    def attended(self) -> Float[Tensor, "L d"]:
        """X + F(X) post-LN, X + F(LN X) pre-LN."""
        return self.X + attention(self._attention_input, self.weights)

    @cached_property
    def Y(self) -> Float[Tensor, "L d"]:
        """The input of the feed-forward sublayer."""
        return layernorm.normalised(self.attended)[0]

    @cached_property
    def summed(self) -> Float[Tensor, "L d"]:
        """S, what enters the last norm (post-LN) or leaves the block (pre-LN)."""
        residual_stream = self.Y if self.placement == Placement.post else self.attended
        return residual_stream + feed_forward(self.Y, self.weights, self.activation.function)

    @cached_property
    def residual(self) -> Float[Tensor, "L d"]:
        """r = Z - target."""
        output = layernorm.normalised(self.summed)[0] if self.placement == Placement.post else self.summed
        return output - self.target

    @cached_property
    def output_jacobian(self) -> Float[Tensor, "Ld Ld"]:
        """J = dZ/dS."""
        if self.placement == Placement.post:
            return layernorm.jacobian(self.summed)
        return identity(self.X.numel())

    @property
    def _attention_input(self) -> Float[Tensor, "L d"]:
        return self.X if self.placement == Placement.post else layernorm.normalised(self.X)[0]

    def jacobian(self, matrix: Matrix) -> Float[Tensor, "Ld p"]:
        """dZ/dW for any of the five weights."""
        if matrix in (IN, OUT):
            return (
                self.output_jacobian
                @ feedforward.weight_jacobians(self.Y, self.weights, self.activation)[matrix]
            )
        layer = AttentionPoint(self._attention_input, 0 * self.X, self.weights)
        return self.output_jacobian @ self._attended_to_summed() @ jacobians(layer)[matrix]

    def feed_forward_hessian(self, part: Part) -> dict[tuple[Matrix, Matrix], Float[Tensor, "p q"]]:
        """H, H_o or H_f of (W_in, W_in), (W_in, W_out), (W_out, W_out) for ||Z - target||_F^2/(L d)."""
        if part == Part.H:
            outer, functional = (self.feed_forward_hessian(p) for p in (Part.H_o, Part.H_f))
            return {pair: outer[pair] + functional[pair] for pair in outer}
        return self._outer_product() if part == Part.H_o else self._functional()

    def _outer_product(self) -> dict[tuple[Matrix, Matrix], Float[Tensor, "p q"]]:
        jac = {matrix: self.jacobian(matrix) for matrix in (IN, OUT)}
        c = 2 / self.X.numel()
        return {(a, b): c * jac[a].T @ jac[b] for a, b in ((IN, IN), (IN, OUT), (OUT, OUT))}

    def _functional(self) -> dict[tuple[Matrix, Matrix], Float[Tensor, "p q"]]:
        c, J = 2 / self.X.numel(), feedforward.weight_jacobians(self.Y, self.weights, self.activation)
        gradient = (self.output_jacobian.T @ self.residual.reshape(-1)).reshape(self.X.shape)
        paired = feedforward.paired_second_derivatives(self.Y, self.weights, self.activation, gradient)
        if self.placement == Placement.pre:
            return {pair: c * paired[pair] for pair in paired}
        bend = layernorm.contracted_second_derivative(self.summed, self.residual)
        return {(a, b): c * (J[a].T @ bend @ J[b] + paired[a, b]) for a, b in paired}

    def _attended_to_summed(self) -> Float[Tensor, "Ld Ld"]:
        norm = layernorm.jacobian(self.attended)
        through = feedforward.input_jacobian(self.Y, self.weights, self.activation)
        direct = torch.eye(self.X.numel(), dtype=self.X.dtype)
        if self.placement == Placement.post:
            return (direct + through) @ norm
        return direct + through @ norm
