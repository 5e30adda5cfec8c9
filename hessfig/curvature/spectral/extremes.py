"""The outermost eigenvalues of a symmetric operator, from two seeded starts that must agree.

A residual certifies *an* eigenvalue, never that it is the largest, and a Krylov space holds one vector of every
eigenspace however large it is. So two runs from independent starts, advanced in the same products, must find the same
values, and so must the space that both span together (it holds two vectors of an eigenspace). Where they differ, what
was found is locked and two new starts look for more in its complement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.spectral.lanczos import Run, advance
from hessfig.curvature.spectral.operator import Operator

BASIS_BYTES = 2**30  # of the vectors that the two runs keep
_STARTS, _FEWEST, _CHECK_EVERY = 2, 20, 4
_RESTARTS, _ROUNDS = 30, 8
_WARMTH = 3.0  # how much of a warm start is the vector given, the rest of it random
_ALIKE = 1e-4  # what unit vectors differ by is another direction from here on
_SPARE = 0.25  # the share of the tolerance that a run may spend


class End(StrEnum):
    """Which end of the spectrum, algebraically."""

    largest = "largest"
    smallest = "smallest"


@dataclass(frozen=True)
class Extremes:
    """The k outermost eigenvalues, the outermost first, with orthonormal vectors.

    `residuals` are ||A v - value v||, of products made for it: within so much of each value there is an eigenvalue.
    `scale` is the largest eigenvalue in size that was seen; `converged`: all residuals and the disagreement of the two
    starts are below tolerance * scale. `products` counts all products that were spent.
    """

    values: Float[Tensor, " k"]
    residuals: Float[Tensor, " k"]
    vectors: Float[Tensor, "n k"]
    scale: float
    products: int
    converged: bool


def extremes(
    operator: Operator,
    end: End,
    *,
    k: int = 1,
    tolerance: float = 1e-6,
    steps: int = 100,
    generator: Generator,
    warm: Float[Tensor, " n"] | None = None,
) -> Extremes:
    """Return the k outermost eigenvalues at one `end`, to a residual of `tolerance` times the largest in size.

    Lanczos with full re-orthogonalisation, restarted from Ritz vectors after `steps` vectors (fewer where two bases of
    as many would exceed BASIS_BYTES). `warm`, an approximate eigenvector such as the last state's, shortens both runs:
    each starts from it and a random vector of its own. Raises NotFinite, and ArithmeticError for an operator that is
    not symmetric.
    """
    before, found = operator.products, _nothing(operator.dim)
    for _ in range(_ROUNDS):
        runs = _runs(operator, end, k, tolerance, steps, generator, found.vectors, warm)
        found = _judged(operator, end, k, found, runs, tolerance)
        spent = not all(_has(run, end, k, tolerance) for run in runs)
        if found.converged or spent or found.vectors.shape[1] == operator.dim:
            break
        warm = None
    return replace(found, products=operator.products - before)


def _nothing(dim: int) -> Extremes:
    none = torch.zeros(0, dtype=torch.float64)
    return Extremes(none, none, torch.zeros(dim, 0, dtype=torch.float64), 0.0, 0, False)


def _runs(
    operator: Operator,
    end: End,
    k: int,
    tolerance: float,
    steps: int,
    generator: Generator,
    locked: Tensor,
    warm: Tensor | None,
) -> list[Run]:
    """Advance two runs until both have their k outermost Ritz pairs, or their restarts are spent."""
    size = min(steps, BASIS_BYTES // (8 * _STARTS * operator.dim))
    size = max(size, 2 * k + 2, min(_FEWEST, steps))
    starts = [_start(operator.dim, generator, warm) for _ in range(_STARTS)]
    runs = [Run(start, size, locked=locked, fresh=generator) for start in starts]
    restarts = 0
    while advance([run for run in runs if not _has(run, end, k, tolerance)], operator):
        for run in runs:
            if run.is_full and restarts < _STARTS * _RESTARTS and not _has(run, end, k, tolerance):
                run.restart(_kept(run, end, k))
                restarts += 1
    return runs


def _start(dim: int, generator: Generator, warm: Tensor | None) -> Tensor:
    drawn = torch.randn(dim, dtype=torch.float64, generator=generator)
    drawn = drawn / drawn.norm()
    if warm is None or not float(warm.norm()) > 0.0:
        return drawn
    return drawn + _WARMTH * warm.to(drawn) / warm.norm().to(drawn)


def _has(run: Run, end: End, k: int, tolerance: float) -> bool:
    """Whether the run has k Ritz pairs at `end` with a share of the residual that is allowed; asked every few steps."""
    ended = run.vector is None
    if run.length < k or not (ended or run.is_full or run.length % _CHECK_EVERY == 0):
        return False
    ritz = run.ritz()
    residuals = ritz.residuals[_order(ritz.values, end)[:k]]
    return ended or bool((residuals <= _SPARE * tolerance * ritz.values.abs().max()).all())


def _kept(run: Run, end: End, k: int) -> list[int]:
    """Return which Ritz vectors a run goes on with: the outermost, and some more for speed."""
    count = min(k + (run.size - k) // 3 + 1, run.size - 1)
    return [int(index) for index in _order(run.ritz().values, end)[:count]]


def _outer(run: Run, end: End, k: int) -> Tensor:
    ritz = run.ritz()
    return run.vectors(ritz.coefficients[:, _order(ritz.values, end)[:k]])


def _judged(
    operator: Operator, end: End, k: int, before: Extremes, runs: Sequence[Run], tolerance: float
) -> Extremes:
    """Return what was found before or by a run alone if nothing is to be added, else what all have found together.

    Nothing is to be added when the values of the runs (or those found before) are those of the space that all vectors
    span together. All residuals come from products made for them.
    """
    pieces = [before.vectors, *(_outer(run, end, k) for run in runs)]
    product = operator.matmat(torch.cat(pieces, dim=1))
    sizes = [piece.shape[1] for piece in pieces]
    alone = [
        _pairs(v, p, end, k) for v, p in zip(pieces, product.split(sizes, dim=1), strict=True) if v.numel()
    ]
    together = _pairs(torch.cat(pieces, dim=1), product, end, k)
    seen = [before.scale, *(one.scale for one in (together, *alone))]
    scale = max(*seen, *(float(run.ritz().values.abs().max()) for run in runs))
    claims = alone[:1] if before.vectors.numel() else alone
    agree = all(_agree(one, together, tolerance * scale) for one in claims)
    best = min(claims, key=lambda one: float(one.residuals.max())) if agree else together
    small = bool((best.residuals <= tolerance * scale).all())
    return replace(best, scale=scale, converged=agree and small)


def _agree(one: Extremes, other: Extremes, allowed: float) -> bool:
    same = len(one.values) == len(other.values)
    return same and bool(((one.values - other.values).abs() <= allowed).all())


def _pairs(vectors: Tensor, product: Tensor, end: End, k: int) -> Extremes:
    """Return the outermost Ritz pairs of the space that `vectors` span, whose products are given."""
    left, sizes, right = torch.linalg.svd(vectors, full_matrices=False)
    is_new = sizes > _ALIKE
    basis, image = left[:, is_new], product @ (right[is_new].T / sizes[is_new])
    values, coefficients = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
    order = _order(values, end)[:k]
    chosen = coefficients[:, order]
    found = basis @ chosen
    residuals = (image @ chosen - found * values[order]).norm(dim=0)
    return Extremes(values[order], residuals, found, float(values.abs().max()), 0, False)


def _order(values: Tensor, end: End) -> Tensor:
    return values.argsort(descending=end == End.largest, stable=True)
