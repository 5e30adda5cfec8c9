"""Samples of a problem, orders of them and rows along k: what every quantity of the landscape begins and ends with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from hessfig.config.range_checks import number_of_samples
from hessfig.curvature.gradients import Samples
from hessfig.curvature.problem import Problem
from hessfig.errors import UserError
from hessfig.measurements.at_state.measuring.rows import EXACT, state_row
from hessfig.measurements.landscape.measuring.orders import Array, Averaged, Places
from hessfig.measurements.protocol import Request, Row

ORDERS = "orders"


def samples_of(problem: Problem, request: Request) -> Samples:
    """Return the samples the landscape is of. Raises UserError for a problem of several batches."""
    if problem.more:
        raise UserError(
            "the landscape is of one batch, whose samples have an order",
            got=f"{1 + len(problem.more)} batches",
            allowed="inputs and targets that are tensors",
            remedy="concatenate the batches; those of model=huggingface are one with a larger memory=...",
        )
    return Samples(problem, number_of_samples(request.at.config, size=len(problem.batch.inputs)))


def orders_of(request: Request, count: int) -> list[torch.Tensor]:
    """Return the orders of the samples: those of a cell's own stream, the first ones whatever their number."""
    generator = request.stream(0, ORDERS)
    number = request.at.config.landscape.permutations
    return [torch.randperm(count, generator=generator) for _ in range(number)]


def in_orders(values: torch.Tensor, orders: Iterable[torch.Tensor]) -> Array:
    """Return numbers of samples, one row an order."""
    held = values.detach().double().cpu().numpy()
    return np.stack([held[order.numpy()] for order in orders])


def averaged_rows(
    name: str, request: Request, at: Places, found: Averaged, *, over: str = ORDERS, number: int | None = None
) -> list[Row]:
    """Return means as rows, `index` = k: `over` how many (all orders by default), which the errors are of."""
    count = request.at.config.landscape.permutations if number is None else number
    numbers = zip(at, found.value, found.error, strict=True)
    return [
        state_row(name, request, float(v), error=float(e), index=int(k), num_probes=count, estimator=over)
        for k, v, e in numbers
    ]


def exact_rows(name: str, request: Request, at: Places, values: Array) -> list[Row]:
    """Return numbers that follow from the samples without an order as rows, `index` = k."""
    return [
        state_row(name, request, float(value), index=int(k), estimator=EXACT)
        for k, value in zip(at, values, strict=True)
    ]
