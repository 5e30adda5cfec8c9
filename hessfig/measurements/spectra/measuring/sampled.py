"""Densities of eigenvalues by stochastic Lanczos quadrature: nodes and weights by probe, moments and quantiles."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config import Probes
from hessfig.curvature.problem import Problem, rademacher
from hessfig.curvature.spectral.densities import Quadrature, quadrature
from hessfig.curvature.spectral.lanczos import NotFinite
from hessfig.measurements.protocol import Measured, Request
from hessfig.measurements.spectra.measuring.entries import Entry, Spectra, entries
from hessfig.measurements.spectra.measuring.statistics import PERCENT, Sampled, moment, sampled_quantile

Number = tuple[str, int | None, Sampled]
_NAMES = [
    ("density_mean", None),
    ("density_second_moment", None),
    *(("density_quantile", percent) for percent in PERCENT),
]


def measure(problem: Problem, request: Request) -> Measured:
    """Return the rows of every part of every block, and the nodes and weights of its probes as arrays."""
    spectra, count = Spectra(request, "lanczos"), request.spectrum.num_probes
    for entry in entries(problem, request):
        at = (entry.block, entry.part)
        try:
            found = quadrature(entry.operator, _starts(entry, request), request.spectrum.steps)
        except NotFinite:
            spectra.nothing(_NAMES, at)
            continue
        for quantity, index, number in _numbers(found):
            spectra.row(quantity, at, number.value, number.error, index=index, num_probes=count)
        label = {"products": entry.operator.products, "num_probes": count, "steps": request.spectrum.steps}
        arrays = {name: value.numpy() for name, value in vars(found).items()}
        spectra.keep(at, entry.operator.dim, label, arrays)
    return Measured(spectra.rows, spectra.arrays)


def _starts(entry: Entry, request: Request) -> Float[Tensor, "n num_probes"]:
    """Return the probes: those of all parts of a block are the same, and the first ones whatever their number."""
    settings, dim = request.spectrum, entry.operator.dim
    generator = request.stream(entry.block.layer, entry.block.col)
    if settings.probes == Probes.rademacher:
        return rademacher(dim, settings.num_probes, generator=generator, dtype=torch.float64)
    return torch.randn(settings.num_probes, dim, dtype=torch.float64, generator=generator).T


def _numbers(found: Quadrature) -> Iterator[Number]:
    nodes, weights = found.nodes.numpy(), found.weights.numpy()
    yield "density_mean", None, moment(nodes, weights, 1)
    yield "density_second_moment", None, moment(nodes, weights, 2)
    for percent in PERCENT:
        yield "density_quantile", percent, sampled_quantile(nodes, weights, percent)
