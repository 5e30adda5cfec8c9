"""Problems of the scalar-token model: data and weights, the maps s -> m to choose from, and what is measured
on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Part
from hessfig.theory.autodiff.draws import normal
from hessfig.theory.autodiff.oracle import dense_hessian, square_loss
from hessfig.theory.formulas.scalar_tokens import spectrum as scalar
from hessfig.theory.formulas.scalar_tokens.spectrum import Response, ScalarHessian

Mixing = Callable[[Tensor], Tensor]

RESPONSES: dict[str, Callable[[Tensor, Tensor], Response]] = {
    "attention": scalar.attention_response,
    "linear attention": scalar.linear_attention_response,
    "linear MLP": scalar.linear_mlp_response,
}
"""m, m', m'' in closed form."""

MIXINGS: dict[str, Callable[[Tensor], Mixing]] = {
    "attention": lambda x: lambda s: torch.softmax(s * torch.outer(x, x), 1) @ x,
    "linear attention": lambda x: lambda s: s * torch.outer(x, x) @ x,
    "linear MLP": lambda x: lambda s: s * x,
}
"""The same maps written plainly, for automatic differentiation."""


@dataclass(frozen=True)
class ScalarProblem:
    """Tokens x, targets y and the weights w_V, w_Q, w_K of the scalar-token model."""

    x: Float[Tensor, " L"]
    y: Float[Tensor, " L"]
    w_V: float
    w_Q: Float[Tensor, " d_K"]
    w_K: Float[Tensor, " d_K"]

    @property
    def s(self) -> Tensor:
        """The score scale w_Q . w_K / sqrt(d_K)."""
        return scalar.score_scale(self.w_Q, self.w_K)

    def response(self, model: str) -> Response:
        """m, m', m'' of one of `RESPONSES`."""
        return RESPONSES[model](self.x, self.s)

    def hessian(self, response: Response) -> ScalarHessian:
        """The closed form for any response of the tokens to s."""
        return scalar.scalar_hessian(response, self.y, self.w_V, self.w_Q, self.w_K)

    def unbalanced(self, factor: float) -> ScalarProblem:
        """The same network with w_Q times and w_K over `factor`: s stays, |w_Q|^2 + |w_K|^2 grows."""
        return replace(self, w_Q=factor * self.w_Q, w_K=self.w_K / factor)

    def at_critical_point(self, response: Response, noise: Float[Tensor, " L"]) -> ScalarProblem:
        """The problem with targets moved so that the residual, `noise` less m and m', leaves no gradient."""
        span = torch.stack([response.value, response.first], 1)
        residual = noise - span @ torch.linalg.pinv(span) @ noise
        return replace(self, y=self.w_V * response.value - residual)


def draw_scalar_problem(
    L: int, d_K: int, generator: torch.Generator, *, w_V: float | None = None
) -> ScalarProblem:
    """Standard normal tokens, targets and weights."""
    x, y = (normal(L, generator=generator) for _ in range(2))
    w_Q, w_K = (normal(d_K, generator=generator) for _ in range(2))
    drawn = float(normal(1, generator=generator))
    return ScalarProblem(x, y, drawn if w_V is None else w_V, w_Q, w_K)


def spectrum(problem: ScalarProblem, mixing: Mixing, part: Part = Part.H) -> Float[Tensor, " n"]:
    """Ascending eigenvalues of the Hessian of |w_V mixing(s) - y|^2/L in (w_V, w_Q, w_K), by automatic
    differentiation.
    """

    def network(weights: Mapping[str, Tensor]) -> Tensor:
        return weights["w_V"] * mixing(scalar.score_scale(weights["w_Q"], weights["w_K"]))

    w_V = torch.tensor([problem.w_V], dtype=problem.x.dtype)
    weights = {"w_V": w_V, "w_Q": problem.w_Q, "w_K": problem.w_K}
    return torch.linalg.eigvalsh(dense_hessian(network, square_loss(problem.y), weights, part))


def condition_number(problem: ScalarProblem) -> Tensor:
    """Largest over smallest absolute eigenvalue for softmax attention, by automatic differentiation."""
    size = spectrum(problem, MIXINGS["attention"](problem.x)).abs()
    return size.max() / size.min()


def outer_product_gap(problem: ScalarProblem, response: Response) -> float:
    """Relative error of the top eigenvalue of H_o (the GGN) as a proxy for that of H."""
    top = float(problem.hessian(response).eigenvalues.max())
    return abs(outer_product_top(problem, response) - top) / top


def outer_product_top(problem: ScalarProblem, response: Response) -> float:
    """The top eigenvalue of H_o in closed form."""
    point = scalar.scalar_outer_product(response, problem.w_V, problem.w_Q, problem.w_K)
    return scalar.outer_product_top(point)
