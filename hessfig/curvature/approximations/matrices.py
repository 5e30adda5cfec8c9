"""Structured matrices with fast products: diagonals, low rank, sums of Kronecker products, diagonals in other bases.

A vector of a block is the weight's (m, n) matrix, row by row, so that G (x) P multiplies as G V P^T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from scipy.linalg import eigh
from torch import Generator, Tensor

_SWEEPS = 8  # of alternating least squares; each reduces what is left by (sigma_(r+1) / sigma_r)^2
_RIDGE = 1e-13  # of the normal equations, relative to their trace


class Product(Protocol):
    """A symmetric matrix that is known by its products."""

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""


@dataclass(frozen=True)
class Diagonal:
    """A diagonal matrix."""

    values: Float[Tensor, " dim"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        return self.values[:, None] * vectors


@dataclass(frozen=True)
class LowRank:
    """The sum of the outer products of `rows` with themselves."""

    rows: Float[Tensor, "rank dim"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        return self.rows.T @ (self.rows @ vectors)


@dataclass(frozen=True)
class KroneckerSum:
    """sum_a left_a (x) right_a."""

    left: Float[Tensor, "r m m"]
    right: Float[Tensor, "r n n"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        weights = as_weights(vectors, (self.left.shape[1], self.right.shape[1]))
        terms = [one @ weights @ other.T for one, other in zip(self.left, self.right, strict=True)]
        return torch.stack(terms).sum(dim=0).flatten(1).T


@dataclass(frozen=True)
class Basis:
    """The orthonormal basis Q_left (x) Q_right of the weights of a matrix."""

    left: Float[Tensor, "m m"]
    right: Float[Tensor, "n n"]

    @classmethod
    def of(cls, left: Float[Tensor, "m m"], right: Float[Tensor, "n n"]) -> Basis:
        """Return the eigenvectors of two symmetric factors."""
        return cls(torch.linalg.eigh(left).eigenvectors, torch.linalg.eigh(right).eigenvectors)

    def into(self, weights: Float[Tensor, "*k m n"]) -> Float[Tensor, "*k m n"]:
        """Return coordinates in this basis."""
        return self.left.T @ weights @ self.right

    def back(self, coordinates: Float[Tensor, "*k m n"]) -> Float[Tensor, "*k m n"]:
        """Return weights from their coordinates."""
        return self.left @ coordinates @ self.right.T


@dataclass(frozen=True)
class Rotated:
    """Q diag(values) Q^T in a basis Q."""

    basis: Basis
    values: Float[Tensor, "m n"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        coordinates = self.basis.into(as_weights(vectors, self.values.shape))
        return self.basis.back(self.values * coordinates).flatten(1).T


def as_weights(vectors: Float[Tensor, "dim k"], shape: Sequence[int]) -> Float[Tensor, "k m n"]:
    """Return every column as a matrix of the weight's shape."""
    return vectors.T.reshape(-1, *shape)


def root(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Return the square root of a positive semi-definite matrix; negative eigenvalues, which are rounding, count as 0.

    Sources call it the matrix square root, A^(1/2) A^(1/2) = A.
    """
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def best_kronecker_sum(matrix: Float[Tensor, "dim dim"], shape: Sequence[int], rank: int) -> KroneckerSum:
    """Return the sum of `rank` Kronecker products that is nearest to a matrix in the Frobenius norm.

    The rearranged matrix, whose row (i, j) is the block that couples rows i and j of the weight, has rank r for such a
    sum, so that its leading singular vectors are the factors (Van Loan and Pitsianis 1993).
    """
    m, n = shape
    rearranged = matrix.reshape(m, n, m, n).transpose(1, 2).reshape(m * m, n * n)
    wide = m <= n
    gram = rearranged @ rearranged.T if wide else rearranged.T @ rearranged
    size = len(gram)
    count = min(rank, size)
    _, vectors = eigh(gram.numpy(), subset_by_index=[size - count, size - 1])
    leading = torch.from_numpy(vectors).to(matrix)
    left, right = (leading, rearranged.T @ leading) if wide else (rearranged @ leading, leading)
    return KroneckerSum(left.T.reshape(-1, m, m), right.T.reshape(-1, n, n))


def fitted_kronecker_sum(
    vectors: Float[Tensor, "dim k"],
    products: Float[Tensor, "dim k"],
    shape: Sequence[int],
    rank: int,
    *,
    generator: Generator,
) -> KroneckerSum:
    """Return a sum of `rank` Kronecker products that maps `vectors` to `products`, by alternating least squares.

    For a matrix that is no such sum it is near the best one, and nearer with more vectors; no measured error of it is
    below that of the best.
    """
    given, wanted = (as_weights(one, shape) for one in (vectors, products))
    right = torch.eye(shape[1], dtype=vectors.dtype).repeat(rank, 1, 1)
    right[1:] += torch.randn(rank - 1, shape[1], shape[1], dtype=vectors.dtype, generator=generator)
    for _ in range(_SWEEPS):
        left = _factors(given, wanted, right)
        right = _factors(given.mT, wanted.mT, left)
    return KroneckerSum(left, right)


def _factors(
    given: Float[Tensor, "k m n"], wanted: Float[Tensor, "k m n"], other: Float[Tensor, "r n n"]
) -> Float[Tensor, "r m m"]:
    """Return the L_a for which sum_a L_a V R_a^T is nearest to Y, given the R_a."""
    m = given.shape[1]
    design = (given[:, None] @ other.mT).permute(1, 2, 0, 3).reshape(len(other) * m, -1)
    target = wanted.permute(1, 0, 2).reshape(m, -1)
    normal = design @ design.T
    normal.diagonal().add_(_RIDGE * float(normal.trace()) + torch.finfo(normal.dtype).tiny)
    found = torch.linalg.solve(normal, design @ target.T).T
    return found.reshape(m, len(other), m).transpose(0, 1)
