"""Operators are checked for symmetry before use, and compared with one product by another route.

On torch 2.15 products under vmap through the native LayerNorm are wrong by 5 to 20 % as soon as its gain and something
upstream of it are perturbed together; nothing but such a check shows it. SiLU, Mish and others have no derivative in
forward mode, and raise.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from hessfig.errors import UserError, plain
from hessfig.rng import stream

_ROUNDING = {torch.float64: 1e-7, torch.float32: 5e-3}
_TINY = 1e-300
Tensors = Sequence[Tensor]


@runtime_checkable
class Operator(Protocol):
    """A symmetric operator on lists of tensors, one a parameter, (*shape, k)."""

    def __matmul__(self, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """Multiply."""


def believed(
    fast: Operator, sure: Operator, beside: Operator, parameters: Sequence[nn.Parameter], name: str
) -> Operator:
    """Return `fast` if it is symmetric and agrees with `sure` on a random vector, else `sure`, with a warning.

    So too where `fast` cannot multiply at all (an operation without a derivative in forward mode, or one that vmap does
    not know). What is small beside the products of `beside` (the other part of the Hessian) counts as rounding. Raises
    UserError where `sure` cannot multiply, and ArithmeticError where the one that is left is not symmetric.
    """
    first, second = (_random(parameters, word) for word in ("u", "v"))
    truth = _surely(sure, second)
    floor = 1e-6 * _norm(beside @ second)
    images = _attempted(fast, first, second)
    if isinstance(images, Exception):
        why = f"curvlinops cannot differentiate this network ({type(images).__name__}: {images})"
    else:
        off = _norm(_difference(images[1], truth)) / max(_norm(truth), _norm(images[1]), floor, _TINY)
        agrees = off <= _rounding(first) or not (_is_finite(truth) or _is_finite(images[1]))
        if agrees and _is_symmetric(first, second, images, floor):
            return fast
        why = f"curvlinops' product is off by {off:.1%} here"
    message = f"{name}: {plain(why)}; plain double backward is used instead"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    return _sound(sure, _is_symmetric(first, second, (sure @ first, truth), floor), name)


def _surely(sure: Operator, vector: Tensors) -> Tensors:
    try:
        return sure @ vector
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            "the network or its loss cannot be differentiated twice",
            got=plain(f"{type(error).__name__}: {error}", most=300),
            allowed="operations that have a derivative of their derivative",
            remedy="write the operation in elementary ones; choose no attention kernel in forward()",
        ) from error


def _attempted(fast: Operator, *vectors: Tensors) -> tuple[Tensors, Tensors] | Exception:
    """Return the products by both vectors, or what was raised: `sure` has multiplied, so the network is sound."""
    try:
        first, second = (fast @ vector for vector in vectors)
        return first, second
    except Exception as error:
        return error


def _is_finite(columns: Tensors) -> bool:
    return all(bool(column.isfinite().all()) for column in columns)


def _sound(operator: Operator, is_symmetric: bool, name: str) -> Operator:
    if not is_symmetric:
        raise ArithmeticError(
            f"the products of {name} are not those of a symmetric operator: u.Av differs from v.Au"
        )
    return operator


def _random(parameters: Sequence[nn.Parameter], name: str) -> list[Tensor]:
    generator = stream(0, "belief", name)
    draws = [torch.randn((*p.shape, 1), dtype=torch.float64, generator=generator) for p in parameters]
    return [draw.to(p) for draw, p in zip(draws, parameters, strict=True)]


def _is_symmetric(u: Tensors, v: Tensors, images: tuple[Tensors, Tensors], floor: float) -> bool:
    """Whether u.Av = v.Au up to rounding, `images` being Au and Av. Products that are not finite cannot tell."""
    difference = abs(_dot(v, images[0]) - _dot(u, images[1]))
    scale = _norm(u) * max(_norm(images[0]), _norm(images[1]), floor)
    return not difference > _rounding(u) * scale


def _difference(left: Tensors, right: Tensors) -> list[Tensor]:
    return [a - b for a, b in zip(left, right, strict=True)]


def _norm(columns: Tensors) -> float:
    return _dot(columns, columns) ** 0.5


def _dot(left: Tensors, right: Tensors) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(left, right, strict=True))


def _rounding(columns: Tensors) -> float:
    return _ROUNDING.get(columns[0].dtype, 5e-2)
