"""The loss as a function of one vector of all weights: its value, gradient and Hessian at any point."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hessfig.config.enums import Products
from hessfig.config.science import ModelConfig, SpectrumConfig
from hessfig.curvature.column import view_of
from hessfig.curvature.gradients import LossGradient, loss_of
from hessfig.curvature.problem import Objective
from hessfig.curvature.spectral.densities import dense_matrix
from hessfig.curvature.spectral.extremes import End, Extremes, extremes
from hessfig.curvature.spectral.lanczos import Square
from hessfig.models.routes import Engines
from hessfig.terms import Block, Group, Part

_WHOLE = Block(0, Group.all.value, Group.all.value)


class Surface:
    """L(w) for a vector w of the weights of group `all`, in that group's order; `start` is the problem's own w.

    What weight decay adds to the loss (task.weight_decay) is part of L. Vectors are float64 whatever the network is.
    The problem's own network is left as it is.
    """

    def __init__(self, problem: Objective, model: ModelConfig, products: Products) -> None:
        self._problem = replace(problem, network=copy.deepcopy(problem.network))
        self._model, self._products = model, products
        held, numbers, first = dict(problem.network.named_parameters()), dict[str, Tensor](), 0
        for name, parameter in held.items():
            numbers[name] = torch.arange(first, first + parameter.numel()).view(parameter.shape)
            first += parameter.numel()
        side = problem.layout.side(0, Group.all.value)
        self._places = torch.cat([view_of(numbers[one.parameter], one).flatten() for one in side])
        self._flat = parameters_to_vector(held.values()).detach().clone()
        self.start = self._of(self._flat)
        self.rounding = 1e3 * torch.finfo(problem.dtype).eps

    @property
    def dim(self) -> int:
        """How many weights there are."""
        return len(self.start)

    def loss(self, w: Float[Tensor, " n"]) -> float:
        """Return L(w)."""
        with torch.no_grad():
            return float(loss_of(self.moved(w))) + self._problem.decay / 2 * float(w @ w)

    def at(self, w: Float[Tensor, " n"]) -> LossPoint:
        """Return loss, gradient and products at w, by plain double backward."""
        return LossPoint(w, LossGradient(self.moved(w)), self._places, self._problem.decay)

    def operator(self, w: Float[Tensor, " n"]) -> Square:
        """Return the Hessian at w by its products, on the route that these settings take."""
        problem = replace(self.moved(w), network=copy.deepcopy(self._problem.network))
        engines = Engines(problem, self._model, self._products)
        return Square(engines.column(0, Group.all.value, [_WHOLE]), _WHOLE, Part.H)

    def extreme(self, end: End, settings: SpectrumConfig, generator: Generator) -> Extremes:
        """Return the outermost eigenvalue of the Hessian at the start, by Lanczos. Raises NotFinite."""
        operator = self.operator(self.start)
        return extremes(operator, end, tolerance=settings.tolerance, steps=settings.steps, generator=generator)

    def hessian(self, w: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
        """Return the dense Hessian at w, symmetric where it is finite.

        Raises ArithmeticError when it is not symmetric up to rounding.
        """
        return torch.from_numpy(dense_matrix(self.operator(w)))

    def moved(self, w: Tensor) -> Objective:
        """Return the problem with weights at w: one network, which the next call moves on."""
        flat = self._flat.clone()
        flat[self._places.to(flat.device)] = w.to(flat)
        with torch.no_grad():
            vector_to_parameters(flat, self._problem.network.parameters())
        return self._problem

    def _of(self, flat: Tensor) -> Tensor:
        return flat[self._places.to(flat.device)].double().cpu()


@dataclass(frozen=True)
class LossPoint:
    """The loss near one point w."""

    w: Float[Tensor, " n"]
    slope: LossGradient
    places: Tensor
    decay: float

    @property
    def loss(self) -> float:
        """L(w)."""
        return self.slope.loss + self.decay / 2 * float(self.w @ self.w)

    @property
    def gradient(self) -> Float[Tensor, " n"]:
        """The gradient of L at w."""
        return self._of(self.slope.flat) + self.decay * self.w

    def product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return H(w) v."""
        whole = torch.zeros_like(self.slope.flat)
        whole[self.places.to(whole.device)] = vector.to(whole)
        return self._of(self.slope.product(whole)) + self.decay * vector

    def _of(self, flat: Tensor) -> Tensor:
        return flat[self.places.to(flat.device)].double().cpu()
