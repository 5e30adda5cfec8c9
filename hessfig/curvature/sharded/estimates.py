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
    """The orthonormal basis of Lanczos' recurrence on this rank, its tridiagonal matrix, and the last coefficient."""

    basis: list[Tensor]
    matrix: Tensor
    rest: float


def by_probes(
    hessian: ShardedHessian, num_probes: int, seed: int, names: tuple[str, ...]
) -> dict[str, Estimate]:
    r"""Return the Frobenius norm and the trace, from signs v_k with E[v v^T] = I.

    .. math:: |A|_F^2 \approx \frac{1}{K} \sum_k |A v_k|^2, \qquad \mathrm{tr} A \approx \frac{1}{K} \sum_k v_k . A v_k
    """
    squares, traces, rough, rough_traces = [], [], [], []
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

    `is_enough` is given T and beta after each step.
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
        matrix, beta = grown, math.sqrt(shards.dot(rest, rest))
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
    """Return the k largest and the k smallest eigenvalues; the error is the residual |A x - value x| of a product.

    The recurrence ends when the residuals beta |last entry of y| of the eigenvectors y
    of the tridiagonal matrix T are at most half of `tolerance`, relative to the largest
    eigenvalue in size; the other half is left to the errors of differences.
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
    """Return nodes and weights (num_probes, steps) of stochastic Lanczos quadrature; unused weights are 0."""
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
    """Return the standard error of a mean; nan for one number."""
    if len(numbers) < 2:
        return math.nan
    return float(torch.tensor(numbers, dtype=torch.float64).std()) / math.sqrt(
        len(numbers)
    )


def _pair(hessian: ShardedHessian, found: Krylov, coefficients: Tensor) -> Estimate:
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
    return vector / math.sqrt(hessian.shards.dot(vector, vector))


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _size(values: Tensor) -> float:
    return float(values.abs().max())
