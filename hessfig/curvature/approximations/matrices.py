"""Structured matrices with fast products: diagonals, low rank, sums of Kronecker products, diagonals in other bases.

A vector of a block is the (m, n) matrix of the weight, row by row, so G (x) P maps V to
G V P^T.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from scipy.linalg import eigh
from torch import Tensor

# Alternating least squares: maximal number of sweeps, and change at which it stops.
_SWEEPS, _STILL = (100, 1e-8)
_RIDGE = 1e-13  # ridge of the normal equations, relative to their trace


@runtime_checkable
class Product(Protocol):
    """A symmetric matrix that is given by its products."""

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
    """The sum of the outer products of `rows` with themselves.

    A = R^T R = sum_i r_i r_i^T with the rows r_i: positive semi-definite, of a rank of at
    most their number. A product takes 4 rank dim operations.
    """

    rows: Float[Tensor, "rank dim"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        return self.rows.T @ (self.rows @ vectors)


@dataclass(frozen=True)
class KroneckerSum:
    r"""sum_a left_a (x) right_a, on vectors that are (m, n) matrices V, row by row.

    .. math:: (L \otimes R) \, \mathrm{vec}_r V = \mathrm{vec}_r (L V R^\top),

    since entry (i, j) of both sides is sum_ab L_ia R_jb V_ab. A product takes m n (m + n)
    multiplications for each term, and m^2 n^2 for the matrix itself.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.approximations.matrices import KroneckerSum
    >>> left, right = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    >>> vector = torch.tensor([[1.0], [0.0], [0.0], [2.0]])
    >>> KroneckerSum(left[None], right[None]).matmat(vector).flatten().tolist()
    [4.0, 5.0, 8.0, 11.0]
    >>> (torch.kron(left, right) @ vector).flatten().tolist()
    [4.0, 5.0, 8.0, 11.0]
    """

    left: Float[Tensor, "r m m"]
    right: Float[Tensor, "r n n"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V: sum_a L_a V R_a^T for every column, read as a matrix V."""
        weights = as_weights(vectors, (self.left.shape[1], self.right.shape[1]))
        terms = []
        for left, right in zip(self.left, self.right, strict=True):
            terms.append(left @ weights @ right.T)
        return torch.stack(terms).sum(dim=0).flatten(1).T


@dataclass(frozen=True)
class Basis:
    """The orthonormal basis Q = Q_left (x) Q_right of the space of a weight matrix.

    Coordinates of V are Q_left^T V Q_right, which is Q^T vec_r V as a matrix, and V is
    Q_left C Q_right^T again: Q^T Q = I, since both factors are orthogonal.
    """

    left: Float[Tensor, "m m"]
    right: Float[Tensor, "n n"]

    @classmethod
    def of(cls, left: Float[Tensor, "m m"], right: Float[Tensor, "n n"]) -> Basis:
        """Return the eigenvectors of two symmetric factors."""
        q_left = torch.linalg.eigh(left).eigenvectors
        q_right = torch.linalg.eigh(right).eigenvectors
        return cls(q_left, q_right)

    def into(self, weights: Float[Tensor, "*k m n"]) -> Float[Tensor, "*k m n"]:
        """Return coordinates in this basis."""
        return self.left.T @ weights @ self.right

    def back(self, coordinates: Float[Tensor, "*k m n"]) -> Float[Tensor, "*k m n"]:
        """Return weights from their coordinates."""
        return self.left @ coordinates @ self.right.T


@dataclass(frozen=True)
class Rotated:
    """Q diag(values) Q^T in a basis Q.

    With the values diag(Q^T B Q) it is the nearest matrix of this form to B in the Frobenius
    norm, which does not change under Q: |B - Q D Q^T| = |Q^T B Q - D|.
    """

    basis: Basis
    values: Float[Tensor, "m n"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        coordinates = self.basis.into(as_weights(vectors, self.values.shape))
        return self.basis.back(self.values * coordinates).flatten(1).T


@dataclass(frozen=True)
class Reordered:
    """The symmetric matrix with the entries matrix[order[i], order[j]].

    With the permutation (P x)[order[i]] = x[i], it is P^T matrix P.
    """

    matrix: Product
    order: Shaped[Tensor, " dim"]

    def matmat(self, vectors: Float[Tensor, "dim k"]) -> Float[Tensor, "dim k"]:
        """Return A V."""
        inside = torch.empty_like(vectors)
        inside[self.order] = vectors
        return self.matrix.matmat(inside)[self.order]


def as_weights(
    vectors: Float[Tensor, "dim k"], shape: Sequence[int]
) -> Float[Tensor, "k m n"]:
    """Return every column as a matrix of the weight's shape."""
    return vectors.T.reshape(-1, *shape)


def kronecker_factors(
    sent_back: Float[Tensor, "k m"], inputs: Float[Tensor, "uses n"]
) -> tuple[Float[Tensor, "m m"], Float[Tensor, "n n"]]:
    """Return the K-FAC factors of a linear map: sum g g^T of backpropagated vectors, and mean x x^T of inputs.

    A map y = W x that is used once by each sample has H_o = sum (g g^T) (x) (x x^T) over the
    samples and the columns of the root, where the gradient in W is g x^T. If g g^T and
    x x^T are uncorrelated, the sum of products is the product of the sum and the mean.
    Approximations of blocks and steps of trainings share this function, so that both
    have the same order of summation.

    References
    ----------
    J. Martens and R. Grosse (2015), Optimizing neural networks with Kronecker-factored
    approximate curvature, arXiv 1503.05671.
    """
    return sent_back.T @ sent_back, inputs.T @ inputs / len(inputs)


def kronecker_factors_of(
    batches: Iterable[tuple[Tensor, Tensor]],
) -> tuple[Float[Tensor, "m m"], Float[Tensor, "n n"]]:
    """Return the K-FAC factors of several batches of (sent_back, inputs): sum g g^T, and the mean over all inputs.

    The mean is updated batch by batch: with the mean M of N inputs, and m of n more,
    M + (m - M) n / (N + n). A batch without inputs has no part in it.
    """
    count = 0
    left = torch.zeros(())
    right = torch.zeros(())
    for sent, inputs in batches:
        more, mean = kronecker_factors(sent, inputs)
        count += len(inputs)
        left = left + more
        if len(inputs):
            right = right + (mean - right) * (len(inputs) / count)
        else:
            right = right.to(mean).expand(mean.shape)
    return left, right


def root(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Return the matrix square root of a positive semi-definite matrix, A^(1/2) A^(1/2) = A.

    With A = Q diag(lambda) Q^T it is Q diag(sqrt(lambda)) Q^T. Negative eigenvalues are
    rounding and count as 0; an eigenvalue of the size eps |A|, which is rounding, has a
    root of sqrt(eps) |A|^(1/2).

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.approximations.matrices import root
    >>> root(torch.tensor([[5.0, 4.0], [4.0, 5.0]]).double()).round(decimals=12).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def best_kronecker_sum(
    matrix: Float[Tensor, "dim dim"], shape: Sequence[int], rank: int
) -> KroneckerSum:
    r"""Return the sum of `rank` Kronecker products that is closest to a matrix in the Frobenius norm.

    The matrix is rearranged so that row (i, j) is the block that couples rows i and j
    of the weight. A Kronecker product has rank one then, and no entry is changed:

    .. math:: \mathcal{R}(L \otimes R) = \mathrm{vec}_r L \; (\mathrm{vec}_r R)^\top, \qquad
              \Bigl\|A - \sum_a L_a \otimes R_a\Bigr\|_F = \Bigl\|\mathcal{R}(A)
              - \sum_a \mathrm{vec}_r L_a \, (\mathrm{vec}_r R_a)^\top\Bigr\|_F,

    so that by the theorem of Eckart and Young the leading singular vectors of R(A) are the
    factors, one of each pair times the singular value. They are eigenvectors of the smaller
    of R R^T and R^T R, of size min(m, n)^2; singular values below sqrt(eps) of the largest
    are lost in these.

    References
    ----------
    C. F. Van Loan and N. Pitsianis (1993), Approximation with Kronecker products.

    Examples
    --------
    A Kronecker product is its own best approximation:

    >>> import torch
    >>> left, right = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double(), torch.eye(2).double()
    >>> found = best_kronecker_sum(torch.kron(left, right), (2, 2), rank=1)
    >>> bool((torch.kron(found.left[0], found.right[0]) - torch.kron(left, right)).norm() < 1e-12)
    True
    """
    m, n = shape
    rearranged = matrix.reshape(m, n, m, n).transpose(1, 2).reshape(m * m, n * n)
    is_wide = m <= n
    if is_wide:
        gram = rearranged @ rearranged.T
    else:
        gram = rearranged.T @ rearranged
    size = len(gram)
    count = min(rank, size)
    _, vectors = eigh(gram.numpy(), subset_by_index=[size - count, size - 1])
    leading = torch.from_numpy(vectors).to(matrix)
    if is_wide:
        left = leading
        right = rearranged.T @ leading
    else:
        left = rearranged @ leading
        right = leading
    return KroneckerSum(left.T.reshape(-1, m, m), right.T.reshape(-1, n, n))


def fitted_kronecker_sum(
    vectors: Float[Tensor, "dim k"],
    products: Float[Tensor, "dim k"],
    shape: Sequence[int],
    rank: int,
) -> KroneckerSum:
    r"""Return a sum of `rank` Kronecker products that approximately maps `vectors` to `products`.

    Kronecker products are fitted one after the other, each to the residual of the
    earlier ones, by alternating least squares. For k vectors with E v v^T = I,

    .. math:: E \, \frac{1}{k} \sum_k |(A - S) v_k|^2 = \|A - S\|_F^2,

    so that the fitted sum S approaches the best one with more vectors; its error |A - S|_F
    is never below that of the best sum.

    Parameters
    ----------
    vectors, products : tensors (dim, k)
        V and A V.
    shape : (m, n)
        That of the weight, dim = m n.
    rank : int
    """
    weights = as_weights(vectors, shape)
    residual = as_weights(products, shape)
    lefts = []
    rights = []
    for _ in range(rank):
        left, right = _fitted_pair(weights, residual)
        lefts.append(left)
        rights.append(right)
        residual = residual - left @ weights @ right.T
    return KroneckerSum(torch.stack(lefts), torch.stack(rights))


def _fitted_pair(
    given: Float[Tensor, "k m n"], wanted: Float[Tensor, "k m n"]
) -> tuple[Tensor, Tensor]:
    """Return L and R that minimise sum_k |L V_k R^T - Y_k|^2, by turns: each is a linear fit if the other is fixed.

    The sum of squares falls with every turn, to a local minimum. Only the product of both
    factors is determined, so that R / |R| is what must come to rest, to _STILL.
    """
    right = torch.eye(given.shape[2], dtype=given.dtype)
    for _ in range(_SWEEPS):
        before = right / right.norm()
        left = _factor(given @ before.T, wanted)
        right = _factor((left @ given).mT, wanted.mT)
        if not float((right / right.norm() - before).norm()) > _STILL:
            break
    return left, right


def _factor(
    design: Float[Tensor, "k m n"], wanted: Float[Tensor, "k m n"]
) -> Float[Tensor, "m m"]:
    """Return the L that minimises sum_k |L W_k - Y_k|^2: L = (sum Y W^T) (sum W W^T)^-1, with a small ridge.

    The derivative in L vanishes where sum_k (L W_k - Y_k) W_k^T = 0. The ridge, 1e-13 of
    the trace, keeps the system regular if the W_k do not span all m rows.
    """
    flat = design.transpose(0, 1).flatten(1)
    target = wanted.transpose(0, 1).flatten(1)
    normal = flat @ flat.T
    ridge = _RIDGE * float(normal.trace()) + torch.finfo(normal.dtype).tiny
    normal.diagonal().add_(ridge)
    return torch.linalg.solve(normal, flat @ target.T).T
