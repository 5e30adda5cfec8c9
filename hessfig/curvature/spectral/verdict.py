"""Whether what Lanczos runs found are the outermost eigenvalues: residuals and agreement, of products made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.spectral.lanczos import Run
from hessfig.curvature.spectral.operator import Operator

_ALIKE = 1e-4  # what unit vectors differ by is another direction from here on


class End(StrEnum):
    """Which end of the spectrum, algebraically."""

    largest = "largest"
    smallest = "smallest"

    def order(self, values: Float[Tensor, " j"]) -> Tensor:
        """Return the places of `values`, the outermost first."""
        return values.argsort(descending=self == End.largest, stable=True)


@dataclass(frozen=True)
class Extremes:
    """The k outermost eigenvalues, the outermost first, with orthonormal vectors.

    `residuals` are ||A v - value v||, of products made for it: within so much of each value there is an eigenvalue.
    `scale` is the largest eigenvalue in size that was seen; `converged`: all residuals and the disagreement of the two
    starts are below tolerance * scale. `products` counts all products that were spent, `rough_products` those of an
    operator of lower precision beside them.
    """

    values: Float[Tensor, " k"]
    residuals: Float[Tensor, " k"]
    vectors: Float[Tensor, "n k"]
    scale: float
    converged: bool = False
    products: int = 0
    rough_products: int = 0


def nothing(dim: int) -> Extremes:
    """Return what is known before anything was found."""
    none = torch.zeros(0, dtype=torch.float64)
    return Extremes(none, none, torch.zeros(dim, 0, dtype=torch.float64), 0.0)


def judged(
    operator: Operator, end: End, k: int, before: Extremes, runs: Sequence[Run], tolerance: float
) -> Extremes:
    """Return what was found before or by a run alone if nothing is to be added, else what all have found together.

    Nothing is to be added when the values of the runs (or those found before) are those of the space that all vectors
    span together. All residuals come from products made for them, and so do the sizes that `scale` is the largest of:
    the runs may have had an operator of lower precision, whose rounding must not pass for a size.
    """
    pieces = [before.vectors, *(outer(run, end, k) for run in runs), _longest(runs, end, k)]
    product = operator.matmat(torch.cat(pieces, dim=1))
    *images, image = product.split([piece.shape[1] for piece in pieces], dim=1)
    *found, peak = pieces
    alone = [pairs(v, p, end, k) for v, p in zip(found, images, strict=True) if v.numel()]
    together = pairs(torch.cat(found, dim=1), torch.cat(images, dim=1), end, k)
    sizes = (peak * image).sum(dim=0).abs().tolist()
    scale = max([before.scale, *(one.scale for one in (together, *alone)), *sizes])
    claims = alone[:1] if before.vectors.numel() else alone
    agree = all(_agree(one, together, tolerance * scale) for one in claims)
    best = min(claims, key=lambda one: float(one.residuals.max())) if agree else together
    small = bool((best.residuals <= tolerance * scale).all())
    return replace(best, scale=scale, converged=agree and small)


def outer(run: Run, end: End, k: int) -> Float[Tensor, "n k"]:
    """Return the k outermost Ritz vectors of a run."""
    ritz = run.ritz()
    return run.vectors(ritz.coefficients[:, end.order(ritz.values)[:k]])


def pairs(vectors: Float[Tensor, "n p"], product: Float[Tensor, "n p"], end: End, k: int) -> Extremes:
    """Return the outermost Ritz pairs of the space that `vectors` span, whose products are given."""
    left, sizes, right = torch.linalg.svd(vectors, full_matrices=False)
    is_new = sizes > _ALIKE
    basis, image = left[:, is_new], product @ (right[is_new].T / sizes[is_new])
    values, coefficients = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
    order = end.order(values)[:k]
    chosen = coefficients[:, order]
    found = basis @ chosen
    residuals = (image @ chosen - found * values[order]).norm(dim=0)
    return Extremes(values[order], residuals, found, float(values.abs().max()))


def _longest(runs: Sequence[Run], end: End, k: int) -> Float[Tensor, "n p"]:
    """Return the Ritz vector of the largest value in size; none where it is among the k outermost of its run."""
    run = max(runs, key=lambda run: float(run.ritz().values.abs().max()))
    ritz = run.ritz()
    longest = int(ritz.values.abs().argmax())
    is_outer = longest in end.order(ritz.values)[:k].tolist()
    return run.vectors(ritz.coefficients[:, [] if is_outer else [longest]])


def _agree(one: Extremes, other: Extremes, allowed: float) -> bool:
    same = len(one.values) == len(other.values)
    return same and bool(((one.values - other.values).abs() <= allowed).all())
