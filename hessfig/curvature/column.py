"""Hutchinson's estimator of block norms: shared probes, all columns in one product, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.probes import rademacher
from hessfig.measurements.frobenius.norms import BlockNorm, frobenius
from hessfig.terms import Matrix, Part

PROBES_AT_ONCE = 5
MEMORY_BOUND = 1 * 2**30
Products = dict[tuple[Matrix, Part], Float[Tensor, "n k"]]


@runtime_checkable
class Column(Protocol):
    """Blocks of one column of the Hessian, as operators."""

    @property
    def dim(self) -> int:
        """Entries of the column's weight."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the column's weight."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the products."""

    @property
    def bytes_per_probe(self) -> int:
        """Memory the products of one probe take, counted from above."""

    def split_matmat(self, probes: Float[Tensor, "dim k"]) -> Products:
        """Return H_o V and H_f V for every row of the column."""


def hutchinson(
    column: Column, parts: Sequence[Part], num_probes: int, *, generator: Generator
) -> dict[tuple[Matrix, Part], BlockNorm]:
    """Estimate ||.||_F of every row and part of `column` from `num_probes` shared Rademacher probes."""
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=column.dtype)
    samples = [squared_norms(column, parts, chunk) for chunk in chunks(probes, column, PROBES_AT_ONCE)]
    return {key: frobenius(torch.cat([sample[key] for sample in samples])) for key in samples[0]}


def chunks(probes: Float[Tensor, "dim k"], column: Column, at_once: int) -> Iterator[Tensor]:
    """Split the columns of `probes` into chunks of `at_once`, fewer where their products would exceed MEMORY_BOUND.

    The size of a chunk follows from the problem alone, never from the machine: matrix products of another shape
    may round differently, and the same settings must give the same bits everywhere. Five probes at once are also
    the fastest (scripts/bench_norms.py): their tangents still fit the cache.
    """
    yield from probes.split(max(1, min(at_once, int(MEMORY_BOUND / column.bytes_per_probe))), dim=1)


def squared_norms(
    column: Column, parts: Sequence[Part], probes: Float[Tensor, "dim k"]
) -> dict[tuple[Matrix, Part], Float[Tensor, " k"]]:
    """Return ||A v_k||^2 for every row and part."""
    return lengths(column.split_matmat(probes), parts)


def lengths(products: Products, parts: Sequence[Part]) -> dict[tuple[Matrix, Part], Float[Tensor, " k"]]:
    """Return the squared lengths of products for every row and part; H v is H_o v + H_f v."""
    rows = dict.fromkeys(row for row, _ in products)
    return {(row, part): _columnwise(_part_of(products, row, part)) for row in rows for part in parts}


def _part_of(products: Products, row: Matrix, part: Part) -> Tensor:
    if part == Part.H:
        return products[row, Part.H_o] + products[row, Part.H_f]
    return products[row, part]


def _columnwise(products: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Sum over contiguous memory: over strided columns the order of the sum would depend on their number."""
    return products.T.contiguous().square().sum(dim=1)
