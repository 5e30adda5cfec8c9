"""The loss on the measuring batch: the function whose Hessian is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    import torch

    from hessfig.curvature.gradients import loss_of
    from hessfig.measurements.at_state.measuring.rows import state_row

    with torch.no_grad():
        return Measured([state_row("loss", request, float(loss_of(problem)))])


QUANTITY = Quantity("loss", _measure)
