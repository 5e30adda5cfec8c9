"""|grad L_k(w*)| against k: how near the state is to a stationary point of fewer samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.landscape.settings import check, settings_of
from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.measurements.landscape.measuring.gradients import measure

    return measure(problem, request)


QUANTITY = Quantity(
    "stationarity",
    _measure,
    settings=settings_of(),
    check=check,
    gives=("stationarity", "stationarity_rms", "stationarity_expected", "stationarity_null"),
)
