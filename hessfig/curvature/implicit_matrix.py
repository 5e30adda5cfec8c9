"""Matrices that are known by their products, in the protocols of PyTorch, NumPy, SciPy and curvlinops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from hessfig.errors import UserError, plain

Vectors = TypeVar("Vectors", Tensor, NDArray[Any])
MOST_BYTES = 2**32  # of a matrix that `dense` returns


class ImplicitMatrix(ABC):
    """An n x m matrix A that is known by its products A V and A^T V.

    `A @ x` takes one vector (m,) or several as columns (m, k): a tensor gives a tensor on `device`, a NumPy array gives
    a NumPy array. Any object with `shape` and `matvec`, as this one, is accepted by scipy.sparse.linalg.

    Attributes
    ----------
    shape : tuple of int
        (n, m).
    dtype : numpy.dtype
        Type of the products.
    device : torch.device
        Where the products are computed.
    """

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self._real = dtype
        self.dtype = torch.empty(0, dtype=dtype).numpy().dtype

    @property
    @abstractmethod
    def T(self) -> ImplicitMatrix:
        """The transposed matrix: itself where it is symmetric."""

    @property
    def is_semidefinite(self) -> bool:
        """Whether the matrix is known to be symmetric and positive semi-definite."""
        return False

    @abstractmethod
    def _multiplied(self, vectors: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
        """Return A V, for columns of the operator's type on its device."""

    def __matmul__(self, x: Vectors) -> Vectors:
        """Return A x for x (m,), or A X for X (m, k). Raises UserError for another shape."""
        return self._applied(x, lambda columns: [self._multiplied(columns)])[0]

    def _applied(self, x: Vectors, multiply: Callable[[Tensor], Sequence[Tensor]]) -> list[Vectors]:
        """Return products with the columns of `x` in its own type and number of axes."""
        if isinstance(x, np.ndarray):
            found = self._applied(torch.from_numpy(np.ascontiguousarray(x, dtype=self.dtype)), multiply)
            return [one.cpu().numpy() for one in found]
        self._check(x)
        columns = x.detach().to(self.device, self._real)
        products = multiply(columns if x.ndim == 2 else columns[:, None])
        return [one if x.ndim == 2 else one[:, 0] for one in products]

    def matvec(self, x: Vectors) -> Vectors:
        """Return A x."""
        return self @ x

    def matmat(self, x: Vectors) -> Vectors:
        """Return A X."""
        return self @ x

    def rmatvec(self, x: Vectors) -> Vectors:
        """Return A^T x."""
        return self.T @ x

    def rmatmat(self, x: Vectors) -> Vectors:
        """Return A^T X."""
        return self.T @ x

    def dense(self) -> Float[Tensor, "n m"]:
        """Return the matrix itself. Raises UserError where it takes more than MOST_BYTES."""
        rows, columns = self.shape
        size = rows * columns * self.dtype.itemsize
        if size > MOST_BYTES:
            raise UserError(
                "dense: the matrix is too large",
                got=f"{rows} x {columns}: {size / 2**30:.1f} GiB",
                allowed=f"at most {MOST_BYTES / 2**30:.0f} GiB",
                remedy="multiply with it (@), or name a smaller block",
            )
        return self @ torch.eye(columns, dtype=self._real, device=self.device)

    def to_scipy(self) -> sparse.LinearOperator:
        """Return the matrix as a float64 operator of SciPy, for eigsh, svds, lobpcg, lsmr and others."""
        return _scipy(self, self.shape)

    def to_curvlinops(self) -> Any:
        """Return the matrix as an operator of curvlinops, for its estimators; vectors are one tensor."""
        from hessfig.curvature.curvlinops import as_curvlinops

        return as_curvlinops(self, self._real, is_symmetric=self.T is self)

    def solve(
        self, b: Vectors, *, damping: float = 0.0, tolerance: float = 1e-8, preconditioner: ImplicitMatrix | None = None
    ) -> Solution:
        """Solve (A + damping I) x = b for a symmetric A.

        Conjugate gradients where A is positive semi-definite, MINRES where it is not, in SciPy's implementation, with
        restarts from the true residual, for at most 10 n products. Warns (RuntimeWarning) where the residual stays
        above `tolerance`.

        Parameters
        ----------
        b : tensor or array, (n,) or (n, k)
            Right-hand sides.
        damping : float, at least 0
            What is added to the diagonal.
        tolerance : float
            Of the relative residual |b - (A + damping I) x| / |b|.
        preconditioner : an approximation of A that has `solve`, such as problem.approximation("kfac", block)
            Solved with the same damping, but at least 1e-6 of its own scale; its eigenvalues count by their size.

        Returns
        -------
        Solution
            x, of the type of `b`, and the relative residual of each column, by a product of its own.
        """
        from hessfig.curvature.linear_solve import solved

        if self.T is not self:
            raise UserError(
                "solve: the matrix is not symmetric",
                got=f"shape {self.shape}",
                allowed="a diagonal block, such as 'W_V'",
                remedy="scipy.sparse.linalg.lsmr(operator.to_scipy(), b)",
            )
        if isinstance(b, np.ndarray):
            x, residual = self.solve(
                torch.from_numpy(np.ascontiguousarray(b, dtype=self.dtype)),
                damping=damping,
                tolerance=tolerance,
                preconditioner=preconditioner,
            )
            return Solution(x.cpu().numpy(), residual)
        self._check(b)
        return solved(self, b, damping=damping, tolerance=tolerance, preconditioner=preconditioner)

    def _check(self, x: Any) -> None:
        if not isinstance(x, Tensor) or x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            shape = f" of shape {tuple(x.shape)}" if isinstance(x, Tensor) else ""
            raise UserError(
                "operator @ x: the vector does not fit",
                got=plain(f"{type(x).__name__}{shape}"),
                allowed=f"a tensor or NumPy array of shape ({self.shape[1]},) or ({self.shape[1]}, k)",
                remedy="operator.flatten({name: tensor}) makes one of tensors of the weights' shapes",
            )

    def __reduce__(self) -> NoReturn:
        """Refuse: products hold graphs of a network."""
        raise TypeError("an operator cannot be pickled or copied: make it again from its problem")


class Solution(NamedTuple):
    """`x` solves a linear system up to `residual`, relative to the right-hand side: a number, or one per column."""

    x: Any
    residual: Any


def _scipy(matrix: ImplicitMatrix, shape: tuple[int, int]) -> sparse.LinearOperator:
    def times(x: NDArray[Any]) -> NDArray[np.float64]:
        return (matrix @ np.asarray(x)).astype(np.float64)

    def back(x: NDArray[Any]) -> NDArray[np.float64]:
        return (matrix.T @ np.asarray(x)).astype(np.float64)

    return sparse.LinearOperator(shape, matvec=times, rmatvec=back, matmat=times, rmatmat=back, dtype=np.float64)
