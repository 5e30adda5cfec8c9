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

# Relative difference allowed between derivatives and finite differences.
AGREE = 1e-3
# Of a disagreement: if the differences of two steps agree to this share, there is no
# kink between them.
_ALIKE = 0.1
# The second step relative to the first: small enough to exclude most kinks, large
# enough for rounding of the type.
_NEARER = {torch.float64: 1e-3}
_NEARER_OF_FEW_DIGITS = 0.1
# A longer step that has to confirm a difference of values, by the type of the loss, and
# for types with fewer digits: 0.6 % of the weights, where a value that terms of any size
# have left few digits still changes.
_LONGER = {torch.float64: 1e3}
_LONGER_OF_FEW_DIGITS = 30
# Roundoffs that a sum of many terms may be off by.
_ROUNDOFFS = 100
# Allowed asymmetry, relative to the length of a product.
_ASYMMETRY = 1e-4
_NO_FUNCTION = (
    "the gradient of this loss is not that of a function: u.Hv differs from v.Hu"
)
_NO_GRADIENT = (
    "give what is detached or rounded as data, computed beforehand; an inner torch.autograd.grad takes "
    "create_graph=True; remove hooks that change gradients"
)
DIFFERENCES = "products='differences' (estimator.products=differences), or elementary operations in its place"
# Step to a nearby point, relative to the root mean square of each parameter.
STEP = 1e-2
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Derivatives:
    """Value, gradient and products H v of a function at a point; gradient and products are by parameter.

    Attributes
    ----------
    value : tensor, ()
    slopes : dict
        The gradient by parameter; empty for order 0.
    products : sequence of dict
        H v for each vector; empty below order 2, or if there is a failure.
    reached : frozenset of str
        The parameters that the value depends on, as autograd sees it.
    failure : Exception or None
        The reason why there are no products.
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
        # Both vectors have entries of size one, so that their length is the root of the
        # number of entries.
        count = sum(one.numel() for one in parameters.values())
        ratio = length(parameters.values()) / max(count, 1) ** 0.5
        return cls((signs, ones), step_of(parameters), ratio)

    def like(self, leaves: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        """Return the vectors in the types of the leaves."""
        return [_like(vector, leaves) for vector in self.vectors]

    def size_of_terms(self, here: Derivatives) -> float:
        r"""Return the size of the terms of a value, as the function of this name, from its derivatives at one point.

        .. math:: \max\bigl(|f|, \; r |g|, \; r^2 |v^\top H v|\bigr), \qquad r = |w| / |v|:

        the first terms of f(w + r v), a step as long as the weights. A value that is zero by
        cancellation has terms of this size, and rounding errors relative to it.
        """
        size = max(abs(float(here.value)), self.ratio * length(here.slopes.values()))
        for vector, product in zip(self.vectors, here.products, strict=False):
            along = list(_like(vector, product).values())
            bend = inner(along, list(product.values()))
            size = max(size, self.ratio**2 * abs(float(bend)))
        return size


def _like(vector: Tensors, leaves: Tensors) -> dict[str, Tensor]:
    """Return a vector in the types, on the devices and in the order of the leaves."""
    return {name: vector[name].to(leaf) for name, leaf in leaves.items()}


def _flat(tensors: Tensors) -> Tensor:
    """Return all entries as one vector."""
    return torch.cat([one.detach().flatten() for one in tensors.values()])


def step_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a step of length STEP, relative to each parameter, along a random vector.

    d = STEP rms(w_p) s with random signs s, so that |d| = STEP |w_p| in every parameter; a
    parameter that is zero moves as if its root mean square were 1. The signs depend on
    the name of the parameter alone, so that two types take the same step.
    """
    steps = {}
    for name, parameter in parameters.items():
        steps[name] = STEP * _scale(parameter) * _signs("step", name, parameter)
    return steps


def size_of_terms(here: Tensor, beside: Tensor) -> float:
    """Return the size of the terms that make up some numbers, from their values at the weights and one step away.

    max(|f(w)|, |f(w + d)|, |f(w + d) - f(w)| / STEP), the largest finite entry of each.
    Terms may cancel in a value, which is then a rounding error of either sign; they do
    not cancel in its change under a step as long as the weights.

    Examples
    --------
    f(w) = 1000 w - 1000 is zero at w = 1, where its terms are 1000; d = 0.01 w.

    >>> import torch
    >>> from hessfig.curvature.witness import size_of_terms
    >>> round(size_of_terms(torch.tensor(0.0), torch.tensor(10.0)))
    1000
    """
    return max(peak(here), peak(beside), peak(beside - here) / STEP)


def peak(tensor: Tensor) -> float:
    """Return the largest finite entry in size; 0 if there is none."""
    if not tensor.numel():
        return 0.0
    return float(tensor.nan_to_num(0.0, 0.0, 0.0).abs().max())


def _signs(word: str, name: str, like: Tensor) -> Tensor:
    """Return random signs, the same for every type and device."""
    generator = stream(0, "witness", word, name)
    bits = torch.randint(
        0, 2, like.shape, generator=generator, dtype=torch.int8, device="cpu"
    )
    return (2 * bits - 1).to(like)


def _scale(parameter: Tensor) -> Tensor:
    """Return the root mean square of a parameter; 1 if it is zero or not finite."""
    size = parameter.double().square().mean().sqrt()
    is_usual = (size > 0) & size.isfinite()
    return torch.where(is_usual, size, torch.ones_like(size)).to(parameter)


def derivatives(
    terms: Iterable[Callable[[], Tensor]],
    at: Mapping[str, Tensor],
    vectors: Sequence[Tensors],
    order: int,
) -> Derivatives:
    """Return the derivatives of a sum of terms in the leaves `at`, up to `order`, with the graph of one term at a time.

    Derivatives are linear in the function: those of the terms are added. Products are
    computed by plain double backward, H v as the gradient of <g, v>. If that fails, first
    derivatives are returned with the failure.

    Parameters
    ----------
    terms : iterable of callables
        Each returns one term as a number with a graph.
    at : dict
        Leaves that require gradients, by name.
    vectors : sequence of dict
        The vectors v, by name; used for order 2.
    order : 0, 1 or 2

    Examples
    --------
    w^3 + w^2 at w = 2, and its second derivative 6 w + 2 along v = 1:

    >>> import torch
    >>> from hessfig.curvature.witness import derivatives
    >>> w = torch.tensor(2.0, requires_grad=True)
    >>> found = derivatives([lambda: w**3, lambda: w**2], {"w": w}, [{"w": torch.ones(())}], 2)
    >>> float(found.value), float(found.slopes["w"]), float(found.products[0]["w"])
    (12.0, 16.0, 14.0)
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
    """Return the loss of every batch of a problem, times its share, as functions evaluated at the parameters `at`.

    Their sum is L(w) = sum_k s_k l(f(w, x_k), y_k) (Objective).
    """

    def of_batch(network: nn.Module, share: float, batch: Batch) -> Tensor:
        outputs = scored_outputs(network, batch.inputs, batch.scored)
        return share * objective.loss(outputs, batch.targets)

    evaluated = Evaluated(objective.network, of_batch)
    inside = {f"network.{name}": one for name, one in at.items()}
    terms: list[Callable[[], Tensor]] = []
    for batch in zip(objective.shares, objective.batches, strict=True):
        terms.append(partial(functional_call, evaluated, inside, batch))
    return terms


def _of_term(
    term: Callable[[], Tensor],
    at: Mapping[str, Tensor],
    vectors: Sequence[Tensors],
    order: int,
) -> Derivatives:
    """Return the derivatives of one term, of the given order.

    A term without a graph is a constant, whose derivatives are zero. If second derivatives
    fail, those of first order are computed anew, without a graph.
    """
    value = term()
    if not order:
        return Derivatives(value.detach())
    if not value.requires_grad:
        zeros = {name: torch.zeros_like(leaf) for name, leaf in at.items()}
        no_products = [zeros] * len(vectors) if order > 1 else ()
        return Derivatives(value.detach(), zeros, no_products)
    products = []
    try:
        slopes, reached = _slopes(value, at, create_graph=order > 1)
        if order > 1:
            products = [_times(slopes, vector, at) for vector in vectors]
    except (RuntimeError, NotImplementedError) as error:
        if order < 2:
            raise
        return _without_products(term, at, error)
    return Derivatives(value.detach(), _by_name(at, slopes), products, reached)


def _slopes(
    value: Tensor, at: Mapping[str, Tensor], *, create_graph: bool
) -> tuple[list[Tensor], frozenset[str]]:
    """Return the gradient, zero for leaves that the value does not depend on, and the names of the other leaves.

    Cotangents require gradients if a graph is created, for the reason in
    double_backward.gradients: torch would otherwise treat the gradient of a function that
    is differentiable only once as constant.
    """
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
    slopes = []
    reached = set()
    for (name, leaf), grad in zip(at.items(), grads, strict=True):
        if grad is None:
            slopes.append(torch.zeros_like(leaf))
        else:
            slopes.append(grad)
            reached.add(name)
    return slopes, frozenset(reached)


def _without_products(
    term: Callable[[], Tensor], at: Mapping[str, Tensor], error: Exception
) -> Derivatives:
    """Return the first derivatives, and the failure of the second ones."""
    first = _of_term(term, at, (), 1)
    return Derivatives(first.value, first.slopes, (), first.reached, error)


def _times(
    slopes: Sequence[Tensor], vector: Tensors, at: Mapping[str, Tensor]
) -> Tensors:
    """Return H v as the gradient of <gradient, v>."""
    along = inner(of_second_order(list(slopes)), [vector[name] for name in at])
    return _by_name(at, gradients(along, list(at.values())))


def _by_name(at: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in zip(at, tensors, strict=True)}


def _added(left: Derivatives, right: Derivatives) -> Derivatives:
    """Return the derivatives of a sum of two functions."""
    failure = left.failure or right.failure
    products = []
    if not failure:
        for pair in zip(left.products, right.products, strict=False):
            products.append(_sum_of(*pair))
    return Derivatives(
        left.value + right.value,
        _sum_of(left.slopes, right.slopes),
        products,
        left.reached | right.reached,
        failure,
    )


def _sum_of(first: Tensors, other: Tensors) -> Tensors:
    return {name: first[name] + other[name] for name in first}


def apart(first: Derivatives, other: Derivatives, ratio: float) -> dict[str, float]:
    r"""Return the relative difference of the derivatives of two functions, by derivative, for the worst parameter.

    Rounding is relative to the change under a step as long as the weights. With r = |w| /
    |v| (`ratio`), the gradient g and the first product H v, the sizes beside which small
    differences are judged (double_backward.differing) are

    .. math:: \text{value: } r \max(|g|, r |H v|), \qquad \text{gradient: } r |H v|, \qquad
              \text{products: } |H v|.

    The size of a gradient vanishes at a minimum, and that of its terms does not.
    """
    product = 0.0
    if first.products:
        product = ratio * length(first.products[0].values())
    slope = ratio * max(length(first.slopes.values()), product)
    sizes = {"value": slope, "gradient": product}
    size_of_products = product / ratio if ratio else 0.0
    differences = {}
    for (name, mine), (_, theirs) in zip(first.named, other.named, strict=False):
        size = torch.tensor(sizes.get(name, size_of_products))
        _, differences[name] = worst(mine, theirs, [size])
    return differences


def refusal_of(
    objective: Objective, here: Derivatives, vectors: list[Tensors]
) -> UserError | None:
    r"""Return an error if the second derivatives by autograd are not those of the loss.

    Two tests, with u the random and v the constant vector. *Symmetry*: a gradient is that
    of a function only if u^T H v = v^T H u. *Differences*: H u has to agree with

    .. math:: \frac{g(w + h u) - g(w - h u)}{2 h}

    in every parameter, which finds second derivatives that are symmetric but wrong (a
    backward pass of a user with a constant in it). Rounding is that of products of the
    length 100 eps |g| |v| / |w|: shorter ones may consist of it, and with this length
    over _ASYMMETRY as the least size their asymmetry is not above _ASYMMETRY.

    `here` contains the derivatives, with products by the random and the constant vector
    in `vectors`; they are compared with differences in float64, or in the type of the
    loss if it cannot be evaluated in float64 (it closes over data of its own).
    Parameters that autograd does not reach are constants. Where a kink of the loss
    explains the difference, a point one step away decides, since kinks at zeros (of
    biases, of penalties) are not there; if it is near another kink, nothing is refused.
    Products that are not finite are not judged.

    Differences of gradients are the remedy if these gradients are those of the loss
    (_Ray.misses_values): of l * l.detach() they are those of l^2 / 2.
    """
    if here.failure or len(here.products) < 2:
        return None
    if not all(map(_is_finite, here.products)):
        return None
    signs, ones = vectors
    eps = torch.finfo(here.value.dtype).eps
    rounding = _ROUNDOFFS * eps * _usual(objective, here, signs)
    # Shorter products may consist of rounding errors.
    least = rounding * length(signs.values()) / _ASYMMETRY
    off = asymmetry(vectors, here.products, least)
    asymmetric = f"{off:.2g} of their size"
    ray = _ray(objective, here.reached, signs)
    if off > _ASYMMETRY and not ray.is_symmetric(ones):
        return _refused(objective, _NO_FUNCTION, asymmetric, _NO_GRADIENT)
    product = here.products[0]
    if len(here.reached) < len(here.slopes):
        product = ray.product()
    where, at_kink = ray.off(product, rounding)
    if at_kink:
        ray = _Ray(ray.problem, here.reached, signs, moved=True)
        where = ""
        if not ray.is_outside:
            where, _ = ray.off(ray.product(), rounding)
    if where:
        remedy = _NO_GRADIENT
        if ray.is_symmetric(ones) and not ray.misses_values():
            remedy = DIFFERENCES
        return _refused(
            objective,
            "autograd's second derivative does not match differences of the gradient of this loss",
            where,
            remedy,
        )
    if off > _ASYMMETRY:
        return _refused(objective, _NO_FUNCTION, asymmetric, _NO_GRADIENT)
    return None


def refusal_by_values(
    objective: Objective, here: Derivatives, vector: Tensors
) -> UserError | None:
    """Return an error if the gradient by autograd is not that of the values of the loss.

    Of f + g.detach() gradient and second derivatives are those of f, without a
    contradiction between them: only the values tell. They are compared at the weights
    and one step away, since central differences at a kink are the mean of both slopes.
    """
    if not here.reached or not _is_finite(here.slopes):
        return None
    ray = _ray(objective, here.reached, vector)
    if not ray.misses_values():
        return None
    beside = _Ray(ray.problem, here.reached, vector, moved=True)
    if beside.is_outside or not beside.misses_values():
        return None
    rise = beside.slope_of_values()
    expected = beside.slope_by_autograd
    return _refused(
        objective,
        "the gradient of this loss is not that of its values",
        f"along a random vector the loss rises by {rise:.3g}, its gradient says {expected:.3g}",
        _NO_GRADIENT,
    )


def misses_values(objective: Objective, vector: Tensors) -> bool:
    """Whether the loss changes along a vector otherwise than its gradient says; also by parameters not reached."""
    return _ray(objective, frozenset(vector), vector).misses_values()


def _ray(objective: Objective, reached: frozenset[str], vector: Tensors) -> _Ray:
    """Return the loss along a vector, in float64 where the loss can be evaluated in it."""
    ray = _Ray(objective.cast(torch.float64), reached, vector)
    if objective.dtype == torch.float64 or ray.can_be_evaluated:
        return ray
    return _Ray(objective, reached, vector)


def _usual(objective: Objective, here: Derivatives, vector: Tensors) -> float:
    """Return |g| |v| / |w|, the length of a product if the gradient g changes by its own length over the weights w.

    A gradient that changes by its own length over a step of |w| along v / |v| has |H v| |w|
    / |v| = |g|.
    """
    weights = length(leaves_of(objective, vector).values())
    return length(here.slopes.values()) * length(vector.values()) / (weights or 1.0)


class _Ray:
    """The loss L(w + h v) as a function of h, with v zero for parameters which autograd does not reach.

    Its differences of gradients are (g(w + h v) - g(w - h v)) / 2h = H v + O(h^2); those
    of the other parameters would contain derivatives that autograd takes for zero. With
    `moved`, w is a step away from the weights (`step_of`).
    """

    def __init__(
        self,
        objective: Objective,
        reached: frozenset[str],
        vector: Tensors,
        *,
        moved: bool = False,
    ) -> None:
        self.problem = objective
        self._reached = reached
        self._is_moved = moved
        self._at = leaves_of(objective, vector)
        if moved:
            steps = step_of({name: one.detach() for name, one in self._at.items()})
            for name, leaf in self._at.items():
                self._at[name] = (leaf.detach() + steps[name]).requires_grad_()
        self.vector = _like(vector, self._at)
        for name, along in self.vector.items():
            if name not in reached:
                self.vector[name] = torch.zeros_like(along)

    @cached_property
    def _inside(self) -> torch.dtype:
        """The type with the fewest digits in which the first batch is evaluated."""
        with torch.enable_grad(), differentiable_twice():
            return narrowest_type(terms_of(self.problem, self._at)[0]())

    @cached_property
    def _step(self) -> float:
        r"""The step of differences.step, or h = u^(1/2) |w| / |v| where the loss has fewer digits than the weights.

        Models of transformers compute their loss in float32. The rounding of a difference is
        u |g| / h, so that relative to |g| |v| / |w|, a usual product, it is

        .. math:: u \Big/ u^{1/2} = 2 \cdot 10^{-4} \text{ with this step, below AGREE}, \qquad
                  u_{32} \Big/ u_{64}^{1/3} = 10^{-2} \text{ with the step of float64},

        where differences would say nothing. u^(1/2) is u^(1/3), the power of differences.step,
        times the u^(1/6) of `stretch`.
        """
        if not self._reached:
            return 1.0
        weights = _flat(self._at)
        vector = _flat(self.vector)
        eps = torch.finfo(self._inside).eps
        if eps <= torch.finfo(weights.dtype).eps:
            return step(weights, vector)
        # From the power 1/3 of differences.step to 1/2.
        stretch = float((eps / 2) ** (1 / 2 - 1 / 3))
        return stretch * step(weights.to(self._inside), vector)

    @property
    def is_outside(self) -> bool:
        """Whether the network changes the weights at this point when it is called (max_norm of an embedding)."""
        called = {}
        for name, leaf in self._at.items():
            called[name] = leaf.detach().clone().requires_grad_()
        derivatives(terms_of(self.problem, called), called, (), 0)
        names = called.keys()
        return not all(torch.equal(called[name], self._at[name]) for name in names)

    @property
    def can_be_evaluated(self) -> bool:
        """Whether the user's code takes numbers of this type."""
        try:
            return bool(self.near)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever it raises
            return False

    def misses_values(self) -> bool:
        r"""Whether the loss changes along the vector by something else than its gradient g says.

        .. math:: \Bigl|\frac{L(w + h v) - L(w - h v)}{2 h} - g^\top v\Bigr| >
                  \text{AGREE} \, |g| + 100 \, u \, \frac{|L|}{h}.

        It does if autograd takes for a constant what changes the loss: detached values, and
        what our contexts of evaluation may have taken from the graph. A disagreement counts
        if the difference with a longer step is nearer to that with h than to the gradient.
        Rounding errors fall with the step, and |L| does not tell those of a value whose terms
        cancel, such as (f + 1e12) - 1e12.
        """
        rise = self.slope_of_values()
        expected = self.slope_by_autograd
        apart = abs(rise - expected)
        eps = torch.finfo(self._inside).eps
        size = abs(float(self._first.value))
        allowed = AGREE * length(self._first.slopes.values())
        # A loss that is not finite is not judged.
        if not apart > allowed + _ROUNDOFFS * eps * size / self._step:
            return False
        stretch = _LONGER.get(self._inside, _LONGER_OF_FEW_DIGITS)
        longer = self.slope_of_values(stretch)
        return abs(longer - rise) < abs(longer - expected)

    @property
    def slope_by_autograd(self) -> float:
        """The gradient times the vector."""
        slopes = self._first.slopes
        return float(inner(list(slopes.values()), list(self.vector.values())))

    def slope_of_values(self, stretch: float = 1.0) -> float:
        """Return the central difference of the loss along the vector; `stretch` multiplies the step."""
        h = stretch * self._step
        ahead = self._derivatives(h, (), 0).value
        behind = self._derivatives(-h, (), 0).value
        return float(ahead.double() - behind.double()) / (2 * h)

    @cached_property
    def _first(self) -> Derivatives:
        """Value and gradient at this point."""
        return self._derivatives(0.0, (), 1)

    @cached_property
    def near(self) -> Tensors:
        """H v by differences with the step of differences.step."""
        return self._differences(1.0)

    def is_symmetric(self, vector: Tensors) -> bool:
        """Whether differences along this ray and along another vector are those of a symmetric matrix."""
        other = _Ray(self.problem, self._reached, vector, moved=self._is_moved)
        return asymmetry([self.vector, other.vector], [self.near, other.near]) <= AGREE

    def off(self, product: Tensors, rounding: float) -> tuple[str, bool]:
        r"""Return the worst parameter in which H v differs from differences, in words, and whether a kink explains it.

        The rows p of a parameter, n_p of n entries, differ if

        .. math:: |(D_h - H v)_p| > \max\bigl(\text{AGREE} \, |(H v)_p|,
                  \; \text{rounding} \, \sqrt{n_p / n}\bigr),

        up to the other terms of double_backward.differing; `beside` is the rounding over AGREE
        and FLOOR, by which that function multiplies. Differences of two steps agree where
        there is no kink between the two points: a disagreement counts if

        .. math:: |(D_{h'} - D_h)_p| \le \tfrac{1}{10} |(D_h - H v)_p|

        with the shorter step h'. At zeros a kink shows itself in one parameter and changes the
        others too, so that the worst one decides; a step away each is judged by itself.
        """
        beside = [torch.tensor(rounding / (AGREE * FLOOR))]
        exact = {name: one.double() for name, one in product.items()}
        off = differing(self.near, exact, beside)
        wrong = [name for name in off if off[name] > AGREE]
        wrong.sort(key=lambda name: -off[name])
        judged = wrong if self._is_moved else wrong[:1]
        for name in judged:
            apart = length([self.near[name] - product[name]])
            if length([self._nearer[name] - self.near[name]]) <= _ALIKE * apart:
                return f"{name}: off by {off[name]:.2g}", False
        return "", bool(wrong)

    @cached_property
    def _nearer(self) -> Tensors:
        """H v by differences with a shorter step, which crosses fewer kinks."""
        return self._differences(_NEARER.get(self._inside, _NEARER_OF_FEW_DIGITS))

    def _differences(self, stretch: float) -> Tensors:
        """Return H v by central differences of gradients; `stretch` multiplies the step."""
        h = stretch * self._step
        ahead = self._derivatives(h, (), 1).slopes
        behind = self._derivatives(-h, (), 1).slopes
        return {name: (ahead[name] - behind[name]) / (2 * h) for name in ahead}

    def product(self) -> Tensors:
        """Return H v by double backward."""
        return self._derivatives(0.0, (self.vector,), 2).products[0]

    def _derivatives(
        self, h: float, vectors: tuple[Tensors, ...], order: int
    ) -> Derivatives:
        """Return the derivatives at w + h v."""
        moved = {}
        for name, leaf in self._at.items():
            moved[name] = (leaf.detach() + h * self.vector[name]).requires_grad_()
        return derivatives(terms_of(self.problem, moved), moved, vectors, order)


def asymmetry(
    vectors: Sequence[Tensors], products: Sequence[Tensors], least: float = 0.0
) -> float:
    """Return |u.Hv - v.Hu| relative to the longer of Hu and Hv, or to `least` if both are shorter than that.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.witness import asymmetry
    >>> vectors = [{"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 1.0])}]
    >>> matrix = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    >>> asymmetry(vectors, [{"w": matrix @ vector["w"]} for vector in vectors])
    0.5
    """
    u, v = (list(vector.values()) for vector in vectors)
    hu, hv = (list(product.values()) for product in products)
    size = max(length(hu), length(hv), least)
    if not size:
        return 0.0
    return abs(float(inner(u, hv) - inner(v, hu))) / size


def _is_finite(product: Mapping[str, Tensor]) -> bool:
    return all(bool(one.isfinite().all()) for one in product.values())


def _refused(objective: Objective, what: str, got: str, remedy: str) -> UserError:
    """Return the error, with the functions in the graph whose derivatives are written in Python."""
    at = leaves_of(objective, dict(objective.network.named_parameters()))
    functions = set()
    with torch.enable_grad(), differentiable_twice():
        for term in terms_of(objective, at):
            functions |= functions_of([term()])
    if functions:
        got += f"; derivatives written in Python: {first_few(sorted(functions))}"
    return UserError(
        what,
        got=got,
        allowed="a network and a loss whose derivatives autograd computes, twice",
        remedy=remedy,
    )
