"""The Euclidean norm of the parameters: of all of them, and of every weight that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.at_state.checks import diagonal_settings
from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.measurements.at_state.measuring.rows import norm_rows

    held = {name: parameter.detach() for name, parameter in problem.network.named_parameters()}
    return Measured(norm_rows("weight_norm", problem, request, held))


QUANTITY = Quantity("weight_norm", _measure, settings=diagonal_settings)
