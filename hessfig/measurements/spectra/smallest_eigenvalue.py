"""The algebraically smallest eigenvalues of diagonal blocks, by Lanczos from two starts that must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.measurements.spectra.checks import check_count, is_diagonal
from hessfig.measurements.spectra.settings import extreme_operations, settings_of

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.curvature.spectral.extremes import End
    from hessfig.measurements.spectra.measuring.outermost import measure

    return measure(problem, request, End.smallest)


QUANTITY = Quantity(
    "smallest_eigenvalue",
    _measure,
    settings=settings_of("k", "tolerance", "steps"),
    check=check_count,
    operations=extreme_operations,
    serves=is_diagonal,
)
