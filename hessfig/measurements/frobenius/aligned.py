"""Hutchinson's estimator in the axes of the block: the first probes show where it acts, the others are drawn there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.column import PROBES_AT_ONCE, Column, Products, chunks, lengths, squared_norms
from hessfig.curvature.problem import rademacher
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.frobenius.norms import frobenius
from hessfig.terms import Part

Axes = tuple[Float[Tensor, "rows rows"], Float[Tensor, "cols cols"]]


def aligned(
    column: Column, block: Hashable, parts: Sequence[Part], num_probes: int, *, generator: Generator
) -> dict[tuple[Hashable, Part], Estimate]:
    """Estimate ||.||_F of every row and part with `num_probes` products, two thirds in the axes of `block`.

    `block` is the column's diagonal block and must be among its rows.

    With Rademacher v the variance of ||A v||^2 comes from the off-diagonal entries of A^2 alone, and a block of the
    Hessian of an m x n weight is close to a sum of few Kronecker products G x P. The first third of the probes is
    plain; the left and right singular vectors L, R of their products, read as m x n matrices, estimate the
    eigenvectors of G and P, and every further probe is L Z R^T with Z Rademacher. E[v v^T] = I whatever L and R
    are, so every ||A v||^2 is an unbiased sample of ||A||_F^2, and all are averaged alike (axes as in EKFAC, George
    et al. 2018).
    """
    first = max(1, min(PROBES_AT_ONCE, num_probes // 3))
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=column.dtype)
    sketches = column.split_matmat(probes[:, :first])
    turned = _turn(probes[:, first:], _axes(sketches, block, column.shape))
    rest = [squared_norms(column, parts, chunk) for chunk in chunks(turned, column, PROBES_AT_ONCE)]
    samples = [lengths(sketches, parts), *rest]
    return {key: frobenius(torch.cat([sample[key] for sample in samples])) for key in samples[0]}


def _axes(sketches: Products, block: Hashable, shape: torch.Size) -> Axes:
    """Return the left and right singular vectors of the sketches, H_o's and H_f's weighing the same.

    Sketches that are not finite have none: the coordinate axes stand in, and the norm comes out not finite.
    """
    split = [sketches[block, part].double().T.unflatten(1, shape) for part in (Part.H_o, Part.H_f)]
    scaled = torch.cat([images / images.norm().clamp_min(torch.finfo().tiny) for images in split])
    if not scaled.isfinite().all():
        return torch.eye(shape[0], dtype=torch.float64), torch.eye(shape[1], dtype=torch.float64)
    left, right = torch.einsum("kij,klj->il", scaled, scaled), torch.einsum("kij,kil->jl", scaled, scaled)
    return torch.linalg.eigh(left.cpu())[1], torch.linalg.eigh(right.cpu())[1]


def _turn(probes: Float[Tensor, "dim k"], axes: Axes) -> Float[Tensor, "dim k"]:
    left, right = axes
    signs = probes.double().T.unflatten(1, (len(left), len(right)))
    return (left @ signs @ right.T).flatten(1).T.to(probes.dtype)
