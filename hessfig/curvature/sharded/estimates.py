"""Norms, traces, outer eigenvalues and densities of a sharded Hessian, from products alone."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hessfig.curvature.sharded.sharded_hessian import ShardedHessian


class Estimate(NamedTuple):
    """A number and its error: the standard error over probes, or a residual, and that of the differences."""

    value: float
    error: float


class Krylov(NamedTuple):
    """The orthonormal basis of Lanczos' recurrence on this rank, its tridiagonal matrix, and the last coefficient.

    A Q = Q T + beta q e_j^T with the basis Q (n, j), T = Q^T A Q (`matrix`) and beta
    (`rest`); every rank holds its shards of the rows of Q^T, and all of T.
    """

    basis: list[Tensor]
    matrix: Tensor
    rest: float


def by_probes(
    hessian: ShardedHessian, num_probes: int, seed: int, names: tuple[str, ...]
) -> dict[str, Estimate]:
    r"""Return the Frobenius norm and the trace, from signs v_k with E[v v^T] = I.

    .. math:: \|A\|_F^2 = E |A v|^2 \approx \frac{1}{K} \sum_k |A v_k|^2, \qquad
              \mathrm{tr} A = E[v^\top A v] \approx \frac{1}{K} \sum_k v_k^\top A v_k

    The standard error of the norm N is that of its square over 2 N, by dN^2 = 2 N dN. The
    errors e_k of the products by differences come on top, as root mean squares:
    (mean |e_k|^2)^(1/2) for the norm, by the triangle inequality, and
    (mean (v_k . e_k)^2)^(1/2) for the trace. One product for each probe; both estimates share
    them, and one product is held at a time.

    Parameters
    ----------
    hessian : ShardedHessian
    num_probes : int
        K.
    seed, names
        Of the streams of the probes, which are the same for any number of ranks.

    Returns
    -------
    dict
        The Estimate of "frobenius" and of "trace".
    """
    squares = []
    traces = []
    rough = []
    rough_traces = []
    for place in range(num_probes):
        probe = hessian.shards.probe(seed, *names, place)
        product, deviation = hessian.product(probe)
        squares.append(hessian.shards.dot(product, product))
        rough.append(hessian.shards.dot(deviation, deviation))
        traces.append(hessian.shards.dot(probe, product))
        rough_traces.append(hessian.shards.dot(probe, deviation) ** 2)
        del probe, product, deviation  # before the memory of the next product
    norm = math.sqrt(_mean(squares))
    spread = standard_error(squares) / (2 * norm) if norm else 0.0
    return {
        "frobenius": Estimate(norm, spread + math.sqrt(_mean(rough))),
        "trace": Estimate(
            _mean(traces), standard_error(traces) + math.sqrt(_mean(rough_traces))
        ),
    }


def krylov(
    hessian: ShardedHessian,
    start: Tensor,
    steps: int,
    is_enough: Callable[[Tensor, float], bool] = lambda *_: False,
) -> Krylov:
    r"""Return Lanczos' basis and T with A Q = Q T + \beta q e^T; every vector is orthogonalised against all, twice.

    The overlaps of both passes are added into the last column of T, which is made
    symmetric: in exact arithmetic only the last two of them are not zero. The recurrence
    ends after `steps` vectors, at an invariant subspace (beta <= 1e-14 |T|), or when
    `is_enough` says so; it is given T and beta after each step. A step takes one product,
    and one sum over ranks for each pass and norm.

    Parameters
    ----------
    hessian : ShardedHessian
    start : tensor
        This rank's shards of the first vector, of any length.
    steps : int
        The most vectors of the basis.
    is_enough : callable
        Whether T and beta show what is sought.
    """
    shards = hessian.shards
    most = min(steps, shards.dim)
    # One block of memory for all vectors of the basis: allocated one by one, they would
    # lie between the temporary tensors of the products, whose freed memory the
    # allocator of the CPU could then neither join nor return.
    rows = start.new_empty(most, len(start)).unbind()
    basis = [rows[0].copy_(_unit(hessian, start))]
    matrix = torch.zeros(0, 0, dtype=torch.float64)
    while True:
        size = len(basis)
        rest = hessian.product(basis[-1]).product
        column = torch.zeros(size, dtype=torch.float64)
        for _ in range(2):
            overlaps = shards.dots(basis, rest)
            column += overlaps
            for one, overlap in zip(basis, overlaps.tolist(), strict=True):
                rest -= overlap * one
        grown = torch.zeros(size, size, dtype=torch.float64)
        grown[:-1, :-1] = matrix
        grown[-1], grown[:, -1] = column, column
        matrix = grown
        beta = math.sqrt(shards.dot(rest, rest))
        scale = float(torch.linalg.matrix_norm(matrix, 2))
        is_whole = size == most or beta <= 1e-14 * scale
        if is_whole or is_enough(matrix, beta):
            return Krylov(basis, matrix, beta)
        basis.append(torch.div(rest, beta, out=rows[size]))


def extremes(
    hessian: ShardedHessian,
    k: int,
    seed: int,
    names: tuple[str, ...],
    *,
    steps: int,
    tolerance: float,
) -> dict[str, list[Estimate]]:
    r"""Return the k largest and the k smallest eigenvalues; the error is the residual |A x - value x| of a product.

    For a Ritz pair T y = theta y, the residual of x = Q y follows from the recurrence,

    .. math:: |A x - \theta x| = |\beta q \, e_j^\top y| = \beta |y_j|.

    The recurrence ends when that of the 2 k outermost pairs is at most half of `tolerance`,
    relative to the largest eigenvalue in size; the other half is left to the errors of
    differences. Each reported error is a bound: some eigenvalue lies within the residual of
    the value, a Rayleigh quotient by a separate product. A single start is taken: an
    eigenvector that it is orthogonal to is not seen.
    """

    def is_enough(matrix: Tensor, beta: float) -> bool:
        values, vectors = torch.linalg.eigh(matrix)
        if len(values) <= 2 * k:
            return False
        outer = torch.cat([vectors[-1, :k], vectors[-1, -k:]])
        residual = beta * float(outer.abs().max())
        return residual <= tolerance * _size(values) / 2

    found = krylov(
        hessian,
        hessian.shards.probe(seed, *names, "start", gaussian=True),
        steps,
        is_enough,
    )
    values, vectors = torch.linalg.eigh(found.matrix)
    ascending = range(len(values))
    places_of = {
        "largest_eigenvalue": ascending[::-1][:k],
        "smallest_eigenvalue": ascending[:k],
    }
    return {
        end: [_pair(hessian, found, vectors[:, place]) for place in places]
        for end, places in places_of.items()
    }


def density(
    hessian: ShardedHessian,
    num_probes: int,
    seed: int,
    names: tuple[str, ...],
    *,
    steps: int,
    gaussian: bool,
) -> tuple[Tensor, Tensor]:
    r"""Return nodes and weights (num_probes, steps) of stochastic Lanczos quadrature; unused weights are 0.

    For each probe v, with the eigenpairs (theta_i, y_i) of T,

    .. math:: \frac{v^\top f(A) v}{|v|^2} \approx \sum_i (e_1^\top y_i)^2 f(\theta_i),

    whose mean over v is the mean of f over all eigenvalues (spectral.densities.quadrature
    has the proof).

    References
    ----------
    B. Ghorbani, S. Krishnan and Y. Xiao (2019), An investigation into neural net optimization
    via Hessian eigenvalue density, ICML.
    """
    nodes, weights = torch.zeros(
        2, num_probes, min(steps, hessian.shards.dim), dtype=torch.float64
    )
    for place in range(num_probes):
        start = hessian.shards.probe(seed, *names, place, gaussian=gaussian)
        values, vectors = torch.linalg.eigh(krylov(hessian, start, steps).matrix)
        nodes[place, : len(values)] = values
        weights[place, : len(values)] = vectors[0] ** 2
    return nodes, weights


def standard_error(numbers: list[float]) -> float:
    """Return the standard error of a mean, std / sqrt(count) with the divisor count - 1; nan for one number."""
    if len(numbers) < 2:
        return math.nan
    return float(torch.tensor(numbers, dtype=torch.float64).std()) / math.sqrt(
        len(numbers)
    )


def _pair(hessian: ShardedHessian, found: Krylov, coefficients: Tensor) -> Estimate:
    """Return the Rayleigh quotient of Q y, y the `coefficients`, and its residual, by a product.

    The error is |A x - theta x| + |e|, e the error of the product: the residual of the exact
    product is at most that.
    """
    vector = torch.zeros_like(found.basis[0])
    for coefficient, row in zip(coefficients.tolist(), found.basis, strict=True):
        vector += coefficient * row
    vector = _unit(hessian, vector)
    product, deviation = hessian.product(vector)
    value = hessian.shards.dot(vector, product)
    rest = product - value * vector
    residual, rough = (
        math.sqrt(hessian.shards.dot(one, one)) for one in (rest, deviation)
    )
    return Estimate(value, residual + rough)


def _unit(hessian: ShardedHessian, vector: Tensor) -> Tensor:
    """Return the vector over its length on all ranks."""
    return vector / math.sqrt(hessian.shards.dot(vector, vector))


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _size(values: Tensor) -> float:
    return float(values.abs().max())
