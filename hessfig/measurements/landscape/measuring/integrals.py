"""Averages of differences over random points around the state."""

from __future__ import annotations

import numpy as np
import torch

from hessfig.curvature.problem import Problem
from hessfig.measurements.landscape.measuring.orders import differences, mean_size, null_difference, places
from hessfig.measurements.landscape.measuring.rows import averaged_rows, in_orders, orders_of, samples_of
from hessfig.measurements.protocol import Measured, Request

POINTS = "points"


def measure(problem: Problem, request: Request) -> Measured:
    """Return Delta_1 and Delta_2 along k, and the losses of all samples at every point w (draws, samples)."""
    samples, settings = samples_of(problem, request), request.at.config.landscape
    at, orders = places(settings.first, samples.count - 1, settings.points), orders_of(request, samples.count)
    generator, losses = request.stream(0, POINTS), []
    for _ in range(settings.draws):
        shift = samples.shaped(torch.randn(samples.dim, dtype=torch.float64, generator=generator))
        losses.append(samples.losses(samples.moved(shift, settings.spread)))
    found = [differences(in_orders(one, orders), at) for one in losses]
    held = torch.stack(losses).double().cpu().numpy()
    numbers = {
        "delta_1": [mean_size(one).value for one in found],
        "delta_2": [(one**2).mean(axis=0) for one in found],
        "delta_2_null": [null_difference(one, at) ** 2 for one in held],
    }
    rows = []
    for name, values in numbers.items():  # a number a point w: the errors are over these
        mean = mean_size(np.stack(values))
        rows += averaged_rows(name, request, at, mean, over=POINTS, number=settings.draws)
    return Measured(rows, {"losses": held})
