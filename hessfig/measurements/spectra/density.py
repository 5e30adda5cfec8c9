"""Densities of the eigenvalues of diagonal blocks, with errors over probes, for blocks of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.measurements.spectra.checks import is_diagonal
from hessfig.measurements.spectra.settings import density_operations, settings_of

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.measurements.spectra.measuring.sampled import measure

    return measure(problem, request)


QUANTITY = Quantity(
    "density",
    _measure,
    settings=settings_of("steps", "num_probes", "probes"),
    operations=density_operations,
    serves=is_diagonal,
    gives=("density_mean", "density_second_moment", "eigenvalue_quantile"),
)
