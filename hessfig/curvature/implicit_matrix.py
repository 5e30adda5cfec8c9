"""Matrices given by their products: interfaces to PyTorch, NumPy, SciPy and curvlinops, and linear systems."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from hessfig.errors import UserError, plain
from hessfig.rng import made_on

Vectors = TypeVar("Vectors", Tensor, NDArray[Any])
Array = NDArray[np.float64]
Map = Callable[[Tensor], Tensor]  # of columns to columns
MOST_BYTES = 2**32  # limit for the matrix that `dense` returns


class ImplicitMatrix(ABC):
    """An n x m matrix A that is given by its products A V and A^T V.

    `A @ x` takes one real vector (m,), or several as columns (m, k). For a tensor it
    returns a tensor on `device`, for a NumPy array a NumPy array; the result has the
    type of the matrix. scipy.sparse.linalg accepts the object, since it has `shape` and
    `matvec`. Autograd and torch.func treat A as constant: the gradient of g.(A x) in x
    is A^T g.

    Attributes
    ----------
    shape : tuple of int
        (n, m).
    dtype : numpy.dtype
        Floating-point type of the products.
    device : torch.device
        Device on which products are computed.

    Examples
    --------
    A subclass defines `T` and `_multiplied`:

    >>> import torch
    >>> from hessfig.curvature import ImplicitMatrix
    >>> class Twice(ImplicitMatrix):
    ...     T = property(lambda self: self)
    ...     def _multiplied(self, vectors):
    ...         return 2 * vectors
    >>> matrix = Twice((3, 3), torch.float64, torch.device("cpu"))
    >>> matrix.dense().diagonal().tolist(), matrix.solve(torch.ones(3)).x.round(decimals=9).tolist()
    ([2.0, 2.0, 2.0], [0.5, 0.5, 0.5])
    """

    last_errors: Tensor | None = (
        None  # of the last products, if they are more than rounding: see BlockOperator
    )

    def __init__(
        self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape, self.device = shape, device
        self._real = dtype
        self.dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype

    @property
    @abstractmethod
    def T(self) -> ImplicitMatrix:
        """The transposed matrix; the matrix itself if it is symmetric."""

    @property
    def is_semidefinite(self) -> bool:
        """Whether the matrix is known to be symmetric and positive semi-definite."""
        return False

    @abstractmethod
    def _multiplied(self, vectors: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
        """Return A V for columns that have the type and the device of the operator."""

    def __matmul__(self, x: Vectors) -> Vectors:
        """Return A x for x (m,), or A X for X (m, k). Raises UserError for other shapes and for complex numbers."""
        return self._applied(
            x, self._multiplied, lambda slopes: self.T._multiplied(slopes)
        )[0]

    def _applied(
        self, x: Vectors, forth: Map, back: Map, count: int = 1
    ) -> list[Vectors]:
        """Return the `count` products that `forth` stacks, each in the form of `x`; `back` is its transpose.

        Vectors are cast to the type and the device of the matrix; a single one is a column.
        Autograd sees one linear map whose transpose is `back` (`_Linear`).
        """
        self._check(x)
        if isinstance(x, np.ndarray):
            return [
                one.numpy(force=True)
                for one in self._applied(_tensor(x), forth, back, count)
            ]
        columns = _plain(x).to(self.device, self._real)
        columns = columns if x.ndim == 2 else columns[:, None]
        rows = self.shape[0] * count
        with made_on(self.device):
            if not columns.shape[1]:
                products = columns.new_zeros(rows, 0)
            else:
                if _is_traced(columns):
                    products = _Linear.apply(columns, forth, back)
                else:
                    products = forth(columns)
        pieces = [products] if count == 1 else products.split(self.shape[0])
        return [one if x.ndim == 2 else one[:, 0] for one in pieces]

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
        """Return the matrix as a tensor: its product with the identity. Raises UserError above MOST_BYTES."""
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
        """Return the matrix as an operator of curvlinops, for its estimators; a vector is a single tensor."""
        from hessfig.curvature.curvlinops import MatrixOperator

        return MatrixOperator(self, self._real, is_symmetric=self.T is self)

    def solve(
        self,
        b: Vectors,
        *,
        damping: float = 0.0,
        tolerance: float = 1e-8,
        preconditioner: ImplicitMatrix | None = None,
    ) -> Solution:
        r"""Solve (A + damping I) x = b for a symmetric A.

        SciPy's conjugate gradients if A is positive semi-definite, otherwise SciPy's MINRES.
        Each of at most five rounds solves for the residual of the rounds before,

        .. math:: (A + \delta I) \, y = r_k, \qquad x_{k+1} = x_k + y, \qquad
                  r_{k+1} = b - (A + \delta I) \, x_{k+1},

        with the true residual from a product of its own: that of the recurrences drifts away
        from it by rounding. At most 10 n products. Issues a RuntimeWarning if the residual stays
        above `tolerance`; the error of x is at most the residual over the smallest eigenvalue
        of A + damping I in size.

        Parameters
        ----------
        b : tensor or array, (n,) or (n, k)
            Right-hand sides: finite real numbers of any type and magnitude.
        damping : float, at least 0
            Number added to the diagonal.
        tolerance : float
            Bound of the relative residual `|b - (A + damping I) x| / |b|`.
        preconditioner : an approximation of A that has `solve`, such as problem.approximation("kfac", block)
            Solved with the same damping, but with at least 1e-6 of its own scale, and
            with absolute eigenvalues.

        Returns
        -------
        Solution
            x, in the wider of the types of `b` and of the matrix, and the relative
            residual of each column, computed by a separate product before x is rounded
            to that type. With products="differences" the residual includes the error of
            that product. The gradient in `b` takes one more linear system.
        """
        if self.T is not self:
            raise UserError(
                "solve: the matrix is not symmetric",
                got=f"shape {self.shape}",
                allowed="a diagonal block, such as 'W_V'",
                remedy="scipy.sparse.linalg.lsmr(operator.to_scipy(), b)",
            )
        _check(damping, tolerance)
        self._check(b)
        if isinstance(b, np.ndarray):
            given = _tensor(b)
            x, residual = self.solve(
                given,
                damping=damping,
                tolerance=tolerance,
                preconditioner=preconditioner,
            )
            return Solution(x.numpy(force=True), residual)
        reported: list[Tensor] = []

        def inverted(columns: Tensor) -> Tensor:
            x, residuals = self._in_units(columns, damping, tolerance, preconditioner)
            reported.append(residuals)
            return x

        columns = (
            _plain(b).reshape(len(b), -1).to(torch.promote_types(b.dtype, self._real))
        )
        with made_on(torch.device("cpu")):
            if columns.shape[1]:
                x = _Linear.apply(columns, inverted, inverted)
            else:
                x = columns
        if reported:
            residuals = reported[0]
        else:
            residuals = torch.zeros(0, dtype=torch.float64, device="cpu")
        if bool((residuals > tolerance).any()):
            largest = f"the relative residual {float(residuals.max()):.2g} is above the tolerance {tolerance:.2g}"
            warnings.warn(
                f"solve: {largest}; damping=... or a preconditioner helps",
                RuntimeWarning,
                stacklevel=2,
            )
        return Solution(
            x.reshape(b.shape), float(residuals.max()) if b.ndim == 1 else residuals
        )

    def _in_units(self, b: Float[Tensor, "n k"], *given: Any) -> tuple[Tensor, Tensor]:
        """Return solutions and residuals; right-hand sides whose squares would under- or overflow are rescaled.

        x(b) is linear: x = u x(b / u) with u the largest entry of b in size. Usual sides keep
        u = 1, and so their bits.
        """
        if not bool(b.isfinite().all()):
            raise UserError(
                "solve: the right-hand side is not finite",
                got=f"nan or inf in {int((~b.isfinite()).sum())} of {b.numel()} entries",
                allowed="finite numbers",
                remedy="use b.isfinite() to find these entries",
            )
        sizes = b.double().abs().amax(dim=0)
        is_usual = ((sizes > _LEAST_SIDE) & (sizes < 1 / _LEAST_SIDE)) | (sizes == 0)
        units = torch.where(is_usual, 1.0, sizes)
        x, residuals = self._solved(b.double() / units, *given)
        return (x.to(b.device) * units).to(b.dtype), residuals

    def _solved(
        self,
        b: Float[Tensor, "n k"],
        damping: float,
        tolerance: float,
        preconditioner: ImplicitMatrix | None,
    ) -> tuple[Tensor, Tensor]:
        """Return x and the relative residuals of (A + damping I) x = b, column by column, in float64."""
        system = _Damped(
            self, damping, _inverse_of(preconditioner, damping, self.shape[0])
        )
        pairs = [system.solved(column, tolerance) for column in b.cpu().numpy().T]
        x = torch.from_numpy(np.stack([x for x, _ in pairs], axis=1))
        return x, torch.tensor([residual for _, residual in pairs], dtype=torch.float64)

    def _check(self, x: Any) -> None:
        """Raise UserError for what is not a vector, or several, of real numbers of the matrix's size."""
        known = isinstance(x, Tensor | np.ndarray)
        if not known or x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            shape = f" of shape {tuple(x.shape)}" if known else ""
            raise UserError(
                "operator @ x: the vector does not fit",
                got=plain(f"{type(x).__name__}{shape}"),
                allowed=f"a tensor or NumPy array of shape ({self.shape[1]},) or ({self.shape[1]}, k)",
                remedy="operator.flatten({name: tensor}) makes a vector from tensors with the shapes of the weights",
            )
        if not _is_real(x):
            raise UserError(
                "operator @ x: the vector has no real numbers",
                got=plain(
                    f"{x.dtype}, {getattr(x, 'layout', 'array')}, {getattr(x, 'device', 'cpu')}"
                ),
                allowed="a dense tensor or array of real numbers, whole or floating, on a device that has memory",
                remedy="for complex numbers: multiply x.real and x.imag separately",
            )

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: products refer to autograd graphs of a network."""
        raise TypeError(
            "an operator cannot be pickled or copied: create it again from its problem"
        )


class Solution(NamedTuple):
    """What `solve` returns.

    Attributes
    ----------
    x : tensor or array, (n,) or (n, k)
        The solution of (A + damping I) x = b.
    residual : float, or tensor (k,)
        |b - (A + damping I) x| / |b| of each column; with products="differences", an upper estimate of it.

    Examples
    --------
    >>> from hessfig.curvature import Solution
    >>> x, residual = Solution([1.0], 0.0)
    """

    x: Any
    residual: Any


class _Linear(torch.autograd.Function):
    """Y = A X with a constant A, differentiable in both modes and to any order, and usable under vmap.

    The vector-Jacobian product of X -> A X is A^T, the Jacobian-vector product A again; both
    are calls of this function, so that derivatives of any order follow. Under vmap, the
    vectors of all batch entries become columns of one product.
    """

    @staticmethod
    def forward(columns: Tensor, forth: Map, back: Map) -> Tensor:
        del back
        return forth(columns)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Map, Map], output: Tensor
    ) -> None:
        del output
        _, ctx.forth, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None, None]:
        return _Linear.apply(slopes, ctx.back, ctx.forth), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: None) -> Tensor:
        del others
        return _Linear.apply(tangent, ctx.forth, ctx.back)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, columns: Tensor, forth: Map, back: Map
    ) -> tuple[Tensor, int]:
        del info
        together = columns.movedim(in_dims[0], 2)
        return _Linear.apply(together.flatten(1), forth, back).unflatten(
            1, together.shape[1:]
        ), 2


def _is_traced(columns: Tensor) -> bool:
    """Whether autograd, forward mode or torch.func follows what is done with a tensor: otherwise A is multiplied."""
    return columns.requires_grad or is_followed()


def is_followed() -> bool:
    """Whether forward mode or torch.func is at work."""
    return (
        torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _is_real(x: Tensor | NDArray[Any]) -> bool:
    """Whether a vector holds real numbers in memory that can be read."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "biuf"
    return (
        not (x.is_complex() or x.is_quantized or x.is_meta)
        and x.layout == torch.strided
    )


def _tensor(x: NDArray[Any]) -> Tensor:
    """Return a copy as a tensor: in float32, or in float64 if the type of the array has more digits."""
    wide = np.float32 if np.can_cast(x.dtype, np.float32) else np.float64
    return torch.tensor(np.ascontiguousarray(x, dtype=wide), device="cpu")


def _plain(x: Tensor) -> Tensor:
    """Return a tensor that a graph may hold."""
    return x.clone() if x.is_inference() else x


_LEAST_SIDE = 1e-100  # above it, squares of right-hand sides and of their residuals are finite and not 0
_LEAST_DAMPING = 1e-6  # of a preconditioner, relative to its scale
# Restarts from the true residual, each with at most _STEPS n products.
_ROUNDS, _STEPS = (5, 2)
_PROGRESS = 0.9  # a restart that leaves more of the residual than this ends the search


def _check(damping: float, tolerance: float) -> None:
    """Raise UserError for a damping below 0, or a tolerance that float64 does not reach."""
    given = {"damping": (damping, 0.0), "tolerance": (tolerance, 1e-15)}
    for name, (value, least) in given.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value < float("inf")
        ):
            raise UserError(
                f"solve: {name} is out of range",
                got=repr(value),
                allowed=f"a finite number of at least {least:g}",
                remedy=f"{name}=1e-3",
            )


class _Damped:
    """A + damping I, with a method for its linear systems.

    The method is conjugate gradients for a positive semi-definite A, which needs A + damping
    I positive definite to converge, and MINRES otherwise, which minimises the residual
    of any symmetric matrix over the Krylov space.
    """

    def __init__(
        self,
        matrix: ImplicitMatrix,
        damping: float,
        inverse: sparse.LinearOperator | None,
    ) -> None:
        self._matrix = matrix
        self._damping = damping
        self._inverse = inverse
        self._unit = 1.0
        self._method: Callable[..., Any] = (
            sparse.cg if matrix.is_semidefinite else sparse.minres
        )
        self._operator = sparse.LinearOperator(
            matrix.shape, matvec=self._times, dtype=np.float64
        )

    def _times(self, x: Array) -> Array:
        """Return (A + damping I) x / unit."""
        product: Array = (
            (self._matrix @ x).astype(np.float64) + self._damping * x
        ) / self._unit
        return product

    def solved(self, b: Array, tolerance: float) -> tuple[Array, float]:
        """Return x and its relative residual; a matrix whose squares under- or overflow is rescaled.

        With the unit s = |(A + damping I) b|_max / |b|_max, the system over s has entries of size
        one: ((A + damping I) / s) y = b and x = y / s. It is tried only if the plain system
        fails and s is outside of what squares of float64 hold.
        """
        x, residual = self._searched(b, tolerance)
        if residual <= tolerance:
            size = 1.0
        else:
            size = float(np.abs(self._times(b)).max() / np.abs(b).max())
        if 0.0 < size < _LEAST_SIDE or 1 / _LEAST_SIDE < size < np.inf:
            self._unit *= size
            x, residual = self._searched(b, tolerance)
        return x / self._unit, residual

    def _searched(self, b: Array, tolerance: float) -> tuple[Array, float]:
        """Solve in the present unit; each round solves for the residual of the rounds before.

        A round gets the tolerance that is left, tolerance / residual, with a factor 0.1 to
        spare. The search ends with the tolerance reached, with a residual that falls no more, or with
        one that a round reduces by less than a tenth (_PROGRESS).
        """
        size = float(np.linalg.norm(b))
        best = np.zeros_like(b)
        left = b
        residual = 1.0 if size else 0.0
        for _ in range(_ROUNDS):
            if not residual > tolerance:
                break
            x = best + self._round(left, max(0.1 * tolerance / residual, 1e-14))
            after = b - self._times(x)
            now = (float(np.linalg.norm(after)) + self._error_of_product) / size
            if not now < residual:
                break
            slow = now > _PROGRESS * residual
            best = x
            left = after
            residual = now
            if slow:
                break
        return best, residual

    @property
    def _error_of_product(self) -> float:
        """The norm of the error of the last product, beyond rounding."""
        errors = self._matrix.last_errors
        return 0.0 if errors is None else float(errors.max()) / self._unit

    def _round(self, b: Array, tolerance: float) -> Array:
        """Return SciPy's solution of (A + damping I) / unit x = b to a relative residual, by at most 2 n iterations."""
        given = {"rtol": tolerance, "maxiter": _STEPS * len(b), "M": self._inverse}
        solution: Array = self._method(self._operator, b, **given)[0]
        return solution


def _inverse_of(
    preconditioner: Any, damping: float, dim: int
) -> sparse.LinearOperator | None:
    """Return (|P| + damping I)^-1 as an operator of SciPy.

    The damping is at least _LEAST_DAMPING of the scale of P: a singular P would otherwise
    multiply directions outside its range by 1 / 0.
    """
    if preconditioner is None:
        return None
    shape = getattr(preconditioner, "shape", None)
    if shape != (dim, dim) or not hasattr(preconditioner, "inverse"):
        raise UserError(
            "solve: this preconditioner does not fit",
            got=plain(f"{type(preconditioner).__name__} of shape {shape}"),
            allowed=f"an approximation of the same block, of shape {(dim, dim)}",
            remedy='preconditioner=problem.approximation("kfac", block)',
        )
    inverse = preconditioner.inverse(damping, least=_LEAST_DAMPING)
    return sparse.LinearOperator(
        (dim, dim), matvec=lambda x: (inverse @ x).astype(np.float64), dtype=np.float64
    )
