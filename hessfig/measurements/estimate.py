"""A number and how well it is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """`error` is one standard error, 0 when the value is exact and NaN when the estimator gives none.

    `by` names the estimator that found the number where that is not the configured one.
    """

    value: float
    error: float
    num_probes: int
    by: str = ""
