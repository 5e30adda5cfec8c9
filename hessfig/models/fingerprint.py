"""Fingerprints of functions: exact hashes of loss, gradient and a Hessian product, at the weights or away from them."""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.curvature.batched import is_small
from hessfig.curvature.problem import Objective, real_parameters
from hessfig.curvature.witness import Derivatives, derivatives, terms_of
from hessfig.errors import plain
from hessfig.models.identity import tensor_bytes
from hessfig.models.protocol import ONCE
from hessfig.rng import one_thread, stream

_STEP = (
    1e-2  # step to a nearby point, relative to the root mean square of each parameter
)
# Steps to points away from the weights, on both sides.
_AWAY = tuple((-1) ** k * 2 ** (k / 4) for k in range(-20, 29))


@dataclass(frozen=True)
class Fingerprint:
    """The `digest` of a function at its weights, which is equal for functions with the same bits.

    If there is no fingerprint, `why` is the reason; the digest is then unique, so that
    no result is reused.
    """

    digest: str
    why: str = ""


def fingerprint(
    objective: Objective,
    key: str,
    *,
    order: int = 2,
    twice: bool = True,
    is_far: bool = False,
) -> Fingerprint:
    """Return the fingerprint of the loss of `objective` in its parameters.

    It hashes the loss, its gradient and one product H v, up to `order` (0, 1, 2), at
    the weights and at a nearby point; v and the step are drawn from a stream of `key`.
    If `twice`, all are computed twice. There is no fingerprint if the results differ,
    or if a computation fails.

    With `is_far`, only the loss is hashed, away from the weights: at 49 points on both
    sides along a line, from 1/32 to 128 times the size of the weights, and with either
    half of the weights set to zero.
    """
    order = 0 if is_far else order
    try:
        digests = {_digest(objective, key, order, is_far) for _ in range(1 + twice)}
    except Exception as error:  # an exception of the user's code is the reason
        what = ("its loss", "its gradient", "a product with its Hessian")[
            order
        ] + " away from its weights" * is_far
        return _none(f"{what} cannot be computed", error)
    if len(digests) == 1:
        return Fingerprint(digests.pop())
    return _none("two calls with the same weights differ")


def _none(why: str, error: Exception | None = None) -> Fingerprint:
    words = f"{why} ({type(error).__name__}: {error})" if error else why
    return Fingerprint(ONCE + secrets.token_hex(16), plain(words, most=300))


def _digest(objective: Objective, key: str, order: int, is_far: bool) -> str:
    digest = hashlib.sha256()
    with one_thread() if is_small(objective.network) else nullcontext():
        own = {
            name: one.detach()
            for name, one in real_parameters(objective.network).items()
        }
        vector = {name: _signs(key, name, one) for name, one in own.items()}
        for at in _far(key, own, vector) if is_far else _beside(own, vector):
            found = derivatives(terms_of(objective, at), at, [vector], order)
            for number in _numbers(found):
                digest.update(tensor_bytes(number))
    return digest.hexdigest()


def _numbers(found: Derivatives) -> Iterator[Tensor]:
    """Yield the loss, its gradient and H v. Raises the exception for which there is no H v."""
    if found.failure:
        raise found.failure
    yield found.value
    for by_name in (found.slopes, *found.products):
        yield from by_name.values()


def _beside(
    own: dict[str, Tensor], vector: dict[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    for step in (0.0, _STEP):
        yield {
            name: (p + step * _scale(p) * vector[name]).requires_grad_()
            for name, p in own.items()
        }


def _far(
    key: str, own: dict[str, Tensor], vector: dict[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    draws = {
        name: torch.randn(
            p.shape, generator=stream(0, "far", key, f"network.{name}")
        ).to(p)
        for name, p in own.items()
    }
    for step in _AWAY:
        yield {name: p + step * _scale(p) * draws[name] for name, p in own.items()}
    for sign in (1, -1):
        yield {
            name: torch.where(vector[name] == sign, p, 0.0) for name, p in own.items()
        }


def _signs(key: str, name: str, like: Tensor) -> Tensor:
    bits = torch.randint(
        0,
        2,
        like.shape,
        generator=stream(0, "fingerprint", key, f"network.{name}"),
        dtype=torch.int8,
    )
    return (2 * bits - 1).to(like)


def _scale(parameter: Tensor) -> Tensor:
    """Return the root mean square of a parameter; 1 if it is zero or not finite."""
    size = parameter.square().mean().sqrt()
    return torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size))
