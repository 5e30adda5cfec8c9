"""Approximations of diagonal blocks as operators, with solutions of linear systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.approximations.matrices import (
    Basis,
    Diagonal,
    KroneckerSum,
    LowRank,
    Product,
    Reordered,
    Rotated,
)
from hessfig.curvature.block_operator import Entries
from hessfig.curvature.implicit_matrix import ImplicitMatrix
from hessfig.errors import UserError
from hessfig.terms import Block

Function = Callable[[Tensor], Tensor]
# The most rows of a matrix without structure, which is decomposed as a whole.
MOST_DENSE = 4096
# Relative difference of a factor and its transpose that is rounding.
_ASYMMETRY = 1e-10


class ApproximatedBlock(ImplicitMatrix):
    r"""The approximation called `name` of a diagonal block, symmetric, in float64 on the CPU.

    For example, K-FAC is (sum g g^T) (x) (mean x x^T) for inputs x and backpropagated
    vectors g; docs/studies/approximations.md defines all approximations. `solve` needs
    no preconditioner: with the eigenvectors Q of A, which its structure gives,

    .. math:: (A + \delta I)^{-1} b = Q \, (\Lambda + \delta I)^{-1} Q^\top b.

    `names`, `sizes`, `flatten` and `unflatten` are those of BlockOperator.

    Examples
    --------
    >>> import torch, hessfig
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1]))
    >>> kfac = problem.approximation("kfac", "weight")
    >>> x, residual = kfac.solve(torch.ones(6), damping=0.1)
    >>> residual < 1e-12
    True
    """

    def __init__(
        self, name: str, block: Block, product: Product, entries: Entries
    ) -> None:
        self.name = name
        self.block = block
        self.names = entries.names
        self.sizes = entries.sizes
        self.flatten = entries.flatten
        self.unflatten = entries.unflatten
        self._product = product
        self._entries = entries
        dim = sum(entries.sizes)
        super().__init__((dim, dim), torch.float64, torch.device("cpu"))

    def __repr__(self) -> str:
        return f"ApproximatedBlock({self.name} of {self.block}, {self.shape[0]} x {self.shape[1]})"

    @property
    def T(self) -> ApproximatedBlock:
        """The matrix itself, which is symmetric."""
        return self

    def _solved(
        self,
        b: Float[Tensor, "n k"],
        damping: float,
        tolerance: float,
        preconditioner: ImplicitMatrix | None,
    ) -> tuple[Tensor, Tensor]:
        """Solve by the eigenvalues of A, up to rounding; raise UserError if A + damping I is singular.

        x = Q (Lambda + damping I)^-1 Q^T b, whose residual is computed by a product.
        """

        def inverted(values: Tensor) -> Tensor:
            return self._inverted(values, damping)

        columns = b.to(self.device, torch.float64)
        x = self._function(inverted).matmat(columns)
        residual = columns - self._product.matmat(x) - damping * x
        # A side of 0 has the residual 0.
        sizes = columns.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
        return x, residual.norm(dim=0) / sizes

    def inverse(self, damping: float, *, least: float) -> ApproximatedBlock:
        """Return (|A| + damping I)^-1, with a damping of at least `least` times the size of A.

        |A| has the absolute eigenvalues of A. The result is positive definite, as a
        preconditioner of conjugate gradients and MINRES must be, also if A is singular or has
        negative eigenvalues.
        """
        floor = max(damping, least * self._scale, torch.finfo(torch.float64).tiny)
        inverted = self._function(lambda values: 1 / (values.abs() + floor))
        name = f"inverse of {self.name}"
        return ApproximatedBlock(name, self.block, inverted, self._entries)

    @property
    def _scale(self) -> float:
        """A number of the order of the largest eigenvalue: |A 1| / |1|, which is at most that, for one product."""
        vector = torch.ones(self.shape[0], 1, dtype=torch.float64)
        return float(self._product.matmat(vector).norm() / vector.norm())

    def _function(self, function: Function) -> Product:
        return spectral_function(self._product, function, self.shape[0])

    def _inverted(
        self, values: Float[Tensor, "*shape"], damping: float
    ) -> Float[Tensor, "*shape"]:
        inverse = 1 / (values + damping)
        if not bool(inverse.isfinite().all()):
            raise UserError(
                f"solve: {self.name} is singular",
                got=f"damping={damping!r}",
                allowed="a damping that keeps A + damping I away from zero",
                remedy="damping=1e-3",
            )
        return inverse

    def _multiplied(self, vectors: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
        return self._product.matmat(vectors)


@dataclass(frozen=True)
class Shifted:
    r"""The operator `inside` on the span of the orthonormal columns of `vectors`, and `outside` times I elsewhere.

    .. math:: Q \, \mathrm{diag}(d) \, Q^\top + o \, (I - Q Q^\top)
              = o I + Q \, (\mathrm{diag}(d) - o) \, Q^\top.

    f(A) of a matrix of low rank has this form, with o = f(0).
    """

    vectors: Float[Tensor, "dim rank"]
    inside: Float[Tensor, " rank"]
    outside: Tensor

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V: outside V + Q (inside - outside) Q^T V."""
        within = self.vectors.T @ vectors
        differences = (self.inside - self.outside)[:, None]
        return self.outside * vectors + self.vectors @ (differences * within)


@singledispatch
def spectral_function(matrix: Product, function: Function, dim: int) -> Product:
    """Return f(A) = Q f(eigenvalues) Q^T of a symmetric A. Raises UserError if A is too large to be decomposed.

    Structure gives the eigenvalues: a diagonal its entries, L (x) R the products of those
    of its symmetric factors in the basis Q_L (x) Q_R, and rows R of low rank the squared
    singular values of R. Anything else is decomposed as a whole, O(dim^3).

    Examples
    --------
    The inverse root of a Kronecker product:

    >>> import torch
    >>> from hessfig.curvature.approximations.approximated_block import spectral_function
    >>> from hessfig.curvature.approximations.matrices import KroneckerSum
    >>> factors = torch.tensor([4.0, 1.0]).double().diag(), torch.tensor([9.0]).double().diag()
    >>> found = spectral_function(KroneckerSum(factors[0][None], factors[1][None]), lambda one: one**-0.5, 2)
    >>> found.matmat(torch.eye(2).double()).diagonal().round(decimals=9).tolist()
    [0.166666667, 0.333333333]
    """
    if dim > MOST_DENSE:
        raise UserError(
            "solve: this approximation has no structure for solving linear systems",
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
def _(matrix: Reordered, function: Function, dim: int) -> Product:
    return Reordered(spectral_function(matrix.matrix, function, dim), matrix.order)


@spectral_function.register
def _(matrix: KroneckerSum, function: Function, dim: int) -> Product:
    # L (x) R has the eigenvalues l_i r_j and the eigenvectors of its factors.
    left = matrix.left[0]
    right = matrix.right[0]
    if len(matrix.left) > 1 or not (_is_symmetric(left) and _is_symmetric(right)):
        return spectral_function.dispatch(object)(matrix, function, dim)
    rows, q_left = torch.linalg.eigh(left)
    cols, q_right = torch.linalg.eigh(right)
    return Rotated(Basis(q_left, q_right), function(rows[:, None] * cols))


@spectral_function.register
def _(matrix: LowRank, function: Function, dim: int) -> Product:
    # The squared singular values of the rows, and 0 outside their span.
    _, sizes, vectors = torch.linalg.svd(matrix.rows, full_matrices=False)
    zero = torch.zeros((), dtype=torch.float64)
    return Shifted(vectors.T, function(sizes.square()), function(zero))


def _is_symmetric(factor: Float[Tensor, "n n"]) -> bool:
    return float((factor - factor.T).norm()) <= _ASYMMETRY * float(factor.norm())
