"""How the gradients of single sums differ from each other: a stand-in for curvature, and the noise of mini-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME, LARGEST = "gradient_covariance", "gradient_covariance_eigenvalue"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return trace and largest eigenvalue of C = 1/(k - 1) sum_i (g_i - g)(g_i - g)^T, g_i the gradient of example i.

    Of the measuring batch's first k = 64 examples (all, where it has fewer); C of a mini-batch of m is C / m. No error
    is known of one batch.
    """
    from hessfig.measurements.at_state.measuring.covariance import gram
    from hessfig.measurements.at_state.measuring.rows import state_row

    eigenvalues = gram(problem)
    values = {NAME: float(eigenvalues.sum()), LARGEST: float(eigenvalues[-1])}
    return Measured([state_row(name, request, value, error=None) for name, value in values.items()])


QUANTITY = Quantity(NAME, _measure, gives=(NAME, LARGEST))
