"""The norms of all blocks asked for, column by column."""

from __future__ import annotations

from hessfig.curvature.problem import Problem
from hessfig.measurements.blocks import block_row, columns
from hessfig.measurements.frobenius.estimator import Estimator
from hessfig.measurements.protocol import Measured, Request
from hessfig.record import FROBENIUS


def measure(problem: Problem, request: Request) -> Measured:
    """Return one row per block and part: ||H_part(row, col)||_F."""
    estimator = Estimator(problem, request.model, request.estimator, request.settled)
    rows = []
    for layer, col, blocks in columns(request.blocks):
        norms = estimator.column_norms(layer, col, blocks, request.parts, generator=request.stream(layer, col))
        rows += [block_row(FROBENIUS, request, *key, norm) for key, norm in norms.items()]
    return Measured(rows)
