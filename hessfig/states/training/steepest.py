"""What a learning rate is multiplied by where its rule looks at the curvature of the batch at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config import Curvature
from hessfig.rng import stream

PRODUCTS = 12  # Hessian products of a largest eigenvalue: enough for a few per cent
FLATTEST = 1e-3  # of the largest: no block counts as flatter
_EXPONENT = -0.25  # of the blog's rule
_TINY = 1e-8

Loss = Callable[[], Tensor]
Product = Callable[[Tensor], Tensor]


def products_of_a_look(kind: Curvature, parameters: int) -> int:
    """Return how many Hessian products one look takes in a network of so many parameters (tensors)."""
    return {Curvature.whole: PRODUCTS, Curvature.blocks: PRODUCTS * parameters}.get(kind, 0)


def factors(
    kind: Curvature, named: Mapping[str, Tensor], loss: Loss, *, seed: int, step: int
) -> Float[Tensor, " groups"]:
    """Return the factor of the learning rate of each group of parameters.

    whole: 1 / largest eigenvalue of the Hessian. blocks: the same of each parameter's own block, divided by their
    geometric mean; a block counts as no flatter than FLATTEST of the steepest. gradient_norm: the blog's stand-in,
    min(1, (largest / smallest norm of a parameter's gradient)^(-1/4)), from gradients that are there.
    """
    if kind == Curvature.gradient_norm:
        return _stand_in([one.grad for one in named.values() if one.grad is not None])
    held = list(named.values())
    groups = [[one] for one in held] if kind == Curvature.blocks else [held]
    with torch.enable_grad():
        slopes = torch.autograd.grad(loss(), held, create_graph=True, materialize_grads=True)
    at = dict(zip(held, slopes, strict=True))
    steepest = [
        _largest(group, [at[one] for one in group], seed=seed, step=step, number=number)
        for number, group in enumerate(groups)
    ]
    found = torch.tensor(steepest, dtype=torch.float64)
    found = found.clamp(min=max(FLATTEST * float(found.max()), _TINY))
    return 1 / found if kind == Curvature.whole else found.log().mean().exp() / found


def largest_ritz(product: Product, start: Float[Tensor, " n"], products: int) -> float:
    """Return the largest Ritz value of a symmetric operator after some products (Lanczos, re-orthogonalised)."""
    basis = (start / start.norm())[None]
    images: list[Tensor] = []
    for _ in range(min(products, len(start))):
        images.append(product(basis[-1]))
        rest = images[-1] - basis.T @ (basis @ images[-1])
        rest = rest - basis.T @ (basis @ rest)
        if float(rest.norm()) <= _TINY * float(images[-1].norm()):
            break
        basis = torch.cat([basis, (rest / rest.norm())[None]])
    small = (basis[: len(images)] @ torch.stack(images).T).double()
    return float(torch.linalg.eigvalsh((small + small.T) / 2)[-1])


def _largest(group: list[Tensor], slopes: list[Tensor], *, seed: int, step: int, number: int) -> float:
    sizes = [one.numel() for one in group]
    start = torch.randn(sum(sizes), generator=stream(seed, "steepest", step, number)).to(slopes[0])
    if not any(slope.requires_grad for slope in slopes):
        return 0.0

    def product(vector: Tensor) -> Tensor:
        pieces = zip(slopes, vector.split(sizes), strict=True)
        along = torch.stack([slope.flatten() @ piece for slope, piece in pieces]).sum()
        found = torch.autograd.grad(along, group, retain_graph=True, materialize_grads=True)
        return torch.cat([piece.flatten() for piece in found])

    return largest_ritz(product, start, PRODUCTS)


def _stand_in(slopes: list[Tensor]) -> Float[Tensor, "1"]:
    norms = torch.stack([slope.norm() for slope in slopes]).double()
    ratio = norms.max() / (norms.min() + _TINY)
    return (ratio**_EXPONENT).clamp(max=1.0).reshape(1)
