"""Hessians of nested subsets of a batch, times the same test vectors: one pass over the samples for all k."""

from collections.abc import Hashable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessfig.config.enums import Method
from hessfig.curvature.column import PROBES_AT_ONCE, completed, multiplied, summands
from hessfig.curvature.problem import Objective, rademacher, standard_error
from hessfig.curvature.spectral.densities import eigenvalues
from hessfig.measurements.block_norms import COLUMNS_AT_ONCE
from hessfig.measurements.quantity import (
    Estimate,
    Measured,
    Request,
    Row,
    block_row,
    columns,
)
from hessfig.models.routes import Engines
from hessfig.studies.landscape.losses_of_samples import Places, places, samples_of
from hessfig.terms import Block, Part

AT_ONCE = 512  # largest number of samples of a problem
Key = tuple[Hashable, Part]


def hessian_distance(objective: Objective, request: Request) -> Measured:
    """Return rows along k, up to all N samples, of every block and part.

    `hessian_distance` = ||H_k - H_N||_F / ||H_N||_F, H_k of the first k samples;
    `subset_norm` = ||H_k||_F. `hessian_distance_null` is the root mean square that N
    independent samples give, sqrt(S^2 (1/k - 1/N)) /
    ||H_N||_F, S^2 being the spread of single samples' Hessians found from the distances of the disjoint pieces
    between neighbouring k. With estimator=dense all are exact, and diagonal blocks have
    `subset_largest_eigenvalue`, `subset_smallest_eigenvalue` and
    `subset_condition_number`; otherwise they are estimates from the same test vectors
    at every k, with standard errors.
    """
    settings = request.at.config.landscape
    samples = samples_of(objective, request)
    objective, number = samples.problem, samples.count
    at = places(settings.first, number, settings.points)
    rows: list[Row] = []
    for layer, col, blocks in columns(request.blocks):
        sums = _sums(objective, request, (layer, col, blocks), at)
        for block in blocks:
            for part in request.parts:
                rows += _rows(
                    request, (block, part), at, [one[block, part] for one in sums]
                )
    return Measured(rows)


def is_dense(request: Request) -> bool:
    """Whether the test vectors are the unit vectors, so that every number is exact."""
    return request.estimator.method == Method.dense


def _sums(
    objective: Objective,
    request: Request,
    place: tuple[int, str, list[Block]],
    at: Places,
) -> list[dict[Key, Tensor]]:
    """Return k H_k V at every place k."""
    layer, col, blocks = place
    vectors: Tensor | None = None
    total: dict[Key, Tensor] = {}
    sums = []
    start = 0
    for k in map(int, at):
        for piece, size in _pieces(objective, start, k):
            column = Engines(piece, request.model, request.estimator.products).column(
                layer, col, blocks
            )
            if vectors is None:
                vectors = _vectors(request, layer, col, column.dim)
            at_once = COLUMNS_AT_ONCE if is_dense(request) else PROBES_AT_ONCE
            products = multiplied(column, vectors, summands(request.parts), at_once)
            whole = {key: product.double().cpu() for key, product in products.items()}
            for key, product in completed(whole, request.parts).items():
                total[key] = total.get(key, 0.0) + size * product
        sums.append(dict(total))
        start = k
    return sums


def _pieces(
    objective: Objective, start: int, stop: int
) -> Iterator[tuple[Objective, int]]:
    """Yield the problem on successive pieces of at most AT_ONCE samples, with their sizes."""
    for first in range(start, stop, AT_ONCE):
        end = min(first + AT_ONCE, stop)
        yield (
            replace(objective, batch=objective.batch.samples(slice(first, end))),
            end - first,
        )


def _vectors(request: Request, layer: int, col: str, dim: int) -> Tensor:
    if is_dense(request):
        return torch.eye(dim, dtype=torch.float64)
    number = request.estimator.num_probes
    return rademacher(
        dim, number, generator=request.stream(layer, col), dtype=torch.float64
    )


def _rows(
    request: Request, of: tuple[Block, Part], at: Places, sums: list[Tensor]
) -> list[Row]:
    whole = sums[-1] / int(at[-1])
    last = int(at[-1])
    spread = _spread(sums, at, whole, request)
    rows = []
    for k, total in zip(map(int, at), sums, strict=True):
        here = total / k
        numbers = {
            "hessian_distance": _ratio(here - whole, whole, request),
            "subset_norm": _norm(here, request),
            "hessian_distance_null": _times(spread, max(1 / k - 1 / last, 0.0) ** 0.5),
            **_eigenvalues(here, of[0], request),
        }
        for name, found in numbers.items():
            rows.append(block_row(name, request, *of, found, index=k))
    return rows


def _times(estimate: Estimate, factor: float) -> Estimate:
    return replace(
        estimate, value=factor * estimate.value, error=factor * estimate.error
    )


def _spread(
    sums: list[Tensor], at: Places, whole: Tensor, request: Request
) -> Estimate:
    """Return S / ||H_N||_F: each disjoint piece of m samples has E ||H_piece - H_N||^2 = S^2 (1/m - 1/N).

    Its error is that of the ratio of two means over the test vectors, to first order.
    """
    starts = [0, *map(int, at[:-1])]
    before = [torch.zeros_like(whole), *sums[:-1]]
    spreads = []
    for start, stop, low, high in zip(starts, map(int, at), before, sums, strict=True):
        share = 1 / (stop - start) - 1 / int(at[-1])
        if share > 0:
            spreads.append(((high - low) / (stop - start) - whole) / share**0.5)
    stacked = torch.zeros_like(whole)
    if spreads:
        stacked = torch.cat(spreads) / len(spreads) ** 0.5
    return _ratio(stacked, whole, request)


def _norm(products: Tensor, request: Request) -> Estimate:
    """Return ||A||_F from A V."""
    squares = products.square().sum(dim=0)
    if is_dense(request):
        return _estimate(float(squares.sum()) ** 0.5, 0.0, request)
    value = float(squares.mean()) ** 0.5
    return _estimate(
        value, standard_error(squares) / (2 * value) if value else 0.0, request
    )


def _ratio(difference: Tensor, whole: Tensor, request: Request) -> Estimate:
    """Return ||D||_F / ||A||_F from D V and A V, with its standard error to first order; 0 for a zero block."""
    above, below = _norm(difference, request).value, _norm(whole, request).value
    value = above / below if below else 0.0
    if is_dense(request) or not value:
        return _estimate(value, 0.0, request)
    relative = (
        difference.square().sum(dim=0) / above**2 - whole.square().sum(dim=0) / below**2
    )
    return _estimate(value, value * standard_error(relative) / 2, request)


def _eigenvalues(matrix: Tensor, block: Block, request: Request) -> dict[str, Estimate]:
    if not (is_dense(request) and block.is_diagonal and bool(matrix.any())):
        return {}
    values = eigenvalues((matrix + matrix.T) / 2).numpy()
    numbers = {
        "subset_largest_eigenvalue": float(values[-1]),
        "subset_smallest_eigenvalue": float(values[0]),
        "subset_condition_number": _condition_above(
            values, request.at.config.spectrum.cut
        ),
    }
    return {name: _estimate(value, 0.0, request) for name, value in numbers.items()}


def _estimate(value: float, error: float, request: Request) -> Estimate:
    dense = is_dense(request)
    probes = 0 if dense else request.estimator.num_probes
    return Estimate(value, error, probes, "dense" if dense else Method.hutchinson.value)


def _condition_above(eigenvalues: NDArray[np.float64], cut: float) -> float:
    """Return the largest over the smallest eigenvalue in size above `cut` times the largest; nan for a zero matrix.

    Unlike condition_number this does not use a quantile, because most eigenvalues for a
    few samples are zero.
    """
    sizes = np.abs(eigenvalues)
    if sizes.max() == 0.0:
        return float("nan")
    return float(sizes.max() / sizes[sizes > cut * sizes.max()].min())
