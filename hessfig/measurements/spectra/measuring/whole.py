"""All eigenvalues, and the rows that are read off them."""

from __future__ import annotations

from collections.abc import Iterator

from hessfig.config import SpectrumConfig
from hessfig.curvature.problem import Problem
from hessfig.curvature.spectral.densities import dense_eigenvalues
from hessfig.measurements.protocol import Measured, Request
from hessfig.measurements.spectra.measuring.entries import Spectra, indices, square_columns
from hessfig.measurements.spectra.measuring.statistics import (
    PERCENT,
    Array,
    condition_number,
    effective_rank,
    quantile,
    share_negative,
)
from hessfig.terms import Block, Part

Number = tuple[str, int | None, float]


def measure(problem: Problem, request: Request) -> Measured:
    """Return the rows of every part of every block, and its eigenvalues, ascending, as arrays."""
    spectra = Spectra(request, "dense")
    for block, column in square_columns(problem, request):
        found = dense_eigenvalues(column, block, request.parts)
        for part in request.parts:
            _add(spectra, (block, part), found[part])
    return Measured(spectra.rows, spectra.arrays)


def _add(spectra: Spectra, at: tuple[Block, Part], eigenvalues: Array | None) -> None:
    settings = spectra.request.spectrum
    if eigenvalues is None:
        spectra.nothing(_names(settings.k), at)
        return
    for quantity, index, value in _numbers(eigenvalues, settings):
        spectra.row(quantity, at, value, 0.0, index=index)
    spectra.keep(at, len(eigenvalues), {"cut": settings.cut}, {"eigenvalues": eigenvalues})


def _numbers(eigenvalues: Array, settings: SpectrumConfig) -> Iterator[Number]:
    for index, outermost in enumerate(indices(settings.k)):
        yield "largest_eigenvalue", outermost, float(eigenvalues[-1 - index])
        yield "smallest_eigenvalue", outermost, float(eigenvalues[index])
    yield "share_negative", None, share_negative(eigenvalues, settings.cut)
    yield "effective_rank", None, effective_rank(eigenvalues)
    yield "condition_number", None, condition_number(eigenvalues, settings.cut)
    for percent in PERCENT:
        yield "eigenvalue_quantile", percent, quantile(eigenvalues, percent)


def _names(k: int) -> list[tuple[str, int | None]]:
    ends = [(name, index) for index in indices(k) for name in ("largest_eigenvalue", "smallest_eigenvalue")]
    single = [(name, None) for name in ("share_negative", "effective_rank", "condition_number")]
    return [*ends, *single, *(("eigenvalue_quantile", percent) for percent in PERCENT)]
