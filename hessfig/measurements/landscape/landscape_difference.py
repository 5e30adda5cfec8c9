"""|L_{k+1}(w) - L_k(w)| against k at a distance from the state: measured, predicted, bounded, and by chance alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.landscape.settings import check, settings_of
from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

GIVES = (
    *("landscape_difference", "landscape_rms", "landscape_prediction", "landscape_null", "landscape_bound"),
    *("largest_loss", "largest_curvature", "directional_curvature"),
    *("prediction_correlation", "prediction_slope"),
)


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.measurements.landscape.measuring.difference import measure

    return measure(problem, request)


QUANTITY = Quantity(
    "landscape_difference",
    _measure,
    settings=settings_of("distance", "direction", "curvatures"),
    check=check,
    gives=GIVES,
)
