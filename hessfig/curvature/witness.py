"""Derivatives by plain double backward, parameter by parameter, to compare two functions and to check autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.differences import step
from hessfig.curvature.double_backward import (
    FLOOR,
    differentiable_twice,
    differing,
    functions_of,
    gradients,
    inner,
    length,
    narrowest_type,
    of_second_order,
    worst,
)
from hessfig.curvature.gradients import Evaluated
from hessfig.curvature.problem import Batch, Objective, scored_outputs
from hessfig.errors import UserError, first_few
from hessfig.rng import stream

AGREE = 1e-3  # relative difference allowed between derivatives and finite differences
_ALIKE = 0.1  # of a disagreement: if the differences of two steps agree to this share, there is no kink between them
# The second step relative to the first: small enough to exclude most kinks, large
# enough for rounding of the type.
_NEARER = {torch.float64: 1e-3}
_NEARER_OF_FEW_DIGITS = 0.1
_ASYMMETRY = 1e-4  # allowed asymmetry, relative to the length of a product
_NO_FUNCTION = (
    "the gradient of this loss is not that of a function: u.Hv differs from v.Hu"
)
_NO_GRADIENT = (
    "give what is detached or rounded as data, computed beforehand; an inner torch.autograd.grad takes "
    "create_graph=True; remove hooks that change gradients"
)
DIFFERENCES = "products='differences' (estimator.products=differences), or elementary operations in its place"
STEP = (
    1e-2  # step to a nearby point, relative to the root mean square of each parameter
)
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Derivatives:
    """Value, gradient and products H v of a function at a point; gradient and products are by parameter.

    `reached` are the parameters that the value depends on. `failure` is the reason if
    there are no products.
    """

    value: Tensor
    slopes: Tensors = field(default_factory=dict)
    products: Sequence[Tensors] = ()
    reached: frozenset[str] = frozenset()
    failure: Exception | None = None

    @property
    def named(self) -> Iterator[tuple[str, Tensors]]:
        """Yield every derivative with a name."""
        yield "value", {"": self.value}
        if self.slopes:
            yield "gradient", self.slopes
        yield from zip(
            ("H v, v random", "H v, v constant"), self.products, strict=False
        )


@dataclass(frozen=True)
class Directions:
    """Vectors and a step, by parameter and equal for all floating-point types; `ratio` is |w| / |v|."""

    vectors: tuple[Mapping[str, Tensor], ...]
    step: Mapping[str, Tensor]
    ratio: float

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> Directions:
        """Return a random vector, a constant vector, and a step of length STEP along another random vector."""
        signs = {name: _signs("v", name, one) for name, one in parameters.items()}
        ones = {name: torch.ones_like(one) for name, one in parameters.items()}
        count = sum(one.numel() for one in parameters.values())
        return cls(
            (signs, ones),
            step_of(parameters),
            length(parameters.values()) / max(count, 1) ** 0.5,
        )

    def like(self, leaves: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        """Return the vectors in the types of the leaves."""
        return [
            {name: vector[name].to(one) for name, one in leaves.items()}
            for vector in self.vectors
        ]

    def size_of_terms(self, here: Derivatives) -> float:
        """Return the size of the terms of a value, as the function of this name, from its derivatives at one point.

        max(|f|, r |g|, r^2 |v.H v|) with r = |w| / |v|: the change under a step as long
        as the weights.
        """
        size = max(abs(float(here.value)), self.ratio * length(here.slopes.values()))
        for vector, product in zip(self.vectors, here.products, strict=False):
            bend = inner(
                [vector[name].to(one) for name, one in product.items()],
                [*product.values()],
            )
            size = max(size, self.ratio**2 * abs(float(bend)))
        return size


def step_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a step of length STEP, relative to each parameter, along a random vector."""
    return {
        name: STEP * _scale(one) * _signs("step", name, one)
        for name, one in parameters.items()
    }


def size_of_terms(here: Tensor, beside: Tensor) -> float:
    """Return the size of the terms that make up some numbers, from their values at the weights and one step away.

    max(|f(w)|, |f(w + d)|, |f(w + d) - f(w)| / STEP), the largest finite entry of each.
    Terms may cancel in a value, which is then a rounding error of either sign; they do
    not cancel in its change under a step as long as the weights.
    """
    return max(peak(here), peak(beside), peak(beside - here) / STEP)


def peak(tensor: Tensor) -> float:
    """Return the largest finite entry in size; 0 if there is none."""
    return (
        float(tensor.nan_to_num(0.0, 0.0, 0.0).abs().max()) if tensor.numel() else 0.0
    )


def _signs(word: str, name: str, like: Tensor) -> Tensor:
    generator = stream(0, "witness", word, name)
    bits = torch.randint(
        0, 2, like.shape, generator=generator, dtype=torch.int8, device="cpu"
    )
    return (2 * bits - 1).to(like)


def _scale(parameter: Tensor) -> Tensor:
    """Return the root mean square of a parameter; 1 if it is zero or not finite."""
    size = parameter.double().square().mean().sqrt()
    return torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size)).to(
        parameter
    )


def derivatives(
    terms: Iterable[Callable[[], Tensor]],
    at: Mapping[str, Tensor],
    vectors: Sequence[Tensors],
    order: int,
) -> Derivatives:
    """Return the derivatives of a sum of terms in the leaves `at`, up to `order`, with the graph of one term at a time.

    Products are computed by plain double backward. If that fails, first derivatives are
    returned with the failure.
    """
    total: Derivatives | None = None
    with torch.enable_grad(), differentiable_twice():
        for term in terms:
            piece = _of_term(term, at, vectors, order)
            total = piece if total is None else _added(total, piece)
    assert total is not None
    return total


def leaves_of(objective: Objective, names: Iterable[str]) -> dict[str, Tensor]:
    """Return copies of parameters of a problem as leaves that require gradients."""
    parameters = dict(objective.network.named_parameters(remove_duplicate=False))
    return {name: parameters[name].detach().clone().requires_grad_() for name in names}


def terms_of(
    objective: Objective, at: Mapping[str, Tensor]
) -> list[Callable[[], Tensor]]:
    """Return the loss of every batch of a problem, times its share, as functions evaluated at the parameters `at`."""

    def of_batch(network: nn.Module, share: float, batch: Batch) -> Tensor:
        return share * objective.loss(
            scored_outputs(network, batch.inputs, batch.scored), batch.targets
        )

    inside = {f"network.{name}": one for name, one in at.items()}
    batches = zip(objective.shares, objective.batches, strict=True)
    evaluated = Evaluated(objective.network, of_batch)
    return [
        partial(functional_call, evaluated, inside, (share, batch))
        for share, batch in batches
    ]


def _of_term(
    term: Callable[[], Tensor],
    at: Mapping[str, Tensor],
    vectors: Sequence[Tensors],
    order: int,
) -> Derivatives:
    value = term()
    if not order or not value.requires_grad:
        zeros = (
            {name: torch.zeros_like(leaf) for name, leaf in at.items()} if order else {}
        )
        return Derivatives(
            value.detach(), zeros, [zeros] * len(vectors) if order > 1 else ()
        )
    try:
        slopes, reached = _slopes(value, at, create_graph=order > 1)
        products = (
            [_times(slopes, vector, at) for vector in vectors] if order > 1 else []
        )
    except (RuntimeError, NotImplementedError) as error:
        if order < 2:
            raise
        return _without_products(term, at, error)
    return Derivatives(value.detach(), _by_name(at, slopes), products, reached)


def _slopes(
    value: Tensor, at: Mapping[str, Tensor], *, create_graph: bool
) -> tuple[list[Tensor], frozenset[str]]:
    """Return the gradient, zero for leaves that the value does not depend on, and the names of the other leaves."""
    leaves = list(at.values())
    # As double_backward.gradients has it.
    ones = torch.ones_like(value, requires_grad=create_graph)
    grads = torch.autograd.grad(
        value,
        leaves,
        ones,
        create_graph=create_graph,
        retain_graph=True,
        allow_unused=True,
    )
    reached = frozenset(
        name for name, grad in zip(at, grads, strict=True) if grad is not None
    )
    return [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(leaves, grads, strict=True)
    ], reached


def _without_products(
    term: Callable[[], Tensor], at: Mapping[str, Tensor], error: Exception
) -> Derivatives:
    first = _of_term(term, at, (), 1)
    return Derivatives(first.value, first.slopes, (), first.reached, error)


def _times(
    slopes: Sequence[Tensor], vector: Tensors, at: Mapping[str, Tensor]
) -> Tensors:
    along = inner(of_second_order(list(slopes)), [vector[name] for name in at])
    return _by_name(at, gradients(along, list(at.values())))


def _by_name(at: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in zip(at, tensors, strict=True)}


def _added(left: Derivatives, right: Derivatives) -> Derivatives:
    def both(first: Tensors, other: Tensors) -> Tensors:
        return {name: first[name] + other[name] for name in first}

    products = [
        both(*pair) for pair in zip(left.products, right.products, strict=False)
    ]
    reached, failure = left.reached | right.reached, left.failure or right.failure
    return Derivatives(
        left.value + right.value,
        both(left.slopes, right.slopes),
        () if failure else products,
        reached,
        failure,
    )


def apart(first: Derivatives, other: Derivatives, ratio: float) -> dict[str, float]:
    """Return the relative difference of the derivatives of two functions, by derivative, for the worst parameter.

    Rounding is relative to the change under a step as long as the weights: |H v| |w| /
    |v| for a gradient, and |g| |w| for a value. `ratio` is |w| / |v|.
    """
    product = ratio * length(first.products[0].values()) if first.products else 0.0
    slope = ratio * max(length(first.slopes.values()), product)
    sizes = {"value": slope, "gradient": product}
    pairs = zip(first.named, other.named, strict=False)
    return {
        name: worst(
            mine,
            own,
            [torch.tensor(sizes.get(name, product / ratio if ratio else 0.0))],
        )[1]
        for (name, mine), (_, own) in pairs
    }


def refusal_of(
    objective: Objective, here: Derivatives, vectors: list[Tensors]
) -> UserError | None:
    """Return an error if the second derivatives by autograd are not those of the loss.

    `here` contains the derivatives, with products by the random and the constant vector
    in `vectors`; they are compared with differences in float64, or in the type of the
    loss if it cannot be evaluated in float64 (it closes over data of its own).
    Parameters that autograd does not reach are constants. Where a kink of the loss
    explains the difference, a point one step away decides, since kinks at zeros (of
    biases, of penalties) are not there; if it is near another kink, nothing is refused.
    """
    if (
        here.failure
        or len(here.products) < 2
        or not all(map(_is_finite, here.products))
    ):
        return None
    rounding = (
        100 * torch.finfo(here.value.dtype).eps * _usual(objective, here, vectors[0])
    )
    # Shorter products may consist of rounding errors.
    least = rounding * length(vectors[0].values()) / _ASYMMETRY
    off = asymmetry(vectors, here.products, least)
    ray = _ray(objective, here.reached, vectors[0])
    if off > _ASYMMETRY and not ray.is_symmetric(vectors[1]):
        return _refused(
            objective, _NO_FUNCTION, f"{off:.2g} of their size", _NO_GRADIENT
        )
    product = (
        here.products[0] if len(here.reached) == len(here.slopes) else ray.product()
    )
    where, at_kink = ray.off(product, rounding)
    if at_kink:
        ray = _Ray(ray.problem, here.reached, vectors[0], moved=True)
        where = "" if ray.is_outside else ray.off(ray.product(), rounding)[0]
    if where:
        remedy = DIFFERENCES if ray.is_symmetric(vectors[1]) else _NO_GRADIENT
        return _refused(
            objective,
            "autograd's second derivative does not match differences of the gradient of this loss",
            where,
            remedy,
        )
    return (
        _refused(objective, _NO_FUNCTION, f"{off:.2g} of their size", _NO_GRADIENT)
        if off > _ASYMMETRY
        else None
    )


def follows_values(objective: Objective, here: Derivatives, vector: Tensors) -> bool:
    """Whether the gradient times a vector is the central difference of the loss along this vector.

    It is not if autograd takes for a constant what changes the loss: detached values,
    and what our contexts of evaluation may have taken from the graph.
    """
    at = {name: one.detach() for name, one in leaves_of(objective, vector).items()}
    along = {name: one.to(at[name]) for name, one in vector.items()}
    h = step(
        *(torch.cat([one.flatten() for one in some.values()]) for some in (at, along))
    )

    def value(sign: int) -> float:
        moved = {
            name: (one + sign * h * along[name]).requires_grad_()
            for name, one in at.items()
        }
        return float(derivatives(terms_of(objective, moved), moved, (), 0).value)

    plus, minus = value(1), value(-1)
    expected = float(
        inner([*here.slopes.values()], [vector[name] for name in here.slopes])
    )
    rounding = 100 * torch.finfo(here.value.dtype).eps * abs(plus) / h
    return (
        abs((plus - minus) / (2 * h) - expected)
        <= AGREE * length(here.slopes.values()) + rounding
    )


def _ray(objective: Objective, reached: frozenset[str], vector: Tensors) -> _Ray:
    """Return the loss along a vector, in float64 where the loss can be evaluated in it."""
    ray = _Ray(objective.cast(torch.float64), reached, vector)
    return (
        ray
        if objective.dtype == torch.float64 or ray.can_be_evaluated
        else _Ray(objective, reached, vector)
    )


def _usual(objective: Objective, here: Derivatives, vector: Tensors) -> float:
    """Return |g| |v| / |w|, the length of a product if the gradient g changes by its own length over the weights w."""
    weights = length(leaves_of(objective, vector).values())
    return length(here.slopes.values()) * length(vector.values()) / (weights or 1.0)


class _Ray:
    """The loss along a vector that is zero for parameters which autograd does not reach; `moved`: a step away."""

    def __init__(
        self,
        objective: Objective,
        reached: frozenset[str],
        vector: Tensors,
        *,
        moved: bool = False,
    ) -> None:
        self.problem, self._reached, self._is_moved = objective, reached, moved
        self._at = leaves_of(objective, vector)
        if moved:
            steps = step_of({name: one.detach() for name, one in self._at.items()})
            self._at = {
                name: (one.detach() + steps[name]).requires_grad_()
                for name, one in self._at.items()
            }
        along = {name: one.to(self._at[name]) for name, one in vector.items()}
        self.vector = {
            name: one if name in reached else torch.zeros_like(one)
            for name, one in along.items()
        }

    @cached_property
    def _inside(self) -> torch.dtype:
        """The type with the fewest digits in which the first batch is evaluated."""
        with torch.enable_grad(), differentiable_twice():
            return narrowest_type(terms_of(self.problem, self._at)[0]())

    @cached_property
    def _step(self) -> float:
        """The step of differences.step, or h = u^(1/2) |w| / |v| where the loss has fewer digits than the weights.

        Models of transformers compute their loss in float32. Its rounding u |g| / h is
        1e-4 then, below AGREE; with the step of float64 it would be 1e-2, and
        differences would say nothing.
        """
        if not self._reached:
            return 1.0
        weights, vector = (
            torch.cat([one.detach().flatten() for one in of.values()])
            for of in (self._at, self.vector)
        )
        few = torch.finfo(self._inside)
        if few.eps <= torch.finfo(weights.dtype).eps:
            return step(weights, vector)
        return float((few.eps / 2) ** (1 / 2 - 1 / 3)) * step(
            weights.to(self._inside), vector
        )

    @property
    def is_outside(self) -> bool:
        """Whether the network changes the weights at this point when it is called (max_norm of an embedding)."""
        moved = {
            name: one.detach().clone().requires_grad_()
            for name, one in self._at.items()
        }
        derivatives(terms_of(self.problem, moved), moved, (), 0)
        return any(not torch.equal(one, self._at[name]) for name, one in moved.items())

    @property
    def can_be_evaluated(self) -> bool:
        """Whether the user's code takes numbers of this type."""
        try:
            return bool(self.near)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever it raises
            return False

    @cached_property
    def near(self) -> Tensors:
        """H v by differences with the step of differences.step."""
        return self._differences(1.0)

    def is_symmetric(self, vector: Tensors) -> bool:
        """Whether differences along this ray and along another vector are those of a symmetric matrix."""
        other = _Ray(self.problem, self._reached, vector, moved=self._is_moved)
        return asymmetry([self.vector, other.vector], [self.near, other.near]) <= AGREE

    def off(self, product: Tensors, rounding: float) -> tuple[str, bool]:
        """Return the worst parameter in which H v differs from differences, in words, and whether a kink explains it.

        Differences of two steps agree where there is no kink between the two points. At
        zeros a kink shows itself in one parameter and changes the others too, so that
        the worst one decides; a step away each is judged by itself.
        """
        beside = [torch.tensor(rounding / (AGREE * FLOOR))]
        off = differing(
            self.near, {name: one.double() for name, one in product.items()}, beside
        )
        wrong = sorted(
            (name for name in off if off[name] > AGREE), key=lambda name: -off[name]
        )
        for name in wrong if self._is_moved else wrong[:1]:
            apart = length([self.near[name] - product[name]])
            if length([self._nearer[name] - self.near[name]]) <= _ALIKE * apart:
                return f"{name}: off by {off[name]:.2g}", False
        return "", bool(wrong)

    @cached_property
    def _nearer(self) -> Tensors:
        return self._differences(_NEARER.get(self._inside, _NEARER_OF_FEW_DIGITS))

    def _differences(self, stretch: float) -> Tensors:
        """Return H v by central differences of gradients; `stretch` multiplies the step."""
        h = stretch * self._step
        plus, minus = (self._derivatives(sign * h, (), 1) for sign in (1, -1))
        return {
            name: (one - minus.slopes[name]) / (2 * h)
            for name, one in plus.slopes.items()
        }

    def product(self) -> Tensors:
        """Return H v by double backward."""
        return self._derivatives(0.0, (self.vector,), 2).products[0]

    def _derivatives(
        self, h: float, vectors: tuple[Tensors, ...], order: int
    ) -> Derivatives:
        moved = {
            name: (one.detach() + h * self.vector[name]).requires_grad_()
            for name, one in self._at.items()
        }
        return derivatives(terms_of(self.problem, moved), moved, vectors, order)


def asymmetry(
    vectors: Sequence[Tensors], products: Sequence[Tensors], least: float = 0.0
) -> float:
    """Return |u.Hv - v.Hu| relative to the longer of Hu and Hv, or to `least` if both are shorter than that."""
    (u, v), (hu, hv) = (
        [list(one.values()) for one in some] for some in (vectors, products)
    )
    size = max(length(hu), length(hv), least)
    return abs(float(inner(u, hv) - inner(v, hu))) / size if size else 0.0


def _is_finite(product: Mapping[str, Tensor]) -> bool:
    return all(bool(one.isfinite().all()) for one in product.values())


def _refused(objective: Objective, what: str, got: str, remedy: str) -> UserError:
    at = leaves_of(objective, dict(objective.network.named_parameters()))
    with torch.enable_grad(), differentiable_twice():
        functions = sorted(
            {
                name
                for term in terms_of(objective, at)
                for name in functions_of([term()])
            }
        )
    return UserError(
        what,
        got="; derivatives written in Python: ".join(
            [got, first_few(functions)] if functions else [got]
        ),
        allowed="a network and a loss whose derivatives autograd computes, twice",
        remedy=remedy,
    )
