"""Matrices known by their products: the protocols of PyTorch, NumPy, SciPy and curvlinops, and linear systems."""

from __future__ import annotations

import warnings
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
Array = NDArray[np.float64]
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

    Examples
    --------
    A matrix of one's own has `T` and `_multiplied`; all else follows:

    >>> import torch
    >>> from hessfig.curvature import ImplicitMatrix
    >>> class Twice(ImplicitMatrix):
    ...     T = property(lambda self: self)
    ...     def _multiplied(self, vectors):
    ...         return 2 * vectors
    >>> matrix = Twice((3, 3), torch.float64, torch.device("cpu"))
    >>> matrix.dense().diagonal().tolist(), matrix.solve(torch.ones(3)).x.tolist()
    ([2.0, 2.0, 2.0], [0.5, 0.5, 0.5])
    """

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self._real = dtype
        self.dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype

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

        def times(x: Array) -> Array:
            return (self @ np.asarray(x)).astype(np.float64)

        def back(x: Array) -> Array:
            return (self.T @ np.asarray(x)).astype(np.float64)

        given = {"matvec": times, "rmatvec": back, "matmat": times, "rmatmat": back}
        return sparse.LinearOperator(self.shape, **given, dtype=np.float64)

    def to_curvlinops(self) -> Any:
        """Return the matrix as an operator of curvlinops, for its estimators; vectors are one tensor."""
        from hessfig.curvature.curvlinops import MatrixOperator

        return MatrixOperator(self, self._real, is_symmetric=self.T is self)

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
            Of the relative residual `|b - (A + damping I) x| / |b|`.
        preconditioner : an approximation of A that has `solve`, such as problem.approximation("kfac", block)
            Solved with the same damping, but at least 1e-6 of its own scale; its eigenvalues count by their size.

        Returns
        -------
        Solution
            x, of the type of `b`, and the relative residual of each column, by a product of its own.
        """
        if self.T is not self:
            raise UserError(
                "solve: the matrix is not symmetric",
                got=f"shape {self.shape}",
                allowed="a diagonal block, such as 'W_V'",
                remedy="scipy.sparse.linalg.lsmr(operator.to_scipy(), b)",
            )
        if isinstance(b, np.ndarray):
            given = torch.from_numpy(np.ascontiguousarray(b, dtype=self.dtype))
            x, residual = self.solve(given, damping=damping, tolerance=tolerance, preconditioner=preconditioner)
            return Solution(x.cpu().numpy(), residual)
        self._check(b)
        x, residuals = self._solved(b.detach().reshape(len(b), -1), damping, tolerance, preconditioner)
        return Solution(x.reshape(b.shape), float(residuals[0]) if b.ndim == 1 else residuals)

    def _solved(
        self, b: Float[Tensor, "n k"], damping: float, tolerance: float, preconditioner: ImplicitMatrix | None
    ) -> tuple[Tensor, Tensor]:
        """Return x and the relative residuals of (A + damping I) x = b, column by column."""
        _check(damping, tolerance)
        system = _Damped(self, damping, _inverse_of(preconditioner, damping, self.shape[0]))
        pairs = [system.solved(column, tolerance) for column in b.double().cpu().numpy().T]
        x = torch.from_numpy(np.stack([x for x, _ in pairs], axis=1)).to(b.device, b.dtype)
        residuals = torch.tensor([residual for _, residual in pairs], dtype=torch.float64)
        if not bool((residuals <= tolerance).all()):
            message = (
                f"solve: the relative residual {float(residuals.max()):.2g} is above the tolerance {tolerance:.2g}"
            )
            warnings.warn(f"{message}; damping=... or a preconditioner helps", RuntimeWarning, stacklevel=3)
        return x, residuals

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
    """What `solve` returns.

    Attributes
    ----------
    x : tensor or array, (n,) or (n, k)
        The solution of (A + damping I) x = b.
    residual : float, or tensor (k,)
        |b - (A + damping I) x| / |b|, of each column.

    Examples
    --------
    >>> from hessfig.curvature import Solution
    >>> x, residual = Solution([1.0], 0.0)
    """

    x: Any
    residual: Any


_LEAST_DAMPING = 1e-6  # of a preconditioner, relative to its scale
_ROUNDS, _STEPS = 5, 2  # restarts from the true residual, each with at most _STEPS n products
_PROGRESS = 0.9  # a restart that leaves more of the residual than this ends the search


def _check(damping: float, tolerance: float) -> None:
    given = {"damping": (damping, 0.0), "tolerance": (tolerance, 1e-15)}
    for name, (value, least) in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            raise UserError(
                f"solve: {name} is out of range",
                got=repr(value),
                allowed=f"a finite number of at least {least:g}",
                remedy=f"{name}=1e-3",
            )


class _Damped:
    """A + damping I, with a method for its linear systems."""

    def __init__(self, matrix: ImplicitMatrix, damping: float, inverse: sparse.LinearOperator | None) -> None:
        self._matrix, self._damping, self._inverse = matrix, damping, inverse
        self._method: Callable[..., Any] = sparse.cg if matrix.is_semidefinite else sparse.minres
        self._operator = sparse.LinearOperator(matrix.shape, matvec=self._times, dtype=np.float64)

    def _times(self, x: Array) -> Array:
        found: Array = (self._matrix @ x).astype(np.float64) + self._damping * x
        return found

    def solved(self, b: Array, tolerance: float) -> tuple[Array, float]:
        """Return x and its relative residual; each round solves for what the rounds before left."""
        size = float(np.linalg.norm(b))
        best, left, residual = np.zeros_like(b), b, 1.0 if size else 0.0
        for _ in range(_ROUNDS):
            if not residual > tolerance:
                break
            x = best + self._round(left, max(0.1 * tolerance / residual, 1e-14))
            after = b - self._times(x)
            now = float(np.linalg.norm(after)) / size
            if not now < residual:
                break
            slow, best, left, residual = now > _PROGRESS * residual, x, after, now
            if slow:
                break
        return best, residual

    def _round(self, b: Array, tolerance: float) -> Array:
        given = {"rtol": tolerance, "maxiter": _STEPS * len(b), "M": self._inverse}
        found: Array = self._method(self._operator, b, **given)[0]
        return found


def _inverse_of(preconditioner: ImplicitMatrix | None, damping: float, dim: int) -> sparse.LinearOperator | None:
    """Return (|P| + damping I)^-1 as an operator of SciPy."""
    if preconditioner is None:
        return None
    if preconditioner.shape != (dim, dim) or not hasattr(preconditioner, "inverse"):
        raise UserError(
            "solve: this preconditioner does not fit",
            got=f"{type(preconditioner).__name__} of shape {preconditioner.shape}",
            allowed=f"an approximation of the same block, of shape {(dim, dim)}",
            remedy='preconditioner=problem.approximation("kfac", block)',
        )
    inverse = preconditioner.inverse(damping, least=_LEAST_DAMPING)
    return sparse.LinearOperator((dim, dim), matvec=lambda x: (inverse @ x).astype(np.float64), dtype=np.float64)
