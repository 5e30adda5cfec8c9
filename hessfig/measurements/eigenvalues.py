"""Eigenvalues of diagonal blocks: full spectra, outermost eigenvalues, and densities with errors over probes.

Three ways to the eigenvalues lambda_1 <= ... <= lambda_n of a block A: all of them from
the dense block (n products and about 4/3 n^3 operations), the outermost ones by Lanczos
(tens of products), and their density by Lanczos quadrature from random vectors.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Generator, Tensor

from hessfig.config.enums import Probes
from hessfig.config.science import SpectrumConfig
from hessfig.curvature.column import Column
from hessfig.curvature.differences import differences_in
from hessfig.curvature.problem import Objective, rademacher
from hessfig.curvature.rounding import unit_of
from hessfig.curvature.spectral.densities import dense_eigenvalues, quadrature
from hessfig.curvature.spectral.extremes import End, Extremes, extremes
from hessfig.curvature.spectral.lanczos import NotFinite, Square, SymmetricOperator
from hessfig.measurements.quantity import (
    Arrays,
    Estimate,
    Measured,
    Request,
    Row,
    block_row,
    columns,
    exact,
)
from hessfig.models.routes import Engines
from hessfig.record import Status
from hessfig.terms import Block, Part

PERCENT = (5, 25, 50, 75, 95)  # the quantiles of a spectrum that a table holds
SMALL = 5  # percent: the quantile that a condition number divides by
Array = NDArray[np.float64]
_MOST_KEPT = 2**20  # entries of eigenvectors that are stored
_ROUNDING = 1e-9  # of sums of weights and shares, next to a level or a whole number
_DENSE, _LANCZOS = "dense", "lanczos"  # the column `estimator` of these numbers


class RowName(NamedTuple):
    """The name of a row: its quantity, and which of several values it holds.

    `number` counts eigenvalues from the outside (1, 2, ...), or is the percentage of a
    quantile; None where a quantity has a single value.
    """

    quantity: str
    number: int | None = None


Numbers = dict[RowName, Estimate]


def spectrum(objective: Objective, request: Request) -> Measured:
    """Return the rows of every part of every block, and its eigenvalues as arrays.

    The eigenvalues lambda_1 <= ... <= lambda_n of the dense block are all there are, so
    every number is exact up to rounding. A block that is not finite has rows without a
    number.
    """
    spectra = Spectra(request)
    settings = request.spectrum
    for block, column in square_columns(objective, request):
        by_part = dense_eigenvalues(column, block, request.parts)
        for part, eigenvalues in by_part.items():
            if eigenvalues is None:
                names = _spectrum_numbers(np.zeros(settings.k), settings)
                spectra.add_nothing(block, part, names, by=_DENSE)
                continue
            spectra.add(block, part, _spectrum_numbers(eigenvalues, settings))
            label = {"cut": settings.cut}
            arrays = {"eigenvalues": eigenvalues}
            spectra.keep(block, part, len(eigenvalues), label, arrays)
    return Measured(spectra.rows, spectra.arrays)


def outermost(objective: Objective, request: Request, end: End) -> Measured:
    r"""Return `k` rows for every part of every block; values, residuals and vectors as arrays.

    The error of an eigenvalue is its residual |A v - lambda v| for the unit vector v that was
    found: an eigenvalue of A lies within it, because with the orthonormal eigenvectors q_i

    .. math:: |A v - \lambda v|^2 = \sum_i (\lambda_i - \lambda)^2 (q_i \cdot v)^2
              \ge \min_i (\lambda_i - \lambda)^2.

    Which eigenvalue that is, it does not say: that it is an outermost one is what two
    independent starts check. Rows that have not reached the tolerance of the settings are
    `not_converged`.

    Parameters
    ----------
    objective : Objective
    request : Request
        Its spectrum has k, tolerance, steps and starts; `at.warm` may hold vectors of an
        earlier state, and `Measured.warm` holds those found here.
    end : End
        Largest or smallest, by sign and not by size.
    """
    spectra = Spectra(request)
    warm: dict[str, Tensor] = {}
    names = [
        RowName(f"{end}_eigenvalue", index) for index in indices(request.spectrum.k)
    ]
    engines = _engines(objective, request)
    for block, column in _squares(engines, request):
        narrow = engines.low_precision(column, block.layer, block.col, [block])
        for part in request.parts:
            operator = Square(column, block, part)
            low_precision = None
            if narrow is not None:
                low_precision = Square(narrow, block, part)
            place = f"{end} of {part} of {block}"
            start = request.at.warm.get(place)
            generator = request.stream(block.layer, block.col)
            try:
                found = _extremes(
                    operator, low_precision, end, request.spectrum, generator, start
                )
            except NotFinite:
                spectra.add_nothing(block, part, names, by=_LANCZOS)
                continue
            numbers = _extreme_numbers(names, found)
            spectra.add(block, part, numbers, converged=found.converged)
            label = {
                "products": found.products,
                "rough_products": found.rough_products,
                "scale": found.scale,
                "converged": found.converged,
            }
            spectra.keep(block, part, operator.dim, label, _extreme_arrays(found))
            warm[place] = found.vectors.sum(dim=1)
    return Measured(spectra.rows, spectra.arrays, warm)


largest_eigenvalue = partial(outermost, end=End.largest)
smallest_eigenvalue = partial(outermost, end=End.smallest)


def density(objective: Objective, request: Request) -> Measured:
    r"""Return the rows of every part of every block, and the nodes and weights of its probes as arrays.

    Stochastic Lanczos quadrature (Ghorbani et al., 2019): m steps from a probe v give a
    tridiagonal matrix T with eigenvalues theta_i, the nodes, and unit eigenvectors y_i. With
    the weights w_i = (first entry of y_i)^2,

    .. math:: \sum_i w_i f(\theta_i) = \frac{v^T f(A) v}{|v|^2}

    for polynomials f of degree up to 2 m - 1 (a Gauss rule). Its mean over probes with E[v
    v^T] = I is tr f(A) / n, so that the nodes with their weights stand for the density of
    eigenvalues.
    """
    spectra = Spectra(request)
    settings = request.spectrum
    for block, column in square_columns(objective, request):
        for part in request.parts:
            operator = Square(column, block, part)
            generator = request.stream(block.layer, block.col)
            starts = _starts(operator.dim, settings, generator)
            try:
                rule = quadrature(operator, starts, settings.steps)
            except NotFinite:
                names = _density_numbers(np.zeros((1, 1)), np.ones((1, 1)))
                spectra.add_nothing(block, part, names, by=_LANCZOS)
                continue
            numbers = _density_numbers(rule.nodes.numpy(), rule.weights.numpy())
            spectra.add(block, part, numbers)
            label = {
                "products": operator.products,
                "num_probes": settings.num_probes,
                "steps": settings.steps,
            }
            arrays = {name: value.numpy() for name, value in vars(rule).items()}
            spectra.keep(block, part, operator.dim, label, arrays)
    return Measured(spectra.rows, spectra.arrays)


def share_negative(eigenvalues: Array, cut: float) -> float:
    r"""Return the share of eigenvalues below minus `cut` times the largest in size.

    .. math:: \frac{1}{n} \Big| \big\{ i : \lambda_i < -\text{cut} \cdot \max_j |\lambda_j| \big\} \Big|

    The cut keeps eigenvalues of zero, which rounding puts on either side, out of the count.

    Examples
    --------
    >>> import numpy as np
    >>> share_negative(np.array([-2.0, -1e-12, 0.0, 4.0]), cut=1e-10)
    0.25
    """
    return float(np.mean(eigenvalues < -cut * np.abs(eigenvalues).max()))


def effective_rank(eigenvalues: Array) -> float:
    r"""Return (tr |H|)^2 / ||H||_F^2: n for n equal sizes, 1 for a single one.

    .. math:: \frac{\big(\sum_i |\lambda_i|\big)^2}{\sum_i \lambda_i^2}

    Of a semi-definite matrix it is (tr H)^2 / ||H||_F^2; of a zero matrix 0. Between 1 and n
    by the Cauchy-Schwarz inequality. The eigenvalues are divided by the largest in size
    first, so that no square overflows.

    Examples
    --------
    >>> import numpy as np
    >>> effective_rank(np.array([3.0, 3.0, 3.0])), effective_rank(np.array([0.0, 5.0]))
    (3.0, 1.0)
    """
    size = np.abs(eigenvalues).max()
    if size == 0.0:
        return 0.0
    scaled = eigenvalues / size
    return float(np.abs(scaled).sum() ** 2 / np.square(scaled).sum())


def rank(eigenvalues: Array, cut: float) -> int:
    """Return how many eigenvalues are larger in size than `cut` times the largest: the numerical rank.

    Examples
    --------
    >>> import numpy as np
    >>> rank(np.array([-2.0, 1e-12, 4.0]), cut=1e-10)
    2
    """
    sizes = np.abs(eigenvalues)
    return int((sizes > cut * sizes.max()).sum())


def condition_number(eigenvalues: Array, cut: float) -> float:
    """Return the largest eigenvalue in size over the SMALL % quantile of the sizes; nan for a zero matrix.

    The smallest size itself would be rounding where a block is singular, as most are.
    Infinite where that quantile is no more than `cut` times the largest: more than SMALL % of
    the eigenvalues are zero.

    Examples
    --------
    >>> import numpy as np
    >>> condition_number(np.array([-2.0, 4.0, 8.0]), cut=1e-10)
    4.0
    """
    sizes = np.abs(eigenvalues)
    largest = sizes.max()
    if largest == 0.0:
        return float("nan")
    small = quantile_of_eigenvalues(sizes, SMALL)
    if small > cut * largest:
        return float(largest / small)
    return float("inf")


def quantile_of_eigenvalues(eigenvalues: Array, percent: int) -> float:
    """Return the smallest eigenvalue that at least `percent` of 100 are no larger than.

    It is the eigenvalue number ceil(percent n / 100) in ascending order, without
    interpolation.

    Examples
    --------
    >>> import numpy as np
    >>> quantile_of_eigenvalues(np.array([4.0, 1.0, 3.0, 2.0]), 50)
    2.0
    """
    count = int(np.ceil(percent / 100 * len(eigenvalues) - _ROUNDING))
    place = max(count - 1, 0)
    return float(np.sort(eigenvalues)[place])


def moment(nodes: Array, weights: Array, power: int) -> Estimate:
    """Return the mean over probes of sum_i w_i theta_i^power, an estimate of tr A^power / n.

    For a probe v with |v|^2 = n and E[v v^T] = I it is v.A^power v / n, whose mean is the
    trace over n. It is exact for that probe if power < 2 m, with m steps.

    Parameters
    ----------
    nodes, weights : (num_probes, m)
    power : int

    Examples
    --------
    >>> import numpy as np
    >>> mean = moment(np.array([[1.0, 3.0], [2.0, 4.0]]), np.full((2, 2), 0.5), 1)
    >>> mean.value, mean.error
    (2.5, 0.5)
    """
    return _mean((weights * nodes**power).sum(axis=1))


def sampled_quantile(nodes: Array, weights: Array, percent: int) -> Estimate:
    r"""Return the smallest node at which the mean cumulative reaches `percent` of 100.

    The cumulative of probe k at x is the sum of its weights w_i with theta_i <= x; F(x) is
    its mean over probes,

    .. math:: F(x) = \frac{1}{K} \sum_k \sum_{i : \theta_{ki} \le x} w_{ki}.

    With p the level and s the standard error of F at the quantile over probes, the error is

    .. math:: \tfrac{1}{2} \big[ F^{-1}(p + s) - F^{-1}(p - s) \big]

    (Woodruff, J. Am. Stat. Assoc. 47 (1952) 635): no density at the quantile is needed. The
    error of few steps is not in it.

    Examples
    --------
    Two probes of two nodes each, with weights 1/2:

    >>> import numpy as np
    >>> nodes = np.array([[1.0, 3.0], [2.0, 4.0]])
    >>> sampled_quantile(nodes, np.full((2, 2), 0.5), 50).value
    2.0
    """
    share = percent / 100
    count = len(nodes)
    order = np.argsort(nodes, axis=None, kind="stable")
    pooled = nodes.ravel()[order]
    cumulative = np.cumsum(weights.ravel()[order]) / count

    def at(level: float) -> float:
        inside = np.clip(level, _ROUNDING, 1 - _ROUNDING)
        place = np.searchsorted(cumulative, inside - _ROUNDING)
        return float(pooled[min(place, len(pooled) - 1)])

    value = at(share)
    error = float("nan")
    if count > 1:
        below = np.where(nodes <= value, weights, 0.0).sum(axis=1)
        spread = _mean(below).error
        error = (at(share + spread) - at(share - spread)) / 2
    return Estimate(value, error, count, _LANCZOS)


def _mean(values: Array) -> Estimate:
    """Return the mean over probes with its standard error, std / sqrt(K) with divisor K - 1; nan for a single probe.

    In units in which squares do not overflow.
    """
    count = len(values)
    error = float("nan")
    if count > 1:
        unit = unit_of(torch.from_numpy(values))
        error = float((values / unit).std(ddof=1)) * unit / count**0.5
    return Estimate(float(values.mean()), error, count, _LANCZOS)


class Spectra:
    """Rows and arrays of a cell, entry by entry: array `name_k` belongs to entry k of the list `entries`.

    An entry is one part of one block. `entries` is JSON: for each, layer, row_layer, row, col,
    part, dim (its number of columns), and what the quantity adds:

    - `spectrum`: cut; the array eigenvalues (dim,), ascending;
    - outermost eigenvalues: products, rough_products, scale, converged; the arrays values
      (k,), residuals (k,), and vectors (dim, k) up to _MOST_KEPT entries;
    - `density`: products, num_probes, steps; the arrays nodes and weights (num_probes, steps).
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.rows: list[Row] = []
        self._labels: list[dict[str, Any]] = []
        self._arrays: Arrays = {}

    def add(
        self, block: Block, part: Part, numbers: Numbers, *, converged: bool = True
    ) -> None:
        """Add rows; a number that is not finite is `nonfinite` whether it has converged or not."""
        for (quantity, index), estimate in numbers.items():
            row = block_row(quantity, self.request, block, part, estimate, index=index)
            if not converged and row["status"] == Status.ok:
                row["status"] = Status.not_converged.value
            self.rows.append(row)

    def add_nothing(
        self, block: Block, part: Part, names: Iterable[RowName], *, by: str
    ) -> None:
        """Add rows of these names without a number, for a block whose products are not finite."""
        nothing = Estimate(float("nan"), float("nan"), 0, by)
        self.add(block, part, dict.fromkeys(names, nothing))

    def keep(
        self, block: Block, part: Part, dim: int, label: dict[str, Any], arrays: Arrays
    ) -> None:
        """Add an entry with its arrays; `dim` is the number of its columns.

        `label` holds what else describes it, next to block, part and `dim`.
        """
        number = len(self._labels)
        self._labels.append(
            {
                "layer": block.layer,
                "row_layer": block.row_layer,
                "row": block.row,
                "col": block.col,
                "part": part.value,
                "dim": dim,
                **label,
            }
        )
        for name, value in arrays.items():
            self._arrays[f"{name}_{number}"] = value

    @property
    def arrays(self) -> Arrays:
        """The arrays of all entries, and the list `entries` of what they are (JSON)."""
        return {"entries": np.array(json.dumps(self._labels)), **self._arrays}


def square_columns(
    objective: Objective, request: Request
) -> Iterator[tuple[Block, Column]]:
    """Yield every requested diagonal block with its column."""
    yield from _squares(_engines(objective, request), request)


def _engines(objective: Objective, request: Request) -> Engines:
    return Engines(objective, request.model, request.estimator.products)


def _squares(engines: Engines, request: Request) -> Iterator[tuple[Block, Column]]:
    for layer, col, blocks in columns(request.blocks):
        for block in blocks:
            yield block, engines.column(layer, col, [block])


def indices(k: int) -> list[int | None]:
    """Return the index of each of the k outermost eigenvalues, from the outside.

    Examples
    --------
    >>> indices(3), indices(1)
    ([1, 2, 3], [None])
    """
    if k == 1:
        return [None]
    return [*range(1, k + 1)]


def extremes_of(
    operator: SymmetricOperator,
    end: End,
    settings: SpectrumConfig,
    generator: Generator,
    *,
    k: int = 1,
) -> Extremes:
    """Return the k outermost eigenvalues at one end, as precisely as the settings say. Raises NotFinite.

    By Lanczos (hessfig.curvature.spectral.extremes), to residuals of tolerance times the
    largest eigenvalue in size; each step is one product.

    Examples
    --------
    H = diag(1, 9), the Hessian of half the sum of squares of (w_1, 3 w_2):

    >>> import hessfig
    >>> from hessfig.curvature import ColumnOperator
    >>> inputs, targets = torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(2, 1)
    >>> problem = hessfig.Problem(torch.nn.Linear(2, 1, bias=False), inputs, targets, "mse")
    >>> column = ColumnOperator(problem.objective("float64"), 0, "weight", ["weight"])
    >>> block, start = Square(column, "weight", Part.H), Generator().manual_seed(0)
    >>> found = extremes_of(block, End.largest, SpectrumConfig(), start)
    >>> round(found.values.item(), 9), found.residuals.item() < 1e-9
    (9.0, True)
    """
    return extremes(
        operator,
        end,
        k=k,
        tolerance=settings.tolerance,
        steps=settings.steps,
        generator=generator,
    )


def outer_estimate(pairs: Extremes) -> Estimate:
    """Return the outermost eigenvalue with its residual; it is marked rough if it has not converged."""
    value = float(pairs.values[0])
    error = float(pairs.residuals[0])
    return Estimate(value, error, 0, _LANCZOS, is_unreliable=not pairs.converged)


def _extremes(
    operator: Square,
    low_precision: Square | None,
    end: End,
    settings: SpectrumConfig,
    generator: Generator,
    warm: Tensor | None,
) -> Extremes:
    """Return the outermost eigenvalues; those by differences to the accuracy that their products have.

    A tolerance below the error of the products would never be reached.
    """
    source = differences_in(operator.column)
    tolerance = settings.tolerance
    if source is not None:
        tolerance = max(tolerance, source.usual_error)
    found = extremes(
        operator,
        end,
        k=settings.k,
        tolerance=tolerance,
        steps=settings.steps,
        starts=settings.starts,
        generator=generator,
        warm=warm,
        low_precision=low_precision,
    )
    if source is None:
        return found
    return _with_errors(found, operator, settings.tolerance)


def _with_errors(found: Extremes, operator: Square, tolerance: float) -> Extremes:
    """Return eigenvalues by differences with residuals |A v - value v| that include the error of A v.

    |A v - lambda v| <= |p - lambda v| + |A v - p| for the product p that was computed, so the
    two are added, and convergence is decided by the sum. Eigenvalues of a part that vanishes
    have no scale: they are zero if the products state an error of zero.
    """
    image = operator.matmat(found.vectors)
    assert operator.last_errors is not None
    apart = (image - found.vectors * found.values.to(image)).double().norm(dim=0).cpu()
    residuals = apart + operator.last_errors
    is_small = bool((residuals <= tolerance * found.scale).all())
    source = differences_in(operator.column)
    if not found.scale and source is not None:
        is_small = not math.isnan(source.error_of_zero(operator.row, operator.part))
    return replace(found, residuals=residuals, converged=found.converged and is_small)


def _extreme_numbers(names: list[RowName], found: Extremes) -> Numbers:
    """Return eigenvalues with their residuals as errors, the outermost first."""
    values = found.values.tolist()
    residuals = found.residuals.tolist()
    numbers: Numbers = {}
    for name, value, residual in zip(names, values, residuals, strict=True):
        numbers[name] = Estimate(value, residual, 0, _LANCZOS)
    return numbers


def _extreme_arrays(found: Extremes) -> Arrays:
    """Return what is stored of eigenvalues: vectors only up to _MOST_KEPT entries."""
    arrays = {"values": found.values.numpy(), "residuals": found.residuals.numpy()}
    if found.vectors.numel() <= _MOST_KEPT:
        arrays["vectors"] = found.vectors.double().cpu().numpy()
    return arrays


def _starts(
    dim: int, settings: SpectrumConfig, generator: Generator
) -> Shaped[Tensor, "n num_probes"]:
    """Return the probes, (n, num_probes): the same for all parts of a block, and the first ones for any number.

    Rademacher signs have |v|^2 = n; a Gaussian's length varies, and the quadrature divides
    by it.
    """
    count = settings.num_probes
    if settings.probes == Probes.rademacher:
        return rademacher(dim, count, generator=generator, dtype=torch.int8)
    return torch.randn(count, dim, dtype=torch.float64, generator=generator).T


def _density_numbers(nodes: Array, weights: Array) -> Numbers:
    """Return tr A / n, tr A^2 / n and quantiles of the eigenvalues, from the nodes and weights of every probe.

    tr A^2 / n is ||A||_F^2 / n, and exact for each probe from two steps on.
    """
    numbers = {
        RowName("density_mean"): moment(nodes, weights, 1),
        RowName("density_second_moment"): moment(nodes, weights, 2),
    }
    for percent in PERCENT:
        name = RowName("density_quantile", percent)
        numbers[name] = sampled_quantile(nodes, weights, percent)
    return numbers


def _spectrum_numbers(eigenvalues: Array, settings: SpectrumConfig) -> Numbers:
    """Return the numbers of a whole spectrum, whose eigenvalues ascend: outermost ones, shares, ranks and quantiles."""
    cut = settings.cut
    numbers: dict[RowName, float] = {}
    for place, index in enumerate(indices(settings.k)):
        numbers[RowName("largest_eigenvalue", index)] = float(eigenvalues[-1 - place])
        numbers[RowName("smallest_eigenvalue", index)] = float(eigenvalues[place])
    numbers[RowName("share_negative")] = share_negative(eigenvalues, cut)
    numbers[RowName("effective_rank")] = effective_rank(eigenvalues)
    numbers[RowName("condition_number")] = condition_number(eigenvalues, cut)
    numbers[RowName("rank")] = float(rank(eigenvalues, cut))
    for percent in PERCENT:
        quantile = quantile_of_eigenvalues(eigenvalues, percent)
        numbers[RowName("eigenvalue_quantile", percent)] = quantile
    return {name: exact(value, _DENSE) for name, value in numbers.items()}
