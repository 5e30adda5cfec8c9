"""The fingerprint of a function at its weights (loss, gradient, a Hessian product) or away from them, to the bit."""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.curvature.batched import is_small
from hessfig.curvature.double_backward import differentiable_twice, gradients, inner, of_second_order
from hessfig.curvature.problem import Objective, Scalar, Suffix
from hessfig.errors import plain
from hessfig.models.identity import tensor_bytes
from hessfig.models.protocol import ONCE
from hessfig.rng import one_thread, stream
from hessfig.terms import Part

_STEP = 1e-2  # to the point beside the weights, of each parameter's root mean square
_AWAY = tuple((-1) ** k * 2 ** (k / 4) for k in range(-20, 29))  # to points away from them, on either side


@dataclass(frozen=True)
class Fingerprint:
    """The `digest` of a function at its weights: the same for the same function, to the bit.

    `why` says why there is none, if so: then the digest is one that nothing else ever has, and nothing is reused.
    """

    digest: str
    why: str = ""


def fingerprint(
    objective: Objective, key: str, *, order: int = 2, twice: bool = True, is_far: bool = False
) -> Fingerprint:
    """Return the fingerprint of the loss of `objective` in its parameters.

    The loss, its gradient and one product H v, as far as `order` (0, 1, 2) goes, at the weights and at one point
    beside them; v and the step to that point are drawn from a stream of `key`. They are computed `twice`: where the
    two differ, or where one fails, there is no fingerprint.

    With `is_far`, it is of the loss alone, away from the weights: at 49 points on both sides along a line, from 1/32 to
    128 times the size of the weights, and with either half of the weights at zero.
    """
    order = 0 if is_far else order
    try:
        digests = {_digest(objective, key, order, is_far) for _ in range(1 + twice)}
    except Exception as error:  # whatever the user's code raises is the reason
        what = ("its loss", "its gradient", "a product with its Hessian")[order] + " away from its weights" * is_far
        return _none(f"{what} cannot be computed", error)
    return Fingerprint(digests.pop()) if len(digests) == 1 else _none("two calls with the same weights differ")


def _none(why: str, error: Exception | None = None) -> Fingerprint:
    words = f"{why} ({type(error).__name__}: {error})" if error else why
    return Fingerprint(ONCE + secrets.token_hex(16), plain(words, most=300))


def _digest(objective: Objective, key: str, order: int, is_far: bool) -> str:
    digest = hashlib.sha256()
    with one_thread() if is_small(objective.network) else nullcontext(), torch.enable_grad(), differentiable_twice():
        suffix = Suffix(objective, None)
        own = {
            f"network.{name}": p.detach() for name, p in objective.network.named_parameters() if p.is_floating_point()
        }
        vector = {name: _signs(key, name, p) for name, p in own.items()}
        for at in _far(key, own, vector) if is_far else _beside(own, vector):
            for number in _numbers(suffix, at, list(vector.values()), order):
                digest.update(tensor_bytes(number))
    return digest.hexdigest()


def _beside(own: dict[str, Tensor], vector: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    for step in (0.0, _STEP):
        yield {name: (p + step * _scale(p) * vector[name]).requires_grad_() for name, p in own.items()}


def _far(key: str, own: dict[str, Tensor], vector: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    draws = {name: torch.randn(p.shape, generator=stream(0, "far", key, name)).to(p) for name, p in own.items()}
    for step in _AWAY:
        yield {name: p + step * _scale(p) * draws[name] for name, p in own.items()}
    for sign in (1, -1):
        yield {name: torch.where(vector[name] == sign, p, 0.0) for name, p in own.items()}


def _numbers(suffix: Suffix, at: dict[str, Tensor], vector: Sequence[Tensor], order: int) -> list[Tensor]:
    """Return the loss, its gradient and H v at a point: the sums over batches, one graph at a time."""
    total: list[Tensor] = []
    for start, scalar in suffix.terms(Part.H):
        piece = _of_batch(suffix, start, scalar, at, vector, order)
        total = [summed + more for summed, more in zip(total, piece, strict=True)] if total else piece
    return total


def _of_batch(
    suffix: Suffix, start: Tensor, scalar: Scalar, at: dict[str, Tensor], vector: Sequence[Tensor], order: int
) -> list[Tensor]:
    leaves = list(at.values())
    value = scalar(suffix.at(at, start))
    slopes = gradients(value, leaves, create_graph=order > 1) if order else []
    product = gradients(inner(of_second_order(slopes), vector), leaves) if order > 1 else []
    return [one.detach() for one in (value, *slopes, *product)]


def _signs(key: str, name: str, like: Tensor) -> Tensor:
    bits = torch.randint(0, 2, like.shape, generator=stream(0, "fingerprint", key, name), dtype=torch.int8)
    return (2 * bits - 1).to(like)


def _scale(parameter: Tensor) -> Tensor:
    """Return a parameter's root mean square, 1 where it is zero or no number."""
    size = parameter.square().mean().sqrt()
    return torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size))
