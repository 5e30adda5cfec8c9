"""Averages of differences over random points around the state."""

from __future__ import annotations

import numpy as np
import torch

from hessfig.curvature.problem import Problem
from hessfig.measurements.landscape.measuring.orders import (
    Averaged,
    differences,
    mean_size,
    null_difference,
    places,
)
from hessfig.measurements.landscape.measuring.rows import (
    averaged_rows,
    exact_rows,
    in_orders,
    orders_of,
    samples_of,
)
from hessfig.measurements.protocol import Measured, Request


def measure(problem: Problem, request: Request) -> Measured:
    """Return Delta_1 and Delta_2 along k, and the losses of all samples at every point w (draws, samples)."""
    samples, settings = samples_of(problem, request), request.at.config.landscape
    at, orders = places(settings.first, samples.count - 1, settings.points), orders_of(request, samples.count)
    generator, losses = request.stream(0, "points"), []
    for _ in range(settings.draws):
        shift = samples.shaped(torch.randn(samples.dim, dtype=torch.float64, generator=generator))
        losses.append(samples.losses(samples.moved(shift, settings.spread)))
    found = [differences(in_orders(one, orders), at) for one in losses]
    held = torch.stack(losses).double().cpu().numpy()
    null = np.stack([null_difference(one, at) ** 2 for one in held]).mean(axis=0)
    rows = [
        *averaged_rows("delta_1", request, at, _over_points([mean_size(one).value for one in found])),
        *averaged_rows("delta_2", request, at, _over_points([(one**2).mean(axis=0) for one in found])),
        *exact_rows("delta_2_null", request, at, null),
    ]
    return Measured(rows, {"losses": held})


def _over_points(values: list[np.ndarray]) -> Averaged:
    return mean_size(np.stack(values))
