"""The outermost eigenvalues of one end, each with the residual norm of its vector as its error."""

from __future__ import annotations

from hessfig.curvature.problem import Problem
from hessfig.curvature.spectral.extremes import End, Extremes, extremes
from hessfig.curvature.spectral.lanczos import NotFinite
from hessfig.measurements.protocol import Arrays, Measured, Request
from hessfig.measurements.spectra.measuring.entries import Entry, Spectra, indices, paired_entries
from hessfig.record import Status

_MOST_KEPT = 2**20  # entries of vectors that are kept, for warm starts


def measure(problem: Problem, request: Request, end: End) -> Measured:
    """Return `k` rows for every part of every block; values, residuals and vectors as arrays."""
    spectra, name = Spectra(request, "lanczos"), f"{end}_eigenvalue"
    for entry in paired_entries(problem, request):
        at = (entry.block, entry.part)
        try:
            found = _extremes(entry, request, end)
        except NotFinite:
            spectra.nothing([(name, index) for index in indices(request.spectrum.k)], at)
            continue
        status = None if found.converged else Status.not_converged
        for place, index in enumerate(indices(request.spectrum.k)):
            value, residual = float(found.values[place]), float(found.residuals[place])
            spectra.row(name, at, value, residual, index=index, status=status)
        counted = {"products": found.products, "rough_products": found.rough_products}
        label = {**counted, "scale": found.scale, "converged": found.converged}
        spectra.keep(at, entry.operator.dim, label, _arrays(found))
    return Measured(spectra.rows, spectra.arrays)


def _extremes(entry: Entry, request: Request, end: End) -> Extremes:
    settings = request.spectrum
    return extremes(
        entry.operator,
        end,
        k=settings.k,
        tolerance=settings.tolerance,
        steps=settings.steps,
        generator=request.stream(entry.block.layer, entry.block.col),
        rough=entry.rough,
    )


def _arrays(found: Extremes) -> Arrays:
    arrays = {"values": found.values.numpy(), "residuals": found.residuals.numpy()}
    small = found.vectors.numel() <= _MOST_KEPT
    return {**arrays, "vectors": found.vectors.numpy()} if small else arrays
