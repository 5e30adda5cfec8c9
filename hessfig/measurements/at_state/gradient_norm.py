"""The norm of the loss's gradient on the measuring batch: of all parameters, and of every weight that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.at_state.checks import diagonal_settings
from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.curvature.gradients import Slope
    from hessfig.measurements.at_state.measuring.rows import norm_rows

    return Measured(norm_rows("gradient_norm", problem, request, Slope(problem).gradient))


QUANTITY = Quantity("gradient_norm", _measure, settings=diagonal_settings)
