"""The critical step: from which size on the next update would raise the loss (arXiv 2601.16979)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config import Config, Curvature
from hessfig.errors import UserError
from hessfig.measurements.at_state.checks import check_moments, check_task, training_settings
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME, SHARPNESS = "critical_step", "critical_sharpness"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return eta_c, the smallest step at which L(w - eta u) > L(w), and 2 / eta_c, with half the bracket as error.

    u is the update that the training's rule would make had its batch the measured gradient, without weight decay; L is
    the loss of the measuring batch. Where u does not lower the loss at all the number did not converge.
    """
    from hessfig.measurements.at_state.measuring.line import critical_step
    from hessfig.measurements.at_state.measuring.rows import state_row
    from hessfig.record import Status

    found = critical_step(problem, request.at)
    status = Status.ok if found.error > 0 else Status.not_converged
    sharpness = 2 / found.value if found.value else float("nan")
    beside = sharpness * found.error / found.value if found.value else float("nan")
    return Measured(
        [
            state_row(NAME, request, found.value, error=found.error, estimator="losses", status=status),
            state_row(SHARPNESS, request, sharpness, error=beside, estimator="losses", status=status),
        ]
    )


def _check(config: Config, layout: Layout) -> None:
    del layout
    check_task(NAME, config)
    check_moments(NAME, config)
    if config.training.curvature == Curvature.blocks:
        raise UserError(
            f"quantities=[{NAME}]: this rule's update has a learning rate for every block",
            got=f"training.curvature={config.training.curvature}",
            allowed="; ".join(f"training.curvature={one}" for one in Curvature if one != Curvature.blocks),
            remedy=f"leave {NAME} out",
        )


QUANTITY = Quantity(NAME, _measure, settings=training_settings, check=_check, gives=(NAME, SHARPNESS))
