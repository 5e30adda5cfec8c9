"""All eigenvalues of diagonal blocks, exact in float64: extremes, shares, rank, condition, quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.measurements.spectra.checks import check_dense, is_diagonal
from hessfig.measurements.spectra.settings import dense_operations, settings_of

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

GIVES = (
    *("largest_eigenvalue", "smallest_eigenvalue", "share_negative", "effective_rank"),
    *("condition_number", "eigenvalue_quantile"),
)


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.measurements.spectra.measuring.whole import measure

    return measure(problem, request)


QUANTITY = Quantity(
    "spectrum",
    _measure,
    settings=settings_of("k", "cut"),
    check=check_dense,
    operations=dense_operations,
    serves=is_diagonal,
    gives=GIVES,
)
