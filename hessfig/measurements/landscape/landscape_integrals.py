"""Delta_1 and Delta_2: E |L_{k+1}(w) - L_k(w)| and E |.|^2 over w ~ N(w*, s^2 I), against k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.landscape.settings import check, settings_of
from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    """Return rows `delta_1` and `delta_2` along k, means over landscape.draws points w and orders of the samples.

    Errors are standard errors over the points. `delta_2_null` is the mean over w of the squared null (see
    orders.null_difference).
    """
    from hessfig.measurements.landscape.measuring.integrals import measure

    return measure(problem, request)


QUANTITY = Quantity(
    "landscape_integrals",
    _measure,
    settings=settings_of("draws", "spread"),
    check=check,
    gives=("delta_1", "delta_2", "delta_2_null"),
)
