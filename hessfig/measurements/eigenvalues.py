"""Eigenvalues of diagonal blocks: full spectra, outermost eigenvalues, and densities with errors over probes."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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

PERCENT = (5, 25, 50, 75, 95)
SMALL = 5
Array = NDArray[np.float64]
_MOST_KEPT = 2**20  # entries of vectors that are kept, for warm starts
_DENSE, _LANCZOS = "dense", "lanczos"  # the column `estimator` of these numbers
# By the quantity and the index of their rows.
Numbers = dict[tuple[str, int | None], Estimate]


def spectrum(objective: Objective, request: Request) -> Measured:
    """Return the rows of every part of every block, and its eigenvalues, ascending, as arrays."""
    spectra, settings = Spectra(request), request.spectrum
    for block, column in square_columns(objective, request):
        for part, eigenvalues in dense_eigenvalues(
            column, block, request.parts
        ).items():
            if eigenvalues is None:
                spectra.nothing(
                    (block, part),
                    _spectrum_numbers(np.zeros(settings.k), settings),
                    by=_DENSE,
                )
                continue
            spectra.add((block, part), _spectrum_numbers(eigenvalues, settings))
            spectra.keep(
                (block, part),
                len(eigenvalues),
                {"cut": settings.cut},
                {"eigenvalues": eigenvalues},
            )
    return Measured(spectra.rows, spectra.arrays)


def outermost(objective: Objective, request: Request, end: End) -> Measured:
    """Return `k` rows for every part of every block; values, residuals and vectors as arrays."""
    spectra, warm = Spectra(request), dict[str, Tensor]()
    names = [(f"{end}_eigenvalue", index) for index in indices(request.spectrum.k)]
    for entry in paired_entries(objective, request):
        at = (entry.block, entry.part)
        try:
            extremes = _extremes(entry, request, end)
        except NotFinite:
            spectra.nothing(at, names, by=_LANCZOS)
            continue
        pairs = zip(
            names, extremes.values.tolist(), extremes.residuals.tolist(), strict=True
        )
        numbers = {
            name: Estimate(value, residual, 0, _LANCZOS)
            for name, value, residual in pairs
        }
        spectra.add(at, numbers, converged=extremes.converged)
        counted = {
            "products": extremes.products,
            "rough_products": extremes.rough_products,
        }
        label = {**counted, "scale": extremes.scale, "converged": extremes.converged}
        spectra.keep(at, entry.operator.dim, label, _extreme_arrays(extremes))
        warm[_place(entry, end)] = extremes.vectors.sum(dim=1)
    return Measured(spectra.rows, spectra.arrays, warm)


largest_eigenvalue = partial(outermost, end=End.largest)
smallest_eigenvalue = partial(outermost, end=End.smallest)


def density(objective: Objective, request: Request) -> Measured:
    """Return the rows of every part of every block, and the nodes and weights of its probes as arrays."""
    spectra, count = Spectra(request), request.spectrum.num_probes
    for entry in diagonal_entries(objective, request):
        at = (entry.block, entry.part)
        try:
            gauss = quadrature(
                entry.operator, _starts(entry, request), request.spectrum.steps
            )
        except NotFinite:
            spectra.nothing(
                at, _density_numbers(np.zeros((1, 1)), np.ones((1, 1))), by=_LANCZOS
            )
            continue
        spectra.add(at, _density_numbers(gauss.nodes.numpy(), gauss.weights.numpy()))
        label = {
            "products": entry.operator.products,
            "num_probes": count,
            "steps": request.spectrum.steps,
        }
        arrays = {name: value.numpy() for name, value in vars(gauss).items()}
        spectra.keep(at, entry.operator.dim, label, arrays)
    return Measured(spectra.rows, spectra.arrays)


def share_negative(eigenvalues: Array, cut: float) -> float:
    """Return the share of eigenvalues below minus `cut` times the largest in size."""
    return float(np.mean(eigenvalues < -cut * np.abs(eigenvalues).max()))


def effective_rank(eigenvalues: Array) -> float:
    """Return (tr |H|)^2 / ||H||_F^2, for a semi-definite matrix (tr H)^2 / ||H||_F^2; 0 for a zero matrix."""
    size = np.abs(eigenvalues).max()
    if size == 0.0:
        return 0.0
    scaled = eigenvalues / size
    return float(np.abs(scaled).sum() ** 2 / np.square(scaled).sum())


def rank(eigenvalues: Array, cut: float) -> int:
    """Return how many eigenvalues are larger in size than `cut` times the largest: the numerical rank."""
    sizes = np.abs(eigenvalues)
    return int((sizes > cut * sizes.max()).sum())


def condition_number(eigenvalues: Array, cut: float) -> float:
    """Return the largest eigenvalue in size over the SMALL % quantile of the sizes; nan for a zero matrix.

    Infinite where that quantile is no more than `cut` times the largest: more than
    SMALL % of the eigenvalues are zero.
    """
    sizes = np.abs(eigenvalues)
    if sizes.max() == 0.0:
        return float("nan")
    small = quantile_of_eigenvalues(sizes, SMALL)
    return float(sizes.max() / small) if small > cut * sizes.max() else float("inf")


def quantile_of_eigenvalues(eigenvalues: Array, percent: int) -> float:
    """Return the smallest eigenvalue that at least `percent` of 100 are no larger than."""
    place = max(int(np.ceil(percent / 100 * len(eigenvalues) - 1e-9)) - 1, 0)
    return float(np.sort(eigenvalues)[place])


def moment(nodes: Array, weights: Array, power: int) -> Estimate:
    """Return the mean over probes of sum_i w_i theta_i^power, which is tr A^power / n but for the probes."""
    return _mean((weights * nodes**power).sum(axis=1))


def sampled_quantile(nodes: Array, weights: Array, percent: int) -> Estimate:
    """Return the smallest node at which the mean cumulative reaches `percent` of 100.

    Its error is half the span of the quantiles at that level more or less one standard
    error of the cumulative there (Woodruff, J. Am. Stat. Assoc. 47 (1952) 635): no
    density at the quantile is needed.
    """
    share, count = percent / 100, len(nodes)
    order = np.argsort(nodes, axis=None, kind="stable")
    pooled, cumulative = nodes.ravel()[order], np.cumsum(weights.ravel()[order]) / count

    def at(level: float) -> float:
        place = np.searchsorted(cumulative, np.clip(level, 1e-9, 1 - 1e-9) - 1e-9)
        return float(pooled[min(place, len(pooled) - 1)])

    value = at(share)
    spread = _mean(np.where(nodes <= value, weights, 0.0).sum(axis=1)).error
    error = (at(share + spread) - at(share - spread)) / 2 if count > 1 else float("nan")
    return Estimate(value, error, count, _LANCZOS)


def _mean(values: Array) -> Estimate:
    """Return the mean over probes with its standard error; nan for a single probe."""
    count = len(values)
    unit = unit_of(torch.from_numpy(values))
    if count > 1:
        error = float((values / unit).std(ddof=1)) * unit / count**0.5
    else:
        error = float("nan")
    return Estimate(float(values.mean()), error, count, _LANCZOS)


@dataclass(frozen=True)
class SpectrumEntry:
    """A part of a diagonal block as an operator; `low_precision` multiplies in float32 where that is cheaper."""

    block: Block
    part: Part
    operator: Square
    low_precision: Square | None = None


class Spectra:
    """Rows and arrays of a cell, entry by entry: array `name_k` belongs to entry k of the list `entries`."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.rows: list[Row] = []
        self._labels: list[dict[str, Any]] = []
        self._arrays: Arrays = {}

    def add(
        self, at: tuple[Block, Part], numbers: Numbers, *, converged: bool = True
    ) -> None:
        """Add rows; a number that is not finite is `nonfinite` whether it has converged or not."""
        for (quantity, index), estimate in numbers.items():
            row = block_row(quantity, self.request, *at, estimate, index=index)
            if not converged and row["status"] == Status.ok:
                row["status"] = Status.not_converged.value
            self.rows.append(row)

    def nothing(
        self,
        at: tuple[Block, Part],
        names: Iterable[tuple[str, int | None]],
        *,
        by: str,
    ) -> None:
        """Add rows of these names without a number, for a block whose products are not finite."""
        self.add(at, dict.fromkeys(names, Estimate(float("nan"), float("nan"), 0, by)))

    def keep(
        self, at: tuple[Block, Part], dim: int, label: dict[str, Any], arrays: Arrays
    ) -> None:
        """Add an entry with its arrays."""
        block, part = at
        place = {
            "layer": block.layer,
            "row_layer": block.row_layer,
            "row": block.row,
            "col": block.col,
        }
        number = len(self._labels)
        self._labels.append({**place, "part": part.value, "dim": dim, **label})
        self._arrays |= {f"{name}_{number}": value for name, value in arrays.items()}

    @property
    def arrays(self) -> Arrays:
        """The arrays of all entries, and the list `entries` of what they are (JSON)."""
        return {"entries": np.array(json.dumps(self._labels)), **self._arrays}


def square_columns(
    objective: Objective, request: Request
) -> Iterator[tuple[Block, Column]]:
    """Yield every requested diagonal block with its column."""
    for block, column, _ in _squares(objective, request):
        yield block, column


def diagonal_entries(objective: Objective, request: Request) -> Iterator[SpectrumEntry]:
    """Yield every requested part of every requested diagonal block."""
    for block, column, _ in _squares(objective, request):
        for part in request.parts:
            yield SpectrumEntry(block, part, Square(column, block, part))


def paired_entries(objective: Objective, request: Request) -> Iterator[SpectrumEntry]:
    """Yield every requested part of every requested diagonal block, with its operator of low precision."""
    for block, column, engines in _squares(objective, request):
        narrow = engines.low_precision(column, block.layer, block.col, [block])
        for part in request.parts:
            low_precision = None if narrow is None else Square(narrow, block, part)
            yield SpectrumEntry(block, part, Square(column, block, part), low_precision)


def _squares(
    objective: Objective, request: Request
) -> Iterator[tuple[Block, Column, Engines]]:
    """Yield every diagonal block with its column and its engines, which are built once."""
    engines = Engines(objective, request.model, request.estimator.products)
    for layer, col, blocks in columns(request.blocks):
        for block in blocks:
            yield block, engines.column(layer, col, [block]), engines


def indices(k: int) -> list[int | None]:
    """Return the index of each of the k outermost eigenvalues: 1, 2, ... from the outside; none for a single one."""
    return [None] if k == 1 else [*range(1, k + 1)]


def extremes_of(
    operator: SymmetricOperator,
    end: End,
    settings: SpectrumConfig,
    generator: Generator,
    *,
    k: int = 1,
) -> Extremes:
    """Return the k outermost eigenvalues at one end, as precisely as the settings say. Raises NotFinite."""
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
    return Estimate(
        float(pairs.values[0]),
        float(pairs.residuals[0]),
        0,
        _LANCZOS,
        is_unreliable=not pairs.converged,
    )


def _extremes(entry: SpectrumEntry, request: Request, end: End) -> Extremes:
    settings, source = request.spectrum, differences_in(entry.operator.column)
    found = extremes(
        entry.operator,
        end,
        k=settings.k,
        tolerance=settings.tolerance
        if source is None
        else max(settings.tolerance, source.usual_error),
        steps=settings.steps,
        starts=settings.starts,
        generator=request.stream(entry.block.layer, entry.block.col),
        warm=request.at.warm.get(_place(entry, end)),
        low_precision=entry.low_precision,
    )
    if source is None:
        return found
    return _with_errors(found, entry.operator, settings.tolerance)


def _with_errors(found: Extremes, operator: Square, tolerance: float) -> Extremes:
    """Return eigenvalues by differences with residuals |A v - value v| that include the error of A v."""
    image = operator.matmat(found.vectors)
    assert operator.last_errors is not None
    apart = (image - found.vectors * found.values.to(image)).double().norm(dim=0).cpu()
    residuals = apart + operator.last_errors
    is_small = bool((residuals <= tolerance * found.scale).all())
    return replace(found, residuals=residuals, converged=found.converged and is_small)


def _place(entry: SpectrumEntry, end: End) -> str:
    return f"{end} of {entry.part} of {entry.block}"


def _extreme_arrays(extremes: Extremes) -> Arrays:
    arrays = {
        "values": extremes.values.numpy(),
        "residuals": extremes.residuals.numpy(),
    }
    small = extremes.vectors.numel() <= _MOST_KEPT
    if small:
        return {**arrays, "vectors": extremes.vectors.double().cpu().numpy()}
    return arrays


def _starts(entry: SpectrumEntry, request: Request) -> Shaped[Tensor, "n num_probes"]:
    """Return the probes: those of all parts of a block are the same, and the first ones whatever their number."""
    settings, dim = request.spectrum, entry.operator.dim
    generator = request.stream(entry.block.layer, entry.block.col)
    if settings.probes == Probes.rademacher:
        return rademacher(
            dim, settings.num_probes, generator=generator, dtype=torch.int8
        )
    return torch.randn(
        settings.num_probes, dim, dtype=torch.float64, generator=generator
    ).T


def _density_numbers(nodes: Array, weights: Array) -> Numbers:
    numbers: Numbers = {("density_mean", None): moment(nodes, weights, 1)}
    numbers["density_second_moment", None] = moment(nodes, weights, 2)
    for percent in PERCENT:
        numbers["density_quantile", percent] = sampled_quantile(nodes, weights, percent)
    return numbers


def _spectrum_numbers(eigenvalues: Array, settings: SpectrumConfig) -> Numbers:
    numbers = dict[tuple[str, int | None], float]()
    for index, outermost in enumerate(indices(settings.k)):
        numbers["largest_eigenvalue", outermost] = float(eigenvalues[-1 - index])
        numbers["smallest_eigenvalue", outermost] = float(eigenvalues[index])
    numbers["share_negative", None] = share_negative(eigenvalues, settings.cut)
    numbers["effective_rank", None] = effective_rank(eigenvalues)
    numbers["condition_number", None] = condition_number(eigenvalues, settings.cut)
    numbers["rank", None] = float(rank(eigenvalues, settings.cut))
    for percent in PERCENT:
        numbers["eigenvalue_quantile", percent] = quantile_of_eigenvalues(
            eigenvalues, percent
        )
    return {name: exact(value, _DENSE) for name, value in numbers.items()}
