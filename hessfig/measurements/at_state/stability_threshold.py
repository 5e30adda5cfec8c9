"""The learning rate of the next update, and the sharpness from which on that step does not settle in a quadratic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config import Config, Curvature, Schedule, TrainingConfig
from hessfig.errors import UserError
from hessfig.measurements.at_state.checks import ADAPTIVE, check_task, training_settings
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME, RATE = "stability_threshold", "learning_rate"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return eta of update step + 1 (a cosine's last one at its end), and the threshold of the largest eigenvalue.

    gd: 2 / eta. sgd: (2 + 2 momentum) / eta. adam, adamw: (2 + 2 beta1) / ((1 - beta1) eta), of P^-1 H (see
    preconditioned_eigenvalue; arXiv 2207.14484). Weight decay is left out.
    """
    from hessfig.measurements.at_state.measuring.rows import state_row
    from hessfig.states.training.loop import learning_rate

    del problem
    training = request.at.config.training
    coming = (request.at.step or 0) + 1
    ends = training.schedule == Schedule.cosine  # a constant schedule has no end: its length counts for nothing
    rate = learning_rate(training, min(coming, training.steps) if ends else coming)
    values = {NAME: factor(training) / rate, RATE: rate}
    return Measured([state_row(name, request, value) for name, value in values.items()])


def factor(training: TrainingConfig) -> float:
    """Return threshold times learning rate."""
    if training.optimiser in ADAPTIVE:
        first = training.betas[0]
        return (2 + 2 * first) / (1 - first)
    return 2 + 2 * training.momentum * (training.optimiser == "sgd")


def _check(config: Config, layout: Layout) -> None:
    del layout
    check_task(NAME, config)
    if config.training.curvature != Curvature.none:
        raise UserError(
            f"quantities=[{NAME}]: this rule's learning rate follows the curvature",
            got=f"training.curvature={config.training.curvature}",
            allowed="training.curvature=none",
            remedy=f"leave {NAME} out",
        )


QUANTITY = Quantity(NAME, _measure, settings=training_settings, check=_check, gives=(NAME, RATE))
