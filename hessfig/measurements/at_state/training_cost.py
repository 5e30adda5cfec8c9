"""What a training has cost up to a state: gradients, Hessian products, and seconds of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config import Config
from hessfig.measurements.at_state.checks import check_task, training_settings
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME, PRODUCTS, LOOKS = "training_cost", "hessian_products", "looks"
UPDATE, LOOK = "update_seconds", "look_seconds"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return the seconds of all updates and looks at the curvature so far, the products
    and looks, and the seconds of one update and one look.

    An update and a look are timed on a copy of this network (the median of three of each); the sum is what that many
    would take. Seconds are of this machine, and differ from run to run.
    """
    from hessfig.measurements.at_state.measuring.costs import cost_of
    from hessfig.measurements.at_state.measuring.rows import state_row

    spent = cost_of(problem, request.at)
    counts = {PRODUCTS: spent.products, LOOKS: spent.looks}
    timed = {NAME: spent.seconds, UPDATE: spent.update, LOOK: spent.look}
    return Measured(
        [
            *(state_row(name, request, float(count)) for name, count in counts.items()),
            *(state_row(name, request, value, error=None, estimator="clock") for name, value in timed.items()),
        ]
    )


def _check(config: Config, layout: Layout) -> None:
    del layout
    check_task(NAME, config)


QUANTITY = Quantity(
    NAME, _measure, settings=training_settings, check=_check, gives=(NAME, PRODUCTS, LOOKS, UPDATE, LOOK)
)
