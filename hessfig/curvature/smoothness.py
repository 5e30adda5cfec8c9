"""Whether a gradient has the derivatives that autograd computes of it: differences of gradients tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hessfig.curvature.differences import step
from hessfig.curvature.double_backward import inner, length, worst
from hessfig.curvature.problem import Objective
from hessfig.curvature.witness import Derivatives, Tensors, derivatives, leaves_of, terms_of
from hessfig.errors import UserError

_AGREE = 1e-3  # relative: of slopes and products with their differences
_ALIKE = 0.1  # of a disagreement: differences of two steps that differ by less have no kink between them
_NEARER = 1e-3  # the second step, relative to the first: other kinks lie between
_ASYMMETRY = 1e-4  # of the length of a product
_NO_GRADIENT = "give what is detached or rounded as data, computed beforehand; take hooks off that change gradients"
DIFFERENCES = "products='differences' (estimator.products=differences), or elementary operations in its place"


def refusal_of(problem: Objective, here: Derivatives, vectors: list[Tensors]) -> UserError | None:
    """Return why autograd's second derivatives of a problem are not those of its loss, if they are not.

    `here` has its derivatives, with products by a random and a constant one of `vectors`; differences are in float64.
    Parameters that autograd does not reach are constants. Where a kink of the loss is near, nothing is refused.
    """
    if here.failure or len(here.products) < 2 or not all(map(_is_finite, here.products)):
        return None
    if (off := asymmetry(vectors, here.products)) > _ASYMMETRY:
        return _refused("is not that of a function: u.Hv differs from v.Hu", f"{off:.2g} of their size", _NO_GRADIENT)
    ray = _Ray(problem.cast(torch.float64), here.reached, vectors[0])
    near = ray.differences(1.0)
    product = here.products[0] if len(here.reached) == len(here.slopes) else ray.product()
    name, off = worst(near, {name: one.double() for name, one in product.items()})
    if off > _AGREE:
        nearer, wrong = ray.differences(_NEARER)[name], length([near[name] - product[name]])
        if length([nearer - near[name]]) <= _ALIKE * wrong:
            other = _Ray(ray.problem, here.reached, vectors[1])
            is_symmetric = asymmetry([ray.vector, other.vector], [near, other.differences(1.0)]) <= _AGREE
            remedy = DIFFERENCES if is_symmetric else _NO_GRADIENT
            return _refused("has another derivative than autograd says", f"{name}: off by {off:.2g}", remedy)
    return None


class _Ray:
    """The loss along a vector, zero where autograd does not reach."""

    def __init__(self, problem: Objective, reached: frozenset[str], vector: Tensors) -> None:
        self.problem, self._at = problem, leaves_of(problem, vector)
        double = {name: one.double() for name, one in vector.items()}
        self.vector = {name: one if name in reached else torch.zeros_like(one) for name, one in double.items()}
        flat = [torch.cat([one.detach().flatten() for one in some.values()]) for some in (self._at, self.vector)]
        self._step = step(*flat) if reached else 1.0

    def differences(self, stretch: float) -> Tensors:
        """Return H v by central differences of gradients, with a step in units of that of the rule."""
        h = stretch * self._step
        plus, minus = (self._derivatives(sign * h, (), 1) for sign in (1, -1))
        return {name: (one - minus.slopes[name]) / (2 * h) for name, one in plus.slopes.items()}

    def product(self) -> Tensors:
        """Return H v by double backward."""
        return self._derivatives(0.0, (self.vector,), 2).products[0]

    def _derivatives(self, h: float, vectors: tuple[Tensors, ...], order: int) -> Derivatives:
        moved = {name: (one.detach() + h * self.vector[name]).requires_grad_() for name, one in self._at.items()}
        return derivatives(terms_of(self.problem, moved), moved, vectors, order)


def asymmetry(vectors: Sequence[Tensors], products: Sequence[Tensors]) -> float:
    """Return |u.Hv - v.Hu| relative to the longer of Hu and Hv."""
    (u, v), (hu, hv) = ([list(one.values()) for one in some] for some in (vectors, products))
    size = max(length(hu), length(hv))
    return abs(float(inner(u, hv) - inner(v, hu))) / size if size else 0.0


def _is_finite(product: Mapping[str, Tensor]) -> bool:
    return all(bool(one.isfinite().all()) for one in product.values())


def _refused(what: str, got: str, remedy: str) -> UserError:
    return UserError(
        f"the gradient of this loss {what}",
        got=got,
        allowed="a network and a loss whose derivatives autograd computes, twice",
        remedy=remedy,
    )
