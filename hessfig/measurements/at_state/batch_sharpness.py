"""Batch sharpness: the curvature of mini-batch losses along their own gradients (arXiv 2412.20553)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessfig.config import Config
from hessfig.measurements.at_state.checks import check_task, training_settings
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME = "batch_sharpness"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return the mean of g.H_B g / |g|^2 over mini-batches B, with its standard error.

    There are estimator.num_probes of them, drawn as the training draws its own, from a stream that it does not see.
    Full-batch training has one batch, and no error.
    """
    from hessfig.measurements.at_state.measuring.minibatches import sharpness
    from hessfig.measurements.at_state.measuring.rows import state_row

    found = sharpness(problem, request)
    row = state_row(
        NAME,
        request,
        found.value,
        error=found.error,
        num_probes=found.num_probes,
        estimator="mini-batches",
    )
    return Measured([row])


def _check(config: Config, layout: Layout) -> None:
    del layout
    check_task(NAME, config)


def _settings(config: Config, layout: Layout) -> dict[str, Any]:
    return {**training_settings(config, layout), "num_probes": config.estimator.num_probes}


QUANTITY = Quantity(NAME, _measure, settings=_settings, check=_check)
