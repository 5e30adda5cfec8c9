"""The loss as a function of the vector of all weights, and the distance at which its expansion departs from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hessfig.config.enums import Products
from hessfig.config.science import ModelConfig, SpectrumConfig
from hessfig.curvature.column import entries_of
from hessfig.curvature.gradients import LossGradient, loss_value
from hessfig.curvature.problem import Objective
from hessfig.curvature.spectral.densities import dense_matrix
from hessfig.curvature.spectral.extremes import End, Extremes
from hessfig.curvature.spectral.lanczos import Square
from hessfig.measurements.eigenvalues import extremes_of
from hessfig.models.routes import Engines
from hessfig.terms import Block, Group, Part

Vector = Float[Tensor, " n"]
_WHOLE = Block(0, Group.all.value, Group.all.value)


class Surface:
    """L(w) for a vector w of the weights of group `all`, in the order of the group; `start` is the problem's own w.

    L includes the term of weight decay (task.weight_decay). Vectors are float64 for
    networks of any dtype. The problem's own network is not changed.
    """

    def __init__(
        self, objective: Objective, model: ModelConfig, products: Products
    ) -> None:
        self._problem = replace(objective, network=copy.deepcopy(objective.network))
        self._model, self._products = model, products
        parameters = dict(objective.network.named_parameters())
        numbers = dict[str, Tensor]()
        first = 0
        for name, parameter in parameters.items():
            numbers[name] = torch.arange(first, first + parameter.numel()).view(
                parameter.shape
            )
            first += parameter.numel()
        side = objective.layout.side(0, Group.all.value)
        self._places = entries_of(numbers, side)
        self._flat = parameters_to_vector(parameters.values()).detach().clone()
        self.start = self._of(self._flat)
        self.rounding = 1e3 * torch.finfo(objective.dtype).eps
        self.size = objective.witness.size if objective.witness else 0.0

    @property
    def dim(self) -> int:
        """The number of weights."""
        return len(self.start)

    def loss(self, w: Vector) -> float:
        """Return L(w)."""
        return float(loss_value(self.moved(w))) + self._problem.decay / 2 * float(w @ w)

    def at(self, w: Vector) -> LossPoint:
        """Return loss, gradient and products at w, by plain double backward."""
        return LossPoint(
            w, LossGradient(self.moved(w)), self._places, self._problem.decay
        )

    def operator(self, w: Vector) -> Square:
        """Return the Hessian at w as an operator, whose products take the route of these settings."""
        problem = replace(self.moved(w), network=copy.deepcopy(self._problem.network))
        engines = Engines(problem, self._model, self._products)
        return Square(engines.column(0, Group.all.value, [_WHOLE]), _WHOLE, Part.H)

    def extreme(
        self, end: End, settings: SpectrumConfig, generator: Generator
    ) -> Extremes:
        """Return the outermost eigenvalue of the Hessian at the start, by Lanczos. Raises NotFinite."""
        return extremes_of(self.operator(self.start), end, settings, generator)

    def hessian(self, w: Vector) -> Float[Tensor, "n n"]:
        """Return the dense Hessian at w, symmetric where it is finite.

        Raises ArithmeticError when it is not symmetric up to rounding.
        """
        return torch.from_numpy(dense_matrix(self.operator(w)))

    def moved(self, w: Tensor) -> Objective:
        """Return the problem with weights w. All calls share one network, so that the next call changes its weights."""
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

    w: Vector
    slope: LossGradient
    places: Tensor
    decay: float

    @property
    def loss(self) -> float:
        """L(w)."""
        return self.slope.loss + self.decay / 2 * float(self.w @ self.w)

    @property
    def gradient(self) -> Vector:
        """The gradient of L at w."""
        return self._of(self.slope.flat) + self.decay * self.w

    def product(self, vector: Vector) -> Vector:
        """Return H(w) v."""
        whole = torch.zeros_like(self.slope.flat)
        whole[self.places.to(whole.device)] = vector.to(whole)
        return self._of(self.slope.product(whole)) + self.decay * vector

    def _of(self, flat: Tensor) -> Tensor:
        return flat[self.places.to(flat.device)].double().cpu()


FIRST = 1e-4
LAST = 1e2
_PER_OCTAVE = 4
_HALVINGS = 6


@dataclass(frozen=True)
class ExpansionRule:
    """Criterion for the departure of a second-order expansion from the loss, for slices, planes and descents alike.

    The expansion P departs from the loss L at the first point t with |L(t) - P(t)| >
    share * C(t), where C(t) is the largest |L(s) - L(0)| for s up to t. The criterion
    uses the largest change so far, because the change at t is zero where the loss
    returns to its first value. Gaps below `rounding` times the loss are ignored; one
    that is not finite counts as departed. Where terms cancel in L(0), their `size`
    counts (problem.Witness).
    """

    share: float
    rounding: float
    size: float = 0.0

    def is_off(self, gap: float, change: float, start: float) -> bool:
        """Whether a gap is too large; nan counts as too large."""
        return not abs(gap) <= self.share * change + self.rounding * max(
            abs(start), self.size
        )

    def horizon(self, losses: Sequence[float], expansion: Sequence[float]) -> float:
        """Return the first place at which the expansion has departed, or infinity if there is none."""
        changes = np.fmax.accumulate(np.abs(np.subtract(losses, losses[0])))
        gaps = np.subtract(losses, expansion)
        each = (
            t
            for t in range(len(losses))
            if self.is_off(float(gaps[t]), float(changes[t]), losses[0])
        )
        return float(next(each, np.inf))

    def departure(
        self, loss: Callable[[float], float], expansion: Callable[[float], float]
    ) -> tuple[float, float]:
        """Return the distance at which the expansion departs, and half of its bracket; infinite beyond LAST / FIRST.

        Distances increase from FIRST by factors of 2^(1/4); the bracket is then
        halved six times.
        """
        start = loss(0.0)
        largest = 0.0
        change = 0.0
        low = 0.0

        def is_off(t: float) -> bool:
            nonlocal change
            value = loss(t)
            change = max(largest, abs(value - start))
            return self.is_off(value - expansion(t), change, start)

        octaves = np.arange(np.log2(LAST / FIRST) * _PER_OCTAVE) / _PER_OCTAVE
        for high in (FIRST * 2**octaves).tolist():
            change = largest
            if is_off(high):
                return _bisected(is_off, low, high)
            largest, low = change, high
        return np.inf, 0.0


def _bisected(
    is_off: Callable[[float], bool], low: float, high: float
) -> tuple[float, float]:
    """Return the middle and half the length of a bracket after _HALVINGS bisections."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_off(middle) else (middle, high)
    return (low + high) / 2, (high - low) / 2
