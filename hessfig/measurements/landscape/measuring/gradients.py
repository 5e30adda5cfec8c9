"""Gradients of the loss of k samples by running sums along orders of the samples."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch

from hessfig.curvature.gradients import Samples
from hessfig.curvature.problem import Problem
from hessfig.measurements.landscape.measuring.orders import (
    Array,
    Places,
    expected_gradient,
    mean_size,
    null_gradient,
    places,
    root_mean_square,
)
from hessfig.measurements.landscape.measuring.rows import averaged_rows, exact_rows, orders_of, samples_of
from hessfig.measurements.protocol import Measured, Request


def measure(problem: Problem, request: Request) -> Measured:
    """Return rows along k of |grad L_k(w*)|, up to all samples, and its numbers order by order.

    `stationarity` and `stationarity_rms`: mean and root mean square over orders; `stationarity_null`: sd / sqrt(k),
    what independent gradients of mean zero would give; `stationarity_expected`: what random orders of these gradients
    give, exactly (orders.expected_gradient). sd^2 is the summed variance of the gradient's entries over samples.
    """
    samples, settings = samples_of(problem, request), request.at.config.landscape
    at = places(settings.first, samples.count, settings.points)
    lengths = np.stack([_lengths(samples, order, at) for order in orders_of(request, samples.count)])
    squares, mean = samples.gradient_lengths(), float(lengths[0, -1])
    spread = max(float(squares.sum()) - samples.count * mean**2, 0.0) / (samples.count - 1)
    rows = [
        *averaged_rows("stationarity", request, at, mean_size(lengths)),
        *averaged_rows("stationarity_rms", request, at, root_mean_square(lengths)),
        *exact_rows(
            "stationarity_expected",
            request,
            at,
            expected_gradient(mean, spread**0.5, samples.count, at),
        ),
        *exact_rows("stationarity_null", request, at, null_gradient(spread**0.5, at)),
    ]
    return Measured(rows, {"k": at, "lengths": lengths, "squares": squares.cpu().numpy()})


def _lengths(samples: Samples, order: torch.Tensor, at: Places) -> Array:
    """Return |grad L_k| at the places k of one order: the last of them are all samples."""
    pieces = torch.tensor_split(order, [int(k) for k in at[:-1]])
    sums = accumulate(samples.summed_gradient(piece) for piece in pieces)
    return np.array([float(total.norm()) / k for total, k in zip(sums, at, strict=True)])
