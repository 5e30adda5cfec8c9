"""Tolerances for two computations of one number, and sums of squares without under- or overflow."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rounding:
    """The relative difference that counts as rounding in float64, in float32, and in types with fewer digits.

    Two computations of one number, of terms with the size s, differ by a multiple of eps s:
    2e-16 s in float64, 1e-7 s in float32, 1e-3 or 8e-3 in float16 and bfloat16. The
    tolerances are larger, by factors that were met in correct computations (long sums,
    cancellation).

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.rounding import ROWS
    >>> [ROWS.of(dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)]
    [1e-09, 0.0001, 0.05]
    """

    double: float
    single: float
    lower: float

    def of(self, dtype: torch.dtype) -> float:
        """Return the relative difference that is allowed in a type."""
        return {torch.float64: self.double, torch.float32: self.single}.get(
            dtype, self.lower
        )


# Of one network evaluated in two ways, or of vectors pulled back in two ways.
OUTPUTS = Rounding(1e-9, 1e-3, 1e-2)
LOSS = Rounding(1e-9, 1e-4, 1e-2)  # of losses, and of their Hessians in the outputs
# Of samples alone and among others: some networks compute in float32 inside.
SINGLES = Rounding(1e-6, 1e-3, 1e-2)
# u.Av and v.Au of a correct operator: if the softmax saturates (linear attention, sigma
# 10), H_o loses ten digits to cancellation, and rounding reaches 1e-6. Wrong operators
# differ by per cents.
SYMMETRY = Rounding(1e-5, 5e-3, 5e-2)
# Of the rows of one parameter, of gradients and products by two routes.
ROWS = Rounding(1e-9, 1e-4, 5e-2)
# Of a loss in the type of its user's network and in another.
CAST = Rounding(1e-6, 1e-2, 0.2)


# Share of the root of the range of a type: a sum of 1e12 such squares does not overflow.
_MOST_ADDED = 1e-6


def unit_of(*tensors: Tensor) -> float:
    """Return the power of two by which numbers are divided before they are squared, which is exact.

    It is 1, or, if squares would under- or overflow, the largest power of two that is
    not above the largest absolute entry.

    Examples
    --------
    >>> import torch
    >>> unit_of(torch.tensor([3.0, 0.5])), unit_of(torch.tensor([1e-30])) == 2.0**-100
    (1.0, True)
    """
    peak = 0.0
    tiny = 0.0
    for tensor in tensors:
        tiny = max(tiny, torch.finfo(tensor.dtype).tiny)
        if tensor.numel():
            peak = max(peak, float(tensor.detach().abs().max()))
    is_usual = tiny**0.5 <= peak <= _MOST_ADDED / tiny**0.5
    if is_usual or not 0.0 < peak < math.inf:
        return 1.0
    _, exponent = math.frexp(peak)
    return 2.0 ** (exponent - 1)


def by_squares(
    function: Callable[[Tensor], Tensor],
    of: Tensor,
    *,
    added_in: torch.dtype | None = None,
) -> float:
    """Return f(x) for a homogeneous f that sums squares, such as a norm; x is rescaled if squares leave the range.

    For f(a x) = a f(x), a > 0, f(x) = unit f(x / unit), where the division by a power of
    two is exact. The plain result is kept if it is at least the root of the smallest
    normal number of the type in which squares are added (`added_in`), and finite: below
    that, squares have lost digits or vanished.
    """
    plain = float(function(of))
    if torch.finfo(added_in or of.dtype).tiny ** 0.5 <= plain < math.inf:
        return plain
    unit = unit_of(of)
    return plain if unit == 1.0 else float(function(of.double() / unit)) * unit


def norm(tensor: Tensor) -> float:
    """Return the Euclidean norm of all entries.

    Examples
    --------
    The squares of 1e-30 vanish in float32:

    >>> import torch
    >>> from hessfig.curvature.rounding import norm
    >>> tiny = torch.full((4,), 1e-30)
    >>> float(tiny.square().sum().sqrt()), f"{norm(tiny):.3g}"
    (0.0, '2e-30')
    """
    return by_squares(Tensor.norm, tensor)


def norm_of_all(tensors: Iterable[Tensor], plain: float) -> float:
    """Return the norm of all tensors together: `plain`, computed by squares, unless these under- or overflowed.

    hypot scales by the largest of its arguments, and does not under- or overflow.
    """
    tiny = torch.finfo(torch.float64).tiny
    return plain if tiny**0.5 <= plain < math.inf else math.hypot(*map(norm, tensors))


def deviation(samples: Tensor) -> float:
    """Return the standard deviation of samples, with the divisor n - 1; torch adds the squares in float64."""
    return by_squares(Tensor.std, samples, added_in=torch.float64)
