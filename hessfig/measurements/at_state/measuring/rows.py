"""Rows of a quantity of a state: of the whole network, a layer, or a weight."""

from __future__ import annotations

import math

from torch import Tensor

from hessfig.curvature.curvlinops import view_of
from hessfig.curvature.problem import Problem
from hessfig.measurements.protocol import Request, Row, row_of
from hessfig.record import Status
from hessfig.terms import Block

EXACT = "exact"


def state_row(
    quantity: str,
    request: Request,
    value: float,
    *,
    error: float | None = 0.0,
    block: Block | None = None,
    layer: int = 0,
    index: int | None = None,
    num_probes: int = 0,
    estimator: str = EXACT,
    status: Status = Status.ok,
) -> Row:
    """Return the row of a number; one that is not finite has that status whatever `status` says."""
    place = {} if block is not None else {"layer": layer, "row_layer": layer}
    return row_of(
        block,
        **place,
        quantity=quantity,
        index=index,
        value=value,
        error=error if error is None or math.isfinite(value) else math.nan,
        num_probes=num_probes,
        estimator=estimator,
        dtype=request.dtype.value,
        status=(status if math.isfinite(value) else Status.nonfinite).value,
    )


def norm_rows(quantity: str, problem: Problem, request: Request, tensors: dict[str, Tensor]) -> list[Row]:
    """Return the Euclidean norm of `tensors`, by parameter: of all of them, then of every diagonal block's weights."""
    whole = [tensor.double().square().sum() for tensor in tensors.values()]
    rows = [state_row(quantity, request, float(sum(whole)) ** 0.5)]
    for block in request.blocks:
        if block.is_diagonal:
            side = problem.layout.side(block.layer, block.col)
            squares = [float(view_of(tensors[weight.parameter], weight).double().square().sum()) for weight in side]
            rows.append(state_row(quantity, request, sum(squares) ** 0.5, block=block))
    return rows
