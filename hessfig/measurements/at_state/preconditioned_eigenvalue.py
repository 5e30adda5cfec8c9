"""The largest eigenvalue of P^-1 H, P the preconditioner of the training's own moments (arXiv 2207.14484)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessfig.config import Config, State
from hessfig.errors import UserError
from hessfig.measurements.at_state.checks import ADAPTIVE, training_settings
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME = "preconditioned_eigenvalue"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return the largest eigenvalue of P^-1/2 H P^-1/2, which is that of P^-1 H, over every parameter.

    P = (1 - beta1^t) (sqrt(nu_t / (1 - beta2^t)) + eps) after t updates; H is the loss's, without the weight decay. The
    error is the residual norm in the symmetric form. Before the first update there is no P, and no row.
    """
    from hessfig.measurements.at_state.measuring.preconditioned import measure

    return measure(problem, request) if request.at.step else Measured([])


def _check(config: Config, layout: Layout) -> None:
    del layout
    if config.state.kind != State.trained or config.training.optimiser not in ADAPTIVE:
        raise UserError(
            f"quantities=[{NAME}]: the preconditioner is that of a training with adam or adamw",
            got=f"state={config.state.kind}, training.optimiser={config.training.optimiser}",
            allowed="state=trained with training.optimiser=adam or adamw",
            remedy=f"leave {NAME} out, or state=trained training=adamw",
        )


def _settings(config: Config, layout: Layout) -> dict[str, Any]:
    spectrum, products = config.spectrum, config.estimator.products.value
    lanczos = {"tolerance": spectrum.tolerance, "steps": spectrum.steps, "products": products}
    return {**training_settings(config, layout), **lanczos}


QUANTITY = Quantity(NAME, _measure, settings=_settings, check=_check)
