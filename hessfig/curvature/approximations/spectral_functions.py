"""Functions of approximations' eigenvalues, such as the inverse of A + damping I, in the structure of A."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.approximations.matrices import Basis, Diagonal, KroneckerSum, LowRank, Product, Rotated
from hessfig.errors import UserError

Function = Callable[[Tensor], Tensor]
MOST_DENSE = 4096  # rows of a matrix without such a structure, which is decomposed whole
_ASYMMETRY = 1e-10


@dataclass(frozen=True)
class Shifted:
    """`inside` on the span of the orthonormal columns of `vectors`, the number `outside` on its complement."""

    vectors: Float[Tensor, "dim rank"]
    inside: Float[Tensor, " rank"]
    outside: Tensor

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        within = self.vectors.T @ vectors
        return self.outside * vectors + self.vectors @ ((self.inside - self.outside)[:, None] * within)


@singledispatch
def spectral_function(matrix: Product, function: Function, dim: int) -> Product:
    """Return f(A) = Q f(eigenvalues) Q^T of a symmetric A. Raises UserError where it is too large to be decomposed."""
    if dim > MOST_DENSE:
        raise UserError(
            "solve: this approximation has no structure to solve with",
            got=f"{dim} rows",
            allowed=f"at most {MOST_DENSE}, or a diagonal, a Kronecker product, or one of these in another basis",
            remedy="kfac, ekfac, diagonal, shampoo, soap or a Fisher matrix",
        )
    dense = matrix.matmat(torch.eye(dim, dtype=torch.float64))
    values, vectors = torch.linalg.eigh((dense + dense.T) / 2)
    return Shifted(vectors, function(values), torch.zeros((), dtype=torch.float64))


@spectral_function.register
def _(matrix: Diagonal, function: Function, dim: int) -> Product:
    return Diagonal(function(matrix.values))


@spectral_function.register
def _(matrix: Rotated, function: Function, dim: int) -> Product:
    return Rotated(matrix.basis, function(matrix.values))


@spectral_function.register
def _(matrix: KroneckerSum, function: Function, dim: int) -> Product:
    if len(matrix.left) > 1 or not all(map(_is_symmetric, (matrix.left[0], matrix.right[0]))):
        return spectral_function.dispatch(object)(matrix, function, dim)
    left, right = (torch.linalg.eigh(factor[0]) for factor in (matrix.left, matrix.right))
    values = left.eigenvalues[:, None] * right.eigenvalues
    return Rotated(Basis(left.eigenvectors, right.eigenvectors), function(values))


@spectral_function.register
def _(matrix: LowRank, function: Function, dim: int) -> Product:
    sizes, vectors = torch.linalg.svd(matrix.rows, full_matrices=False)[1:]
    return Shifted(vectors.T, function(sizes.square()), function(torch.zeros((), dtype=torch.float64)))


def _is_symmetric(factor: Float[Tensor, "n n"]) -> bool:
    return float((factor - factor.T).norm()) <= _ASYMMETRY * float(factor.norm())
