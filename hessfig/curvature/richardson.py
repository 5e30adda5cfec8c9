"""Products with a Hessian by central differences of gradients, extrapolated, each with the error of its own vector."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Tensors = Sequence[Tensor]
Gradient = Callable[[Tensors], Tensors]
Length = Callable[[Tensors], float]

# Relative errors up to this multiple of the root of the roundoff end the search: 5e-4
# in float32.
ACCURATE = 2.0
# Of error estimates: rounding errors at several steps may be alike, and the least
# estimate is taken.
_SAFETY = 2.0
_MOST_TRIES = 4
# In 17 networks rounding changes gradients by 0.1 to 200 roundoffs; kinks and
# saturation, where they matter, by 500.
_NOISIEST = 300.0
# A step that is too long costs 2^4 for every octave, and one that is too short costs 2.
_FIRST = 0.5
# Octaves between two tries.
_MOST_DOWN = 3
_MOST_UP = 5


class Quotient(NamedTuple):
    """A central difference D_h, and the entries whose rounding errors it has: u times `rounded`, over h.

    `rounded` is |g| + |w| / |v| |D_h| entry by entry (see product_by_differences): the
    sizes of the gradients that are subtracted, and what the roundoff of the moved weights
    changes in them.
    """

    difference: Tensors
    rounded: Tensors


class Differenced(NamedTuple):
    """A product by differences.

    Attributes
    ----------
    product : list of tensors
        H v.
    deviation : list of tensors
        An estimate of the error of every entry, with a sign; its norm is the stated
        error.
    gradients : int
        The number of gradients that were evaluated.
    """

    product: Tensors
    deviation: Tensors
    gradients: int


def length(tensors: Tensors) -> float:
    """Return the norm of all entries, in float64; it is not finite if an entry is not.

    Norms of the tensors are combined, |x| = (sum_t |x_t|^2)^(1/2), each accumulated in
    float64 without a copy of the tensor in this type.
    """
    norms = []
    for one in tensors:
        norms.append(torch.linalg.vector_norm(one.detach(), dtype=torch.float64).cpu())
    return float(torch.stack(norms).norm())


def product_by_differences(
    gradient: Gradient,
    weights: Tensors,
    vector: Tensors,
    *,
    unit: float,
    length: Length = length,
) -> Differenced:
    r"""Return H v, where H is the derivative of `gradient` at `weights`, and an estimate of its error.

    .. math:: D_h = \frac{g(w + h v) - g(w - h v)}{2 h} = H v + c h^2 + d h^4 + \dots, \qquad
              R_h = \frac{4 D_h - D_{2h}}{3} = H v - 4 d h^4 + \dots

    R_h has a truncation error of order h^4 and a rounding error of about u |g| / h,
    with the roundoff u of the type. Which step balances them depends on the vector: a
    vector in few entries moves these far. The estimate is

    - 2 |D_h - D_2h| if that is small: four gradients;
    - otherwise 2 |R_h - R_2h|, where D_4h is evaluated too: six gradients. It is 120 d
      h^4 for the truncation error, and about twice the rounding error, because the
      rounding errors of several steps are independent.

    If the estimate exceeds ACCURATE sqrt(u) |R_h|, further steps are tried, shorter
    ones if truncation dominates and longer ones if rounding does, and the product with
    the smallest estimate is returned. To every estimate the roundoff u |g| / h of the
    gradient is added, and that of the moved weights, u |w| |D_h| / h |v| over the
    entries in which v is not zero. So estimates from a few entries are not small by
    chance, and no error is stated as zero.

    Parameters
    ----------
    gradient : callable
        Returns the gradient at given weights. It may have more or fewer tensors than
        the weights (some rows of H).
    weights, vector : list of tensors
        The point w and the vector v, alike in shapes. Tensors may be sharded if
        `length` sums over all shards.
    unit : float
        The roundoff of the type with the fewest digits inside the gradient:
        torch.finfo(dtype).eps / 2.
    length : callable
        Returns the norm of a list of tensors.

    Examples
    --------
    The gradient of sum(w^4) / 4 is w^3, and H v is 3 w^2 v. A vector of length 1000 is
    no problem:

    >>> import torch
    >>> from hessfig.curvature import product_by_differences
    >>> weights, vector = [torch.tensor([1.0, 2.0]).double()], [torch.tensor([0.0, 1000.0]).double()]
    >>> product, deviation, gradients = product_by_differences(
    ...     lambda at: [one**3 for one in at], weights, vector, unit=2.0**-53
    ... )
    >>> product[0].round(decimals=4).tolist(), gradients
    ([0.0, 12000.0], 4)
    >>> bool((product[0] - torch.tensor([0.0, 12000.0])).norm() < deviation[0].norm() < 1e-3)
    True
    """

    ratio = moved_weights(weights, vector, length=length)

    def gradient_at(step: float) -> Tensors:
        pairs = zip(weights, vector, strict=True)
        return gradient([weight + step * along for weight, along in pairs])

    def quotient(step: float) -> Quotient:
        ahead = gradient_at(step)
        behind = gradient_at(-step)
        differences = []
        rounded = []
        for plus, minus in zip(ahead, behind, strict=True):
            difference = (plus - minus) / (2 * step)
            size = (plus.abs() + minus.abs()) / 2
            differences.append(difference)
            rounded.append(size + ratio * difference.abs())
        return Quotient(differences, rounded)

    start = first_step(weights, vector, unit=unit, length=length)
    return extrapolated(quotient, start, unit=unit, length=length)


def first_step(
    weights: Tensors, vector: Tensors, *, unit: float, length: Length = length
) -> float:
    r"""Return the step that is tried first.

    .. math:: h = \tfrac{1}{2} u^{1/3} \frac{|w|}{|v|} \left(\frac{P}{n}\right)^{1/4}, \qquad
              P = \frac{(\sum v_i^2)^2}{\sum v_i^4},

    with the n entries of the tensors in which v is not zero. P is the number of entries
    that v fills: n for signs, 1 for a unit vector. The geometric mean of two rules is
    taken: v changes the weights by u^(1/3) of their norm (P / n to the power 0), or
    each filled entry by u^(1/3) of the root mean square of the weights (P / n to the
    1/2).

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.richardson import first_step
    >>> weights = [torch.ones(16)]
    >>> signs, entry = torch.ones(16), torch.eye(16)[0]
    >>> [round(first_step(weights, [one], unit=2.0**-24), 9) for one in (signs, entry)]
    [0.001953125, 0.00390625]
    """
    size = length(vector)
    if not size > 0:
        return 1.0
    moved = []
    squares = []
    for weight, along in zip(weights, vector, strict=True):
        if length([along]) > 0:
            moved.append(weight)
            squares.append((along / size).double().square())
    number = sum(weight.numel() for weight in moved)
    participation = length(squares) ** -2
    scale = length(moved) or 1.0
    return _FIRST * unit ** (1 / 3) * scale / size * (participation / number) ** 0.25


def moved_weights(
    weights: Tensors, vector: Tensors, *, length: Length = length
) -> float:
    """Return |w| / |v| over the entries in which v is not zero.

    The moved weights w + h v are rounded to u |w|. Along v, that is a step of u |w| / |v|
    more or less, which changes the gradient by that times |H v|.
    """
    size = length(vector)
    pairs = zip(weights, vector, strict=True)
    moved = length([weight * (along != 0) for weight, along in pairs])
    return moved / size if size > 0 else 0.0


def extrapolated(
    quotient: Callable[[float], Quotient],
    start: float,
    *,
    unit: float,
    length: Length = length,
) -> Differenced:
    """Return the limit of D_h for h to zero and an estimate of its error (see product_by_differences).

    `quotient` returns D_h for a step h, and `start` is the step that is tried first. The
    search is over octaves, h = 2^k `start`, between bounds: a step at which rounding
    dominates is a lower bound of better steps, one at which truncation dominates an upper
    bound. It ends with an accurate product, after _MOST_TRIES steps, or if no octave is
    left between the bounds; the product with the smallest estimated error is returned.

    Examples
    --------
    D_h = 1 + h^2 has the limit 1, which R_h finds exactly:

    >>> import torch
    >>> from hessfig.curvature.richardson import Quotient, extrapolated
    >>> def quotient(h):
    ...     return Quotient([torch.tensor([1 + h**2]).double()], [torch.ones(1).double()])
    >>> found = extrapolated(quotient, 0.5, unit=2.0**-53)
    >>> round(float(found.product[0]), 12), found.gradients
    (1.0, 6)
    """
    steps = _Steps(quotient, start, unit, length)
    best = trial = steps.tried(0)
    shortest = -math.inf
    longest = math.inf
    for _ in range(_MOST_TRIES - 1):
        if trial.is_accurate:
            break
        if trial.is_rounding:
            shortest = trial.octave
        else:
            longest = trial.octave
        octave = _between(trial.octave + trial.jump, shortest, longest)
        if octave in (shortest, longest):
            if not trial.is_rounding or best.octave != longest:
                break
            # A shorter step was worse, by rounding: this one was not too long.
            shortest = longest
            longest = math.inf
            octave = best.octave + trial.jump
        # Its tensors would add to those of the next one.
        del trial
        trial = steps.tried(octave)
        if trial.error < best.error:
            best = trial
    return Differenced(best.product, best.deviation, steps.gradients)


def _between(octave: int, shortest: float, longest: float) -> int:
    """Return the octave, or the middle of both bounds if it is outside of them.

    Examples
    --------
    >>> from hessfig.curvature.richardson import _between
    >>> _between(-9, -6, 0), _between(-2, -6, 0)
    (-3, -2)
    """
    if shortest < octave < longest:
        return octave
    return math.floor((shortest + longest) / 2)


@dataclass(frozen=True, eq=False)
class _Trial:
    """The extrapolated product of one step, 2^octave times the first one.

    `error` and `size` are the norms of deviation and product; `goal` is the relative
    error that ends the search.
    """

    octave: int
    product: Tensors
    deviation: Tensors
    error: float
    size: float
    goal: float
    is_rounding: bool = False

    @property
    def is_accurate(self) -> bool:
        """Whether the error is small; a product of which nothing is left has the roundoff of the gradient as error."""
        if self.size == 0:
            return math.isfinite(self.error)
        return self.error <= self.goal * self.size

    @property
    def jump(self) -> int:
        """The number of octaves to a step with a small error.

        Rounding errors fall as 1 / h, truncation errors of R_h as h^4. For an error that is e
        times the goal, the step has to grow by log2(e) octaves in the first case, and to shrink
        by log2(e) / 4 in the second; at least one octave, and at most _MOST_UP and _MOST_DOWN.
        """
        excess = math.inf
        if self.size:
            excess = self.error / (self.goal * self.size)
        octaves = math.log2(excess) if excess > 1 else 0.0
        if self.is_rounding:
            return max(1, math.ceil(min(octaves, _MOST_UP)))
        return -max(1, math.ceil(min(octaves / 4, _MOST_DOWN)))


class _Steps:
    """The central differences of the steps 2^k h, k the octave; those of three octaves are kept."""

    def __init__(
        self,
        quotient: Callable[[float], Quotient],
        step: float,
        unit: float,
        length: Length,
    ) -> None:
        self._quotient = quotient
        self._step = step
        self._unit = unit
        self._length = length
        self._quotients: dict[int, Quotient] = {}
        self.gradients = 0

    def tried(self, octave: int) -> _Trial:
        """Return the product with D_h and D_2h; D_4h is evaluated if these two do not agree.

        The error is 2 |D_h - D_2h|, or 2 |R_h - R_2h| if that is not small. Quotients of other
        octaves are dropped; each new one takes two gradients.
        """
        for other in list(self._quotients):
            if not octave <= other <= octave + 2:
                del self._quotients[other]
        near = self._at(octave)
        middle = self._at(octave + 1)
        product = _extrapolation(near, middle)
        apart = _apart(near.difference, middle.difference)
        trial = self._trial(octave, product, apart)
        if trial.is_accurate:
            return trial
        far = self._at(octave + 2)
        further_apart = _apart(middle.difference, far.difference)
        is_rounding = self._is_rounding(octave, apart, further_apart)
        apart = _apart(product, _extrapolation(middle, far))
        return self._trial(octave, product, apart, is_rounding=is_rounding)

    def _at(self, octave: int) -> Quotient:
        """Return the central difference of a step."""
        if octave not in self._quotients:
            self._quotients[octave] = self._quotient(self._step * 2.0**octave)
            self.gradients += 2
        return self._quotients[octave]

    def _trial(
        self,
        octave: int,
        product: Tensors,
        apart: Tensors,
        *,
        is_rounding: bool = False,
    ) -> _Trial:
        """Return the product of a step, which differs from that of another step by `apart`.

        The deviation is 2 |apart| + u |g| / h, with the sign of `apart`.
        """
        h = self._step * 2.0**octave
        deviation = []
        entries = zip(apart, self._quotients[octave].rounded, strict=True)
        for difference, rounded in entries:
            roundoff = self._unit * rounded / h
            least = torch.copysign(roundoff, difference)
            deviation.append(_SAFETY * difference + least)
        error = self._length(deviation)
        size = self._length(product)
        if not (math.isfinite(error) and math.isfinite(size)):
            error = math.inf
        goal = ACCURATE * self._unit**0.5
        return _Trial(octave, product, deviation, error, size, goal, is_rounding)

    def _is_rounding(self, octave: int, near: Tensors, far: Tensors) -> bool:
        """Whether rounding makes the differences between steps, |D_h - D_2h| and |D_2h - D_4h|.

        By truncation, D_h - D_2h = -3 c h^2 and D_2h - D_4h = -12 c h^2: the second is four
        times the first. By rounding, errors of D_h of the size e / h, it is half of it. It is
        also half of it if the steps cross kinks, or are so long that the gradient saturates,
        but then the gradients differ by more than rounding explains: h |D_h - D_2h| is above
        _NOISIEST u |g|.
        """
        change = self._length(near) * self._step * 2.0**octave
        most = _NOISIEST * self._unit * self._length(self._quotients[octave].rounded)
        return self._length(far) <= self._length(near) and change <= most


def _extrapolation(near: Quotient, far: Quotient) -> Tensors:
    """Return R_h = (4 D_h - D_2h) / 3."""
    pairs = zip(near.difference, far.difference, strict=True)
    return [(4 * one - other) / 3 for one, other in pairs]


def _apart(first: Tensors, other: Tensors) -> Tensors:
    """Return the differences of two lists of tensors."""
    return [one - two for one, two in zip(first, other, strict=True)]
