"""Differences of losses of k + 1 and k samples, from numbers of single samples: the rest is arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hessfig.config import Direction
from hessfig.curvature.problem import Problem
from hessfig.curvature.samples import Along, Samples
from hessfig.curvature.slope import Slope
from hessfig.measurements.at_state.measuring.rows import state_row
from hessfig.measurements.landscape.measuring.orders import (
    Places,
    differences,
    mean_size,
    null_difference,
    places,
    rank_correlation,
    regression,
    root_mean_square,
)
from hessfig.measurements.landscape.measuring.rows import (
    averaged_rows,
    exact_rows,
    in_orders,
    orders_of,
    samples_of,
)
from hessfig.measurements.protocol import Measured, Request, Row
from hessfig.rng import stream
from hessfig.tasks.batch import Batch

_PRODUCTS = 30  # of a power iteration


def measure(problem: Problem, request: Request) -> Measured:
    """Return rows along k of |L_{k+1}(w) - L_k(w)|, and the numbers of single samples that they are made of.

    `landscape_difference` and `landscape_rms`: mean and root mean square over orders of the samples, with standard
    errors; `landscape_prediction`: the mean with l_i(w) replaced by l_i + d u.g_i + d^2 u.H_i u / 2 at w*; `landscape_null`:
    the root mean square that chance gives (orders.null_difference); `landscape_bound`: 2 L_max / (k + 1) + M d^2 / (k + 1)
    (arXiv 2510.16927, Theorem 7) with L_max = `largest_loss` at w* and M = `largest_curvature`, the largest spectral norm
    of H_i at w* among the `landscape.curvatures` samples most curved along u: a lower bound of the theorem's M.
    `prediction_correlation` (ranks) and `prediction_slope` compare l_i(w) - l_i(w*) with its prediction, sample by sample.
    """
    samples, settings = samples_of(problem, request), request.at.config.landscape
    direction = direction_of(samples, request)
    found, distance = samples.along(direction), settings.distance or 0.0
    at_w = samples.losses(samples.moved(direction, distance)) if distance else found.losses
    change = distance * found.slopes + distance**2 / 2 * found.curvatures
    at, orders = places(settings.first, samples.count - 1, settings.points), orders_of(request, samples.count)
    true = differences(in_orders(at_w, orders), at)
    rows = averaged_rows("landscape_difference", request, at, mean_size(true))
    rows += averaged_rows("landscape_rms", request, at, root_mean_square(true))
    rows += exact_rows("landscape_null", request, at, null_difference(_array(at_w), at))
    if distance:
        predicted = differences(in_orders(found.losses + change, orders), at)
        rows += averaged_rows("landscape_prediction", request, at, mean_size(predicted))
        rows += _agreement(request, _array(change), _array(at_w - found.losses))
    rows += _bound(problem, request, found, distance, at)
    return Measured(rows, _kept(found, at_w))


def direction_of(samples: Samples, request: Request) -> Mapping[str, Tensor]:
    """Return a unit vector: random from the cell's own stream, the same at every distance; or along the gradient.

    A gradient that vanishes gives the zero vector.
    """
    if request.at.config.landscape.direction == Direction.gradient:
        flat = samples.summed_gradient(torch.arange(samples.count))
    else:
        generator = request.stream(0, "direction")
        flat = torch.randn(samples.dim, dtype=torch.float64, generator=generator)
    length = float(flat.norm())
    return samples.shaped(flat / length if length else flat)


def largest_curvature(problem: Problem, chosen: list[int]) -> float:
    """Return the largest |eigenvalue| of the Hessians of some single samples, by power iteration (from below)."""
    return max(_spectral_norm(_of_sample(problem, sample), sample) for sample in chosen)


def _spectral_norm(problem: Problem, sample: int) -> float:
    slope = Slope(problem)
    vector = torch.randn(len(slope.flat), dtype=torch.float64, generator=stream(sample, "power")).to(slope.flat)
    norm = vector.norm()
    for _ in range(_PRODUCTS):
        vector = slope.product(vector / norm)
        norm = vector.norm()
        if not norm > 0:
            break
    return float(norm)


def _of_sample(problem: Problem, sample: int) -> Problem:
    batch = problem.batch
    rows = slice(sample, sample + 1)
    return replace(problem, batch=Batch(batch.inputs[rows], batch.targets[rows], batch.scored))


def _bound(problem: Problem, request: Request, found: Along, distance: float, at: Places) -> list[Row]:
    sizes = found.curvatures.abs()
    number = min(request.at.config.landscape.curvatures, len(sizes))
    steepest = torch.argsort(sizes, descending=True, stable=True)[:number]
    loss, curvature = float(found.losses.max()), largest_curvature(problem, [int(i) for i in steepest])
    bound = (2 * loss + curvature * distance**2) / (at + 1)
    single = [
        state_row("largest_loss", request, loss),
        state_row("largest_curvature", request, curvature, error=None, estimator="power", num_probes=number),
        state_row("directional_curvature", request, float(sizes.max())),
    ]
    return [*exact_rows("landscape_bound", request, at, bound), *single]


def _agreement(request: Request, predicted: np.ndarray, true: np.ndarray) -> list[Row]:
    compared = {
        "prediction_correlation": rank_correlation(predicted, true),
        "prediction_slope": regression(predicted, true),
    }
    return [
        state_row(name, request, value, error=error, estimator="samples")
        for name, (value, error) in compared.items()
    ]


def _kept(found: Along, at_w: Tensor) -> dict[str, np.ndarray]:
    return {
        "losses_start": _array(found.losses),
        "losses": _array(at_w),
        "slopes": _array(found.slopes),
        "curvatures": _array(found.curvatures),
    }


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
