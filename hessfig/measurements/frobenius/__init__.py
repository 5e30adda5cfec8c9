"""Frobenius norms of blocks: sampled, dense or exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.measurements.frobenius.checks import check
from hessfig.measurements.frobenius.cost import operations
from hessfig.measurements.frobenius.settings import settings
from hessfig.measurements.protocol import Measured, Quantity, Request

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.measurements.frobenius.measure import measure

    return measure(problem, request)


QUANTITY = Quantity("frobenius", _measure, settings=settings, check=check, operations=operations)
