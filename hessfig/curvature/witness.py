"""Derivatives by plain double backward, by parameter: how far two functions are apart, and whether they are sound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.differences import step
from hessfig.curvature.double_backward import differentiable_twice, gradients, inner, length, of_second_order, worst
from hessfig.curvature.gradients import Evaluated
from hessfig.curvature.problem import Batch, Objective, scored_outputs
from hessfig.errors import UserError
from hessfig.rng import stream

_AGREE = 1e-3  # relative: of slopes and products with their differences
_ALIKE = 0.1  # of a disagreement: differences of two steps that differ by less have no kink between them
_NEARER = 1e-3  # the second step, relative to the first: other kinks lie between
_ASYMMETRY = 1e-4  # of the length of a product
_NO_GRADIENT = "give what is detached or rounded as data, computed beforehand; take hooks off that change gradients"
DIFFERENCES = "products='differences' (estimator.products=differences), or elementary operations in its place"
_STEP = 1e-2  # to the point beside the weights, of each parameter's root mean square
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Derivatives:
    """Value, gradient and products H v of a function at a point, the latter two by parameter.

    `reached` are the parameters that the value depends on. `failure` is why there are no products, if so.
    """

    value: Tensor
    slopes: Tensors = field(default_factory=dict)
    products: Sequence[Tensors] = ()
    reached: frozenset[str] = frozenset()
    failure: Exception | None = None

    @property
    def named(self) -> Iterator[tuple[str, Tensors]]:
        """Every derivative with a name."""
        yield "value", {"": self.value}
        if self.slopes:
            yield "gradient", self.slopes
        yield from zip(("H v, v random", "H v, v constant"), self.products, strict=False)


@dataclass(frozen=True)
class Directions:
    """Vectors and a step by parameter, the same for every type of numbers; `ratio` is |w| / |v|."""

    vectors: tuple[Mapping[str, Tensor], ...]
    step: Mapping[str, Tensor]
    ratio: float

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> Directions:
        """Return a random and a constant vector, and a step of _STEP along another random one."""
        signs = {name: _signs("v", name, one) for name, one in parameters.items()}
        ones = {name: torch.ones_like(one) for name, one in parameters.items()}
        step = {name: _STEP * _scale(one) * _signs("step", name, one) for name, one in parameters.items()}
        count = sum(one.numel() for one in parameters.values())
        return cls((signs, ones), step, length(parameters.values()) / max(count, 1) ** 0.5)

    def like(self, leaves: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        """Return the vectors in the types of some leaves."""
        return [{name: vector[name].to(one) for name, one in leaves.items()} for vector in self.vectors]


def _signs(word: str, name: str, like: Tensor) -> Tensor:
    generator = stream(0, "witness", word, name)
    bits = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8, device="cpu")
    return (2 * bits - 1).to(like)


def _scale(parameter: Tensor) -> Tensor:
    """Return a parameter's root mean square, 1 where it is zero or no number."""
    size = parameter.double().square().mean().sqrt()
    return torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size)).to(parameter)


def derivatives(
    terms: Iterable[Callable[[], Tensor]], at: Mapping[str, Tensor], vectors: Sequence[Tensors], order: int
) -> Derivatives:
    """Return the derivatives of a sum of terms in the leaves `at`, to an order, one term's graph at a time.

    Products by plain double backward. Where there are none, first derivatives are returned with the failure.
    """
    total: Derivatives | None = None
    with torch.enable_grad(), differentiable_twice():
        for term in terms:
            piece = _of_term(term, at, vectors, order)
            total = piece if total is None else _added(total, piece)
    assert total is not None
    return total


def leaves_of(objective: Objective, names: Iterable[str]) -> dict[str, Tensor]:
    """Return copies of some parameters of a problem that may be differentiated in."""
    parameters = dict(objective.network.named_parameters(remove_duplicate=False))
    return {name: parameters[name].detach().clone().requires_grad_() for name in names}


def terms_of(objective: Objective, at: Mapping[str, Tensor]) -> list[Callable[[], Tensor]]:
    """Return the loss of every batch of a problem, times its share, as functions of other values of its parameters."""

    def of_batch(network: nn.Module, share: float, batch: Batch) -> Tensor:
        return share * objective.loss(scored_outputs(network, batch.inputs, batch.scored), batch.targets)

    inside = {f"network.{name}": one for name, one in at.items()}
    batches = zip(objective.shares, objective.batches, strict=True)
    evaluated = Evaluated(objective.network, of_batch)
    return [partial(functional_call, evaluated, inside, (share, batch)) for share, batch in batches]


def _of_term(
    term: Callable[[], Tensor], at: Mapping[str, Tensor], vectors: Sequence[Tensors], order: int
) -> Derivatives:
    value = term()
    if not order or not value.requires_grad:
        zeros = {name: torch.zeros_like(leaf) for name, leaf in at.items()} if order else {}
        return Derivatives(value.detach(), zeros, [zeros] * len(vectors) if order > 1 else ())
    try:
        slopes, reached = _slopes(value, at, create_graph=order > 1)
        products = [_times(slopes, vector, at) for vector in vectors] if order > 1 else []
    except (RuntimeError, NotImplementedError) as error:
        if order < 2:
            raise
        return _without_products(term, at, error)
    return Derivatives(value.detach(), _by_name(at, slopes), products, reached)


def _slopes(value: Tensor, at: Mapping[str, Tensor], *, create_graph: bool) -> tuple[list[Tensor], frozenset[str]]:
    """Return the gradient, zeros where the value does not depend on a leaf, and the names of the leaves it reaches."""
    leaves = list(at.values())
    ones = torch.ones_like(value, requires_grad=create_graph)  # as double_backward.gradients has it
    grads = torch.autograd.grad(value, leaves, ones, create_graph=create_graph, retain_graph=True, allow_unused=True)
    reached = frozenset(name for name, grad in zip(at, grads, strict=True) if grad is not None)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)], reached


def _without_products(term: Callable[[], Tensor], at: Mapping[str, Tensor], error: Exception) -> Derivatives:
    first = _of_term(term, at, (), 1)
    return Derivatives(first.value, first.slopes, (), first.reached, error)


def _times(slopes: Sequence[Tensor], vector: Tensors, at: Mapping[str, Tensor]) -> Tensors:
    along = inner(of_second_order(list(slopes)), [vector[name] for name in at])
    return _by_name(at, gradients(along, list(at.values())))


def _by_name(at: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in zip(at, tensors, strict=True)}


def _added(left: Derivatives, right: Derivatives) -> Derivatives:
    def both(first: Tensors, other: Tensors) -> Tensors:
        return {name: first[name] + other[name] for name in first}

    products = [both(*pair) for pair in zip(left.products, right.products, strict=False)]
    reached, failure = left.reached | right.reached, left.failure or right.failure
    return Derivatives(
        left.value + right.value, both(left.slopes, right.slopes), () if failure else products, reached, failure
    )


def apart(first: Derivatives, other: Derivatives, ratio: float) -> dict[str, float]:
    """Return how far two functions' derivatives are apart, by what is compared: that of the worst parameter.

    Rounding has the size of what a move by the weights changes: |H v| |w| / |v| in a gradient, |g| |w| in a value.
    `ratio` is |w| / |v|.
    """
    product = ratio * length(first.products[0].values()) if first.products else 0.0
    slope = ratio * max(length(first.slopes.values()), product)
    sizes = {"value": slope, "gradient": product}
    pairs = zip(first.named, other.named, strict=False)
    return {
        name: worst(mine, own, [torch.tensor(sizes.get(name, product / ratio if ratio else 0.0))])[1]
        for (name, mine), (_, own) in pairs
    }


def refusal_of(objective: Objective, here: Derivatives, vectors: list[Tensors]) -> UserError | None:
    """Return why autograd's second derivatives of a problem are not those of its loss, if they are not.

    `here` has its derivatives, with products by a random and a constant one of `vectors`; differences are in float64.
    Parameters that autograd does not reach are constants. Where a kink of the loss is near, nothing is refused.
    """
    if here.failure or len(here.products) < 2 or not all(map(_is_finite, here.products)):
        return None
    if (off := asymmetry(vectors, here.products)) > _ASYMMETRY:
        return _refused("is not that of a function: u.Hv differs from v.Hu", f"{off:.2g} of their size", _NO_GRADIENT)
    ray = _Ray(objective.cast(torch.float64), here.reached, vectors[0])
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

    def __init__(self, objective: Objective, reached: frozenset[str], vector: Tensors) -> None:
        self.problem, self._at = objective, leaves_of(objective, vector)
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
