"""Linear systems with a symmetric matrix that is known by its products: conjugate gradients and MINRES."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessfig.errors import UserError

if TYPE_CHECKING:
    from hessfig.curvature.implicit_matrix import ImplicitMatrix, Solution

_LEAST_DAMPING = 1e-6  # of a preconditioner, relative to its scale
_ROUNDS, _STEPS = 5, 2  # restarts from the true residual, each with at most _STEPS n products
_PROGRESS = 0.9  # a restart that leaves more of the residual than this ends the search
Array = NDArray[np.float64]


def solved(
    matrix: ImplicitMatrix, b: Tensor, *, damping: float, tolerance: float, preconditioner: ImplicitMatrix | None
) -> Solution:
    """Return x and the relative residuals of (A + damping I) x = b; see ImplicitMatrix.solve."""
    from hessfig.curvature.implicit_matrix import Solution

    _check(damping, tolerance)
    system = _Damped(matrix, damping, _inverse_of(preconditioner, damping, matrix.shape[0]))
    columns = b.detach().double().cpu().numpy().reshape(matrix.shape[0], -1)
    pairs = [system.solved(column, tolerance) for column in columns.T]
    x = torch.from_numpy(np.stack([x for x, _ in pairs], axis=1)).to(b.device, b.dtype)
    residuals = torch.tensor([residual for _, residual in pairs], dtype=torch.float64)
    if not bool((residuals <= tolerance).all()):
        message = f"solve: the relative residual {float(residuals.max()):.2g} is above the tolerance {tolerance:.2g}"
        warnings.warn(f"{message}; damping=... or a preconditioner helps", RuntimeWarning, stacklevel=3)
    return Solution(x.reshape(b.shape), float(residuals[0]) if b.ndim == 1 else residuals)


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
