"""Whole spectra: all eigenvalues of a dense matrix, densities by stochastic Lanczos quadrature, traces by XTrace."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Generator, Tensor

from hessfig.curvature.column import COLUMNS_AT_ONCE, Column, chunks, to_multiply
from hessfig.curvature.problem import standard_error
from hessfig.curvature.spectral.lanczos import (
    InUnits,
    LanczosRun,
    Square,
    SymmetricOperator,
    advance,
)
from hessfig.terms import Part, split_in

Matrix = NDArray[np.float64]
_ROWS = 512  # of a band of a matrix, which is copied


def dense_eigenvalues(
    column: Column, row: Hashable, parts: Sequence[Part]
) -> dict[Part, NDArray[np.float64] | None]:
    """Return the ascending eigenvalues of each part of the square block `row` of `column`; None for a nonfinite block.

    The n products with unit vectors give the columns of each part, O(n^2) memory and O(n^3)
    operations for the decomposition. By Weyl's inequality every eigenvalue is off by at
    most the spectral norm of the error of the matrix: eps |A| up to a modest factor. H is
    the sum of the matrices of both parts of a split, if both are requested. Every
    matrix is overwritten by its decomposition and freed, so that no more are held at
    once than parts were multiplied. The caller checks that the matrices fit into memory.

    Raises
    ------
    ArithmeticError
        For a part that is not symmetric up to rounding.
    """
    matrices = _matrices(column, row, to_multiply(parts))
    finite = {}
    for part, matrix in matrices.items():
        finite[part] = bool(np.isfinite(matrix.sum()))
        if finite[part]:
            _symmetrise(matrix, Square(column, row, part))
    values: dict[Part, Matrix | None] = {}
    if Part.H in parts and Part.H not in matrices:
        first, second = split_in(matrices)
        values[Part.H] = None
        if all(finite.values()):
            values[Part.H] = _of_sum(matrices[first], matrices[second])
    for part in list(matrices):
        matrix = matrices.pop(part)
        values[part] = _eigenvalues(matrix) if finite[part] else None
    return {part: values[part] for part in parts}


def dense_matrix(square: Square) -> Matrix:
    """Return a part of a square block as a matrix (n, n) in float64.

    The matrix A has the n products with unit vectors as columns; (A + A^T) / 2 is
    returned. A matrix with entries that are not finite is returned as it is. Raises
    ArithmeticError if A is not symmetric up to rounding.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator, Square, dense_matrix
    >>> from hessfig.terms import Part
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> square = Square(ColumnOperator(problem, 0, "weight", ["weight"]), "weight", Part.H)
    >>> matrix = dense_matrix(square)
    >>> matrix.shape, bool((matrix == matrix.T).all())
    ((6, 6), True)
    """
    matrix = _matrices(square.column, square.row, [square.part])[square.part]
    if np.isfinite(matrix.sum()):
        _symmetrise(matrix, square)
    return matrix


def eigenvalues(matrix: Tensor) -> Tensor:
    """Return the ascending eigenvalues of a symmetric matrix; NaN if the matrix is not finite."""
    if not bool(matrix.isfinite().all()):
        return matrix.new_full((len(matrix),), torch.nan)
    return torch.linalg.eigvalsh(matrix)


def _matrices(
    column: Column, row: Hashable, parts: Sequence[Part]
) -> dict[Part, Matrix]:
    """Return the parts of a square block as matrices, by products with COLUMNS_AT_ONCE unit vectors at a time.

    Column j is A e_j; matrices are float64 in column-major order, in which eigh of LAPACK
    overwrites them without a copy.
    """
    dim = column.dim
    matrices = {part: np.empty((dim, dim), order="F") for part in parts}
    done = 0
    while done < dim:
        count = min(COLUMNS_AT_ONCE, dim - done)
        units = torch.zeros(dim, count, dtype=column.dtype)
        units[range(done, done + count), range(count)] = 1.0
        for chunk in chunks(units, column, COLUMNS_AT_ONCE):
            products = column.split_matmat(chunk, parts=parts)
            here = slice(done, done + chunk.shape[1])
            for part, matrix in matrices.items():
                matrix[:, here] = products[row, part].cpu().double().numpy()
            done += chunk.shape[1]
    return matrices


def _symmetrise(matrix: Matrix, square: Square) -> None:
    """Replace A by (A + A^T) / 2, in place and band by band; check the asymmetry ||A - A^T||.

    (A + A^T) / 2 is the symmetric matrix nearest to A in the Frobenius norm. A band of
    _ROWS rows is compared with the columns of the same numbers, from the diagonal on;
    squares of the bands are added. Pairs within a diagonal square are counted twice, others
    once, so that the sum lies between |A - A^T|_F / sqrt(2) and |A - A^T|_F.
    """
    size = float(np.linalg.norm(matrix))
    asymmetry = 0.0
    for low in range(0, len(matrix), _ROWS):
        band = slice(low, low + _ROWS)
        below = matrix[low:, band]
        right = matrix[band, low:].T
        asymmetry = float(np.hypot(asymmetry, np.linalg.norm(below - right)))
        mean = (below + right) / 2
        matrix[low:, band] = mean
        matrix[band, low:] = mean.T
    square.check_symmetric(asymmetry, size)


def _of_sum(outer: Matrix, functional: Matrix) -> Matrix:
    """Return the eigenvalues of the sum, which is formed in the lower triangle of `outer`; `outer` is restored.

    Both matrices are symmetric, so that a triangle and the diagonal are all of one: the
    upper triangle of `outer` keeps what its lower one was.
    """
    diagonal = outer.diagonal().copy()
    for column in range(len(outer)):
        outer[column:, column] += functional[column:, column]
    values = _eigenvalues(outer)
    for column in range(len(outer)):
        outer[column + 1 :, column] = outer[column, column + 1 :]
    np.fill_diagonal(outer, diagonal)
    return values


def _eigenvalues(matrix: Matrix) -> Matrix:
    """Return the eigenvalues; the lower triangle and the diagonal are overwritten."""
    if not matrix.any():
        return np.zeros(len(matrix))
    values: Matrix = scipy.linalg.eigh(
        matrix,
        lower=True,
        eigvals_only=True,
        overwrite_a=True,
        check_finite=False,
        driver="ev",
    )
    return values


BASIS_BYTES = 2**30  # limit for the vectors of runs that advance together


@dataclass(frozen=True)
class Quadrature:
    """Nodes and weights for every probe, and those of the first half of the same runs.

    The weights of a probe sum to 1. A run that breaks down early is exact and has fewer
    nodes; the remaining nodes and weights are 0.

    Attributes
    ----------
    nodes, weights : tensors (num_probes, steps)
        Gauss quadrature after all steps.
    half_nodes, half_weights : tensors (num_probes, steps // 2)
        The same after half of the steps: what differs between the two shows how far the
        quadrature has converged.
    """

    nodes: Float[Tensor, "num_probes steps"]
    weights: Float[Tensor, "num_probes steps"]
    half_nodes: Float[Tensor, "num_probes half"]
    half_weights: Float[Tensor, "num_probes half"]


def quadrature(
    operator: SymmetricOperator, starts: Shaped[Tensor, "n num_probes"], steps: int
) -> Quadrature:
    r"""Return the Gauss quadrature of `steps` Lanczos steps from every column v of `starts`.

    With the eigenpairs (lambda_i, q_i) of A, v has the spectral measure on the left, and
    Lanczos' recurrence gives the quadrature on the right,

    .. math:: \frac{v^\top f(A) v}{|v|^2}
              = \sum_i \frac{(q_i^\top v)^2}{|v|^2} f(\lambda_i)
              \approx \sum_j w_j f(\theta_j),

    which is exact for polynomials f of degree up to 2 steps - 1: with v = |v| q_1 and T =
    Q^T A Q, A^a q_1 = Q T^a e_1 for a < steps, since these vectors lie in the Krylov space,
    so that q_1^T A^a A A^b q_1 = e_1^T T^(a + 1 + b) e_1 for a, b < steps. The nodes are the Ritz values;
    the weights are the squared first entries of the eigenvectors of T. For starts with
    E[v v^T] = I the mean over v is the density of eigenvalues, (1 / n) sum_i f(lambda_i).

    Starts may be of any type (signs in int8). As many runs advance together as have vectors
    of at most BASIS_BYTES.

    Raises
    ------
    NotFinite
        For products that are not finite.
    ArithmeticError
        For an operator that is not symmetric.

    References
    ----------
    G. H. Golub and J. H. Welsch (1969), Calculation of Gauss quadrature rules, Mathematics
    of Computation 23. B. Ghorbani, S. Krishnan and Y. Xiao (2019), An investigation into
    neural net optimization via Hessian eigenvalue density, ICML.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator, Square, quadrature
    >>> from hessfig.terms import Part
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> square = Square(ColumnOperator(problem, 0, "weight", ["weight"]), "weight", Part.H)
    >>> start = torch.eye(6, 1).double()
    >>> rule = quadrature(square, start, 3)
    >>> mean = (rule.nodes * rule.weights).sum()
    >>> bool((mean - square.matmat(start)[0, 0]).abs() < 1e-12)
    True
    """
    of_run = operator.like.itemsize * min(steps, operator.dim) * operator.dim
    at_once = max(1, BASIS_BYTES // of_run)
    operator = InUnits(operator)
    full = []
    half = []
    for group in starts.split(at_once, dim=1):
        runs = [LanczosRun(start, steps) for start in group.to(operator.like).T]
        while advance(runs, operator):
            pass
        for run in runs:
            full.append(_rule(run, steps, steps))
            half.append(_rule(run, steps // 2, steps // 2))
    nodes, weights = torch.stack(full, dim=1)
    half_nodes, half_weights = torch.stack(half, dim=1)
    unit = operator.unit or 1.0
    return Quadrature(unit * nodes, weights, unit * half_nodes, half_weights)


def _rule(run: LanczosRun, steps: int, size: int) -> Float[Tensor, "2 size"]:
    """Return nodes and weights of the first `steps` steps of a run, padded with zeros.

    With T = S diag(theta) S^T, the start is q_1 = Q e_1 and f(A) is seen as f(T):
    q_1 . f(A) q_1 = sum_i S_1i^2 f(theta_i).
    """
    length = min(run.length, steps)
    values, coefficients = torch.linalg.eigh(run.projection[:length, :length])
    rule = torch.zeros(2, size, dtype=torch.float64, device="cpu")
    rule[0, :length] = values
    rule[1, :length] = coefficients[0].square()
    return rule


_RANK = 1e-12  # singular values below this share of the largest count as zero


def xtrace(
    operator: SymmetricOperator, num_products: int, *, generator: Generator
) -> tuple[float, float]:
    r"""Return an estimate of the trace and its standard error, from `num_products` products (even, less than 2 dim).

    With m = `num_products` / 2 test vectors w_i, and the orthonormal basis Q_i of the images
    A w_j of all others, the estimate is the mean over i of

    .. math:: t_i = \mathrm{tr}(Q_i^\top A Q_i) + \frac{n - r_i}{|P_i w_i|^2} \,
              w_i^\top P_i A P_i w_i, \qquad P_i = I - Q_i Q_i^\top,

    with the rank r_i of Q_i. Each t_i is unbiased: Q_i does not depend on w_i, and for a
    fixed Q_i the normalised P_i w_i is uniform on the unit sphere of a space of n - r_i
    dimensions, so that the second term has the mean tr(P_i A P_i), and tr(Q_i^T A Q_i) +
    tr(P_i A P_i) = tr A. (It is the variant with rescaled vectors, section 2.3 of the paper;
    test vectors are uniform on the sphere of radius sqrt(n).) m products give the images,
    and m more A times an orthonormal basis of all of them, in which each t_i costs
    O(n m^2) operations. The t_i are exchangeable, not independent: std / sqrt(m) estimates the
    error. With a single test vector it is nan.

    References
    ----------
    E. N. Epperly, J. A. Tropp and R. J. Webber (2024), XTrace: making the most of every
    sample in stochastic trace estimation, SIAM Journal on Matrix Analysis and
    Applications 45.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator, Square, dense_matrix, xtrace
    >>> from hessfig.terms import Part
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> square = Square(ColumnOperator(problem, 0, "weight", ["weight"]), "weight", Part.H)
    >>> trace, error = xtrace(square, 8, generator=torch.Generator().manual_seed(0))
    >>> bool(abs(trace - dense_matrix(square).trace()) <= 5 * error + 1e-9)
    True
    """
    count = num_products // 2
    size = (count, operator.dim)
    drawn = torch.randn(size, dtype=torch.float64, generator=generator, device="cpu")
    drawn = drawn.to(operator.like.device).T
    tests = drawn * (operator.dim**0.5 / drawn.norm(dim=0))
    image = operator.matmat(tests)
    basis, sizes, _ = torch.linalg.svd(image, full_matrices=False)
    basis = _of_full_rank(basis, sizes)
    inner = image.new_zeros(0, 0)
    if basis.shape[1]:
        inner = basis.T @ operator.matmat(basis)
    estimates = []
    for place in range(count):
        estimates.append(_left_out(place, tests, image, basis, inner))
    samples = torch.stack(estimates)
    return float(samples.mean()), standard_error(samples)


def _of_full_rank(
    vectors: Float[Tensor, "n k"], sizes: Float[Tensor, " k"]
) -> Float[Tensor, "n r"]:
    """Return the singular vectors whose singular values, descending, are above _RANK times the largest.

    Directions below are rounding of the images: an operator of low rank has fewer
    independent images than test vectors. Empty if all singular values are 0.
    """
    if not sizes.numel() or not float(sizes[0]) > 0.0:
        return vectors[:, :0]
    return vectors[:, sizes > _RANK * sizes[0]]


def _left_out(
    i: int, tests: Tensor, image: Tensor, basis: Tensor, inner: Tensor
) -> Float[Tensor, ""]:
    r"""Return tr(Q'AQ) + w'(1 - QQ')A(1 - QQ')w with test vector w = i and Q spanning the images of the others.

    Everything is computed inside of B, the basis of all images: Q = B W, B'AB = `inner`
    and Q'w = W'(B'w). With u = W W'(B'w), the part of B'w inside of Q, QQ'w = B u and

    .. math:: w'(1 - QQ')A(1 - QQ')w = w'Aw - 2 u'(B'Aw) + u'(B'AB)u, \qquad
              |(1 - QQ')w|^2 = |w|^2 - |u|^2,

    which is rescaled from |(1 - QQ')w|^2 to the dimension of the complement.
    """
    w = tests[:, i]
    image_of_w = image[:, i]
    others = torch.cat([image[:, :i], image[:, i + 1 :]], dim=1)
    left, sizes, _ = torch.linalg.svd(basis.T @ others, full_matrices=False)
    within = _of_full_rank(left, sizes)
    inside = within @ (within.T @ (basis.T @ w))
    outside = w.square().sum() - inside.square().sum()
    left_over = (
        w @ image_of_w - 2 * inside @ (basis.T @ image_of_w) + inside @ inner @ inside
    )
    dim = len(tests)
    rank = within.shape[1]
    scale = torch.zeros_like(outside)
    if rank < dim:
        scale = (dim - rank) / outside
    return (within.T @ inner @ within).trace() + scale * left_over
