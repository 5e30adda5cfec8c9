"""All eigenvalues of a diagonal block and its parts, from the block itself: products with the identity, in chunks.

Memory is what bounds it: a matrix for each part that has products of its own (H beside H_o and H_f has none), and a
vector or two. LAPACK's reduction to tridiagonal form destroys one triangle of a symmetric matrix; the other one and the
diagonal bring it back, so no copy is made. The drivers ev, evr, evd, and torch's, take the same time for eigenvalues
alone (all of it is that reduction).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessfig.curvature.column import SPLIT, Column, chunks, to_multiply
from hessfig.curvature.spectral.operator import Square
from hessfig.terms import Part

COLUMNS_AT_ONCE = 64
Matrix = NDArray[np.float64]
_ROWS = 512


def dense_eigenvalues(
    column: Column, row: Hashable, parts: Sequence[Part]
) -> dict[Part, NDArray[np.float64] | None]:
    """Return the ascending eigenvalues of each part of the square block `row` of `column`; None where not finite.

    Raises ArithmeticError for a part that is not symmetric up to rounding. The matrices must be known to fit.
    """
    made = _matrices(column, row, to_multiply(parts))
    finite = {part: bool(np.isfinite(matrix.sum())) for part, matrix in made.items()}
    for part, matrix in made.items():
        if finite[part]:
            _symmetrise(matrix, Square(column, row, part))
    found: dict[Part, Matrix | None] = {}
    if Part.H in parts and Part.H not in made:
        outer, functional = (made[part] for part in SPLIT)
        found[Part.H] = _of_sum(outer, functional) if all(finite.values()) else None
    for part in list(made):
        found[part] = _eigenvalues(made.pop(part)) if finite[part] else None
    return {part: found[part] for part in parts}


def eigenvalues(matrix: Tensor) -> Tensor:
    """Return the ascending eigenvalues of a symmetric matrix that is at hand; NaN for one that is not finite."""
    if not bool(matrix.isfinite().all()):
        return matrix.new_full((len(matrix),), torch.nan)
    return torch.linalg.eigvalsh(matrix)


def _matrices(column: Column, row: Hashable, parts: Sequence[Part]) -> dict[Part, Matrix]:
    dim = column.dim
    made = {part: np.empty((dim, dim), order="F") for part in parts}
    at = 0
    while at < dim:
        unit = torch.zeros(dim, min(COLUMNS_AT_ONCE, dim - at), dtype=column.dtype)
        unit[range(at, at + unit.shape[1]), range(unit.shape[1])] = 1.0
        for chunk in chunks(unit, column, COLUMNS_AT_ONCE):
            products = column.split_matmat(chunk, parts=parts)
            for part, matrix in made.items():
                matrix[:, at : at + chunk.shape[1]] = products[row, part].cpu().double().numpy()
            at += chunk.shape[1]
    return made


def _symmetrise(matrix: Matrix, square: Square) -> None:
    """Take the mean of matrix and transpose, in place, band by band; the difference must be rounding."""
    asymmetry, size = 0.0, float(np.linalg.norm(matrix))
    for low in range(0, len(matrix), _ROWS):
        band = slice(low, low + _ROWS)
        below, right = matrix[low:, band], matrix[band, low:].T
        asymmetry = float(np.hypot(asymmetry, np.linalg.norm(below - right)))
        mean = (below + right) / 2
        matrix[low:, band], matrix[band, low:] = mean, mean.T
    square.check_symmetric(asymmetry, size)


def _of_sum(outer: Matrix, functional: Matrix) -> Matrix:
    """Return the eigenvalues of the sum, which is put into the lower triangle of `outer` and taken out again."""
    diagonal = outer.diagonal().copy()
    for column in range(len(outer)):
        outer[column:, column] += functional[column:, column]
    values = _eigenvalues(outer)
    for column in range(len(outer)):
        outer[column + 1 :, column] = outer[column, column + 1 :]
    np.fill_diagonal(outer, diagonal)
    return values


def _eigenvalues(matrix: Matrix) -> Matrix:
    """Return the eigenvalues; the lower triangle and the diagonal are destroyed."""
    if not matrix.any():
        return np.zeros(len(matrix))
    found: Matrix = scipy.linalg.eigh(
        matrix, lower=True, eigvals_only=True, overwrite_a=True, check_finite=False, driver="ev"
    )
    return found
