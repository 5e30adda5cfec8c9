"""Derivatives of a function by plain double backward, by parameter, and how far those of two functions are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.double_backward import differentiable_twice, gradients, inner, length, of_second_order, worst
from hessfig.curvature.gradients import Evaluated
from hessfig.curvature.problem import Batch, Objective, scored_outputs

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


def derivatives(
    terms: Iterable[Callable[[], Tensor]], at: Mapping[str, Tensor], vectors: Sequence[Tensors], order: int
) -> Derivatives:
    """Return the derivatives of a sum of terms in the leaves `at`, to an order, one term's graph at a time.

    Products by plain double backward. Where there are none, first derivatives are returned with the failure.
    """
    total: Derivatives | None = None
    with torch.enable_grad(), differentiable_twice():
        for term in terms:
            one = _of_term(term, at, vectors, order)
            total = one if total is None else _added(total, one)
    assert total is not None
    return total


def leaves_of(problem: Objective, names: Iterable[str]) -> dict[str, Tensor]:
    """Return copies of some parameters of a problem that may be differentiated in."""
    held = dict(problem.network.named_parameters(remove_duplicate=False))
    return {name: held[name].detach().clone().requires_grad_() for name in names}


def terms_of(problem: Objective, at: Mapping[str, Tensor]) -> list[Callable[[], Tensor]]:
    """Return the loss of every batch of a problem, times its share, as functions of other values of its parameters."""

    def of_batch(network: nn.Module, share: float, batch: Batch) -> Tensor:
        return share * problem.loss(scored_outputs(network, batch.inputs, batch.scored), batch.targets)

    inside = {f"network.{name}": one for name, one in at.items()}
    batches = zip(problem.shares, problem.batches, strict=True)
    evaluated = Evaluated(problem.network, of_batch)
    return [partial(functional_call, evaluated, inside, (share, batch)) for share, batch in batches]


def _of_term(
    term: Callable[[], Tensor], at: Mapping[str, Tensor], vectors: Sequence[Tensors], order: int
) -> Derivatives:
    value = term()
    if not order or not value.requires_grad:
        zeros = {name: torch.zeros_like(one) for name, one in at.items()} if order else {}
        return Derivatives(value.detach(), zeros, [zeros] * len(vectors) if order > 1 else ())
    try:
        slopes, reached = _slopes(value, at, create_graph=order > 1)
        found = [_times(slopes, vector, at) for vector in vectors] if order > 1 else []
    except (RuntimeError, NotImplementedError) as error:
        if order < 2:
            raise
        return _without_products(term, at, error)
    return Derivatives(value.detach(), _by_name(at, slopes), found, reached)


def _slopes(value: Tensor, at: Mapping[str, Tensor], *, create_graph: bool) -> tuple[list[Tensor], frozenset[str]]:
    """Return the gradient, zeros where the value does not depend on a leaf, and the names of the leaves it reaches."""
    leaves = list(at.values())
    ones = torch.ones_like(value, requires_grad=create_graph)  # as double_backward.gradients has it
    found = torch.autograd.grad(value, leaves, ones, create_graph=create_graph, retain_graph=True, allow_unused=True)
    reached = frozenset(name for name, one in zip(at, found, strict=True) if one is not None)
    return [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, found, strict=True)], reached


def _without_products(term: Callable[[], Tensor], at: Mapping[str, Tensor], error: Exception) -> Derivatives:
    first = _of_term(term, at, (), 1)
    return Derivatives(first.value, first.slopes, (), first.reached, error)


def _times(slopes: Sequence[Tensor], vector: Tensors, at: Mapping[str, Tensor]) -> Tensors:
    along = inner(of_second_order(list(slopes)), [vector[name] for name in at])
    return _by_name(at, gradients(along, list(at.values())))


def _by_name(at: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in zip(at, tensors, strict=True)}


def _added(left: Derivatives, right: Derivatives) -> Derivatives:
    def both(one: Tensors, other: Tensors) -> Tensors:
        return {name: one[name] + other[name] for name in one}

    products = [both(*pair) for pair in zip(left.products, right.products, strict=False)]
    reached, failure = left.reached | right.reached, left.failure or right.failure
    return Derivatives(
        left.value + right.value, both(left.slopes, right.slopes), () if failure else products, reached, failure
    )


def apart(one: Derivatives, other: Derivatives, ratio: float) -> dict[str, float]:
    """Return how far two functions' derivatives are apart, by what is compared: that of the worst parameter.

    Rounding has the size of what a move by the weights changes: |H v| |w| / |v| in a gradient, |g| |w| in a value.
    `ratio` is |w| / |v|.
    """
    product = ratio * length(one.products[0].values()) if one.products else 0.0
    slope = ratio * max(length(one.slopes.values()), product)
    sizes = {"value": slope, "gradient": product}
    pairs = zip(one.named, other.named, strict=False)
    return {
        name: worst(mine, own, [torch.tensor(sizes.get(name, product / ratio if ratio else 0.0))])[1]
        for (name, mine), (_, own) in pairs
    }
