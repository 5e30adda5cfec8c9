"""Removing and rounding weights under a quadratic model of the loss: Optimal Brain Damage, Surgeon, and GPTQ.

All functions take the weights w as one vector and the model as a symmetric matrix A:
the loss rises by u.A u / 2 for a step u. docs/studies/removal.md gives formulas and
sources.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Vector = Float[Tensor, " n"]
Matrix = Float[Tensor, "n n"]
Places = Int[Tensor, " k"]


def damped_inverse(matrix: Matrix, damping: float) -> Matrix:
    """Return (|A| + shift I)^-1, where shift = damping * mean |A_ii| and |A| has the sizes of A's eigenvalues.

    With an indefinite A, some steps would lower the model without bound; |A| has the
    same curvatures with positive signs (Dauphin et al. 2014, arXiv 1406.2572). If A +
    shift I is positive definite, it is inverted instead. A zero matrix counts as the
    identity; a matrix that is not finite gives nan.
    """
    shift = damping * float(matrix.diagonal().abs().mean())
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    if not matrix.isfinite().all():
        return torch.full_like(matrix, torch.nan)
    if not matrix.any():
        return identity
    factor, failed = torch.linalg.cholesky_ex(matrix + shift * identity)
    if not failed:
        return torch.cholesky_inverse(factor)
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors / (values.abs() + shift)) @ vectors.T


def obd(weights: Vector, diagonal: Vector) -> Vector:
    """Return w_i^2 A_ii / 2, the rise of the model with weight i alone at zero (LeCun et al. 1989, equation 5)."""
    return weights.square() * diagonal / 2


def obs(weights: Vector, inverse: Matrix) -> Vector:
    """Return w_i^2 / (2 [A^-1]_ii), the smallest rise with weight i at zero (Hassibi and Stork 1992, equation 5)."""
    return weights.square() / (2 * inverse.diagonal())


def obs_of_group(weights: Vector, inverse: Matrix, places: Places) -> float:
    """Return w_S.([A^-1]_SS)^-1 w_S / 2, the smallest rise with all weights of a set S at zero."""
    removed = weights[places]
    return (
        float(removed @ torch.linalg.solve(inverse[places[:, None], places], removed))
        / 2
    )


def compensated(weights: Vector, inverse: Matrix) -> Matrix:
    """Return in row i the weights of the smallest rise with weight i at zero: w - w_i A^-1 e_i / [A^-1]_ii."""
    moved = weights - (weights / inverse.diagonal())[:, None] * inverse
    return moved.fill_diagonal_(0.0)


def zeroed(
    weights: Vector, order: Places, counts: Sequence[int]
) -> Float[Tensor, "counts n"]:
    """Return one row per count: the weights with the first `count` weights of an order at zero."""
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order))
    return torch.where(ranks < torch.tensor(counts)[:, None], 0.0, weights)


def surgery(
    weights: Vector, inverse: Matrix, counts: Sequence[int]
) -> Iterator[Vector]:
    """Yield the weights after `count` of them were removed and the others compensated, for ascending counts.

    From one count to the next, the set S of weights with the smallest saliencies is
    removed at once. The other weights move by -[A^-1]_RS ([A^-1]_SS)^-1 w_S, and the
    inverse becomes that of A on the remaining weights (a Schur complement). Saliencies
    are then computed for the new weights with the same A.
    """
    current = weights.clone()
    inverse = inverse.clone()
    remaining = torch.arange(len(weights))
    for count in counts:
        new = count - (len(weights) - len(remaining))
        if new:
            ranks = obs(current[remaining], inverse).argsort(stable=True)
            gone = ranks[:new]
            left = ranks[new:].sort().values
            gains = torch.linalg.solve(
                inverse[gone[:, None], gone], inverse[gone[:, None], left]
            )
            current[remaining[left]] -= current[remaining[gone]] @ gains
            current[remaining[gone]] = 0.0
            inverse = (
                inverse[left[:, None], left] - inverse[left[:, None], gone] @ gains
            )
            remaining = remaining[left]
        yield current.clone()


Rounding = Callable[[Tensor, int | slice], Tensor]


class RowGrids:
    """Equally spaced levels for every row of a matrix from its smallest to its largest entry, including 0.

    With b bits there are 2^b levels scale * (k - zero), k = 0, ..., 2^b - 1, with scale
    = (max - min) / (2^b - 1) and a whole number zero: the asymmetric grid per row of
    the GPTQ paper's experiments. A row of zeros stays zero.
    """

    def __init__(self, matrices: Sequence[Float[Tensor, "_ _"]], bits: int) -> None:
        scales = []
        zeros = []
        self._most = 2**bits - 1
        for matrix in matrices:
            low = matrix.min(dim=1).values.clamp(max=0)
            high = matrix.max(dim=1).values.clamp(min=0)
            scale = (high - low) / self._most
            scale = torch.where(scale > 0, scale, 1.0)
            scales.append(scale[:, None].expand_as(matrix).flatten())
            zeros.append((-low / scale).round()[:, None].expand_as(matrix).flatten())
        self._scales, self._zeros = torch.cat(scales), torch.cat(zeros)

    def __call__(self, values: Tensor, at: int | slice = slice(None)) -> Tensor:
        """Return the levels nearest to the entries `at` of the matrices, which are flattened row by row."""
        scale, zero = self._scales[at], self._zeros[at]
        return scale * ((values / scale).round().add(zero).clamp(0, self._most) - zero)


def gptq(weights: Vector, inverse: Matrix, rounded: Rounding) -> Vector:
    """Return weights rounded one after the other; later weights compensate for the error of each.

    With U upper triangular, U^T U = A^-1: the error e = (w_i - q_i) / U_ii of weight i
    moves every later weight j by -e U_ij (Frantar et al. 2022, algorithm 1, where A is
    X X^T for each row). The order is that of the vector: for a matrix A that does not
    couple rows, column after column within each row, as there.
    """
    is_finite = bool(inverse.isfinite().all())
    left = weights.clone()
    upper = torch.linalg.cholesky(inverse, upper=True) if is_finite else inverse
    for place in range(len(weights)):
        level = rounded(left[place], place)
        left[place + 1 :] -= (
            (left[place] - level) / upper[place, place] * upper[place, place + 1 :]
        )
        left[place] = level
    return left
