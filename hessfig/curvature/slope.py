"""The loss of a problem at the network's weights, its gradient, and products of its Hessian by double backward."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.problem import Problem
from hessfig.curvature.products.double_backward import differentiable_twice, gradients
from hessfig.models.layered import scored_outputs


class Slope:
    """Loss, gradient and Hessian products of `problem` in every parameter, by the parameters' names.

    Plain double backward: one product costs about two gradients, and is right for every twice differentiable network.
    """

    def __init__(self, problem: Problem) -> None:
        held = problem.network.named_parameters()
        self._at = {name: parameter.detach().clone().requires_grad_() for name, parameter in held}
        with torch.enable_grad(), differentiable_twice():
            inside = {f"network.{name}": leaf for name, leaf in self._at.items()}
            self._loss = functional_call(_LossOf(problem), inside, ())
            self._gradient = gradients(self._loss, list(self._at.values()), create_graph=True)

    @property
    def loss(self) -> float:
        """The loss itself."""
        return float(self._loss.detach())

    @property
    def gradient(self) -> dict[str, Tensor]:
        """The gradient in every parameter."""
        return dict(zip(self._at, (piece.detach() for piece in self._gradient), strict=True))

    @property
    def flat(self) -> Float[Tensor, " n"]:
        """The gradient as one vector, parameter by parameter."""
        return torch.cat([piece.detach().flatten() for piece in self._gradient])

    def product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return H v, in the order of `flat`."""
        leaves = list(self._at.values())
        pieces = vector.split([leaf.numel() for leaf in leaves])
        with torch.enable_grad(), differentiable_twice():
            along = torch.stack(
                [slope.flatten() @ piece for slope, piece in zip(self._gradient, pieces, strict=True)]
            ).sum()
            found = gradients(along, leaves)
        return torch.cat([piece.flatten() for piece in found])


class _LossOf(nn.Module):
    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.network, self._problem = problem.network, problem

    def forward(self) -> Tensor:
        return loss_of(replace(self._problem, network=self.network))


def loss_of(problem: Problem) -> Float[Tensor, ""]:
    """Return the loss over all batches of the problem, each weighted by its size where it is a mean."""
    losses = [
        problem.loss(scored_outputs(problem.network, one.inputs, one.scored), one.targets)
        for one in problem.batches
    ]
    if problem.loss.reduction == "sum":
        return torch.stack(losses).sum()
    sizes = torch.tensor([one.size for one in problem.batches], dtype=torch.float64).to(losses[0])
    return (torch.stack(losses) * sizes / sizes.sum()).sum()
