"""Hutchinson's estimator of block norms: shared probes, all columns in one product, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.norms import Norm, frobenius
from hessfig.curvature.probes import rademacher
from hessfig.terms import Matrix, Part

SPLIT = (Part.H_o, Part.H_f)


class Column(Protocol):
    """Blocks of one column of the Hessian, as operators."""

    dim: int
    dtype: torch.dtype
    bytes_per_probe: int

    def split_matmat(self, probes: Float[Tensor, "dim k"]) -> dict[tuple[Matrix, Part], Float[Tensor, "n k"]]:
        """Return H_o V and H_f V for every row of the column."""


def hutchinson(
    column: Column, parts: Sequence[Part], num_probes: int, *, generator: Generator, memory: float
) -> dict[tuple[Matrix, Part], Norm]:
    """Estimate ||.||_F of every row and part of `column` from `num_probes` shared Rademacher probes.

    `memory` (bytes) bounds what the products of one chunk of probes may hold; the chunks do not change the value.
    """
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=column.dtype)
    samples = [squared_norms(column, parts, chunk) for chunk in chunks(probes, column.bytes_per_probe, memory)]
    return {key: frobenius(torch.cat([sample[key] for sample in samples])) for key in samples[0]}


def chunks(probes: Float[Tensor, "dim k"], bytes_per_probe: int, memory: float) -> Iterator[Tensor]:
    """Split the columns of `probes` so that each chunk's products stay within `memory` bytes (at least one column)."""
    yield from probes.split(max(1, int(memory / bytes_per_probe)), dim=1)


def squared_norms(
    column: Column, parts: Sequence[Part], probes: Float[Tensor, "dim k"]
) -> dict[tuple[Matrix, Part], Float[Tensor, "k"]]:
    """Return ||A v_k||^2 for every row and part; H v is H_o v + H_f v."""
    products = column.split_matmat(probes)
    rows = dict.fromkeys(row for row, _ in products)
    return {(row, part): _columnwise(_part_of(products, row, part)) for row in rows for part in parts}


def _part_of(products: dict[tuple[Matrix, Part], Tensor], row: Matrix, part: Part) -> Tensor:
    if part == Part.H:
        return products[row, Part.H_o] + products[row, Part.H_f]
    return products[row, part]


def _columnwise(products: Float[Tensor, "n k"]) -> Float[Tensor, "k"]:
    return products.square().sum(dim=0)
