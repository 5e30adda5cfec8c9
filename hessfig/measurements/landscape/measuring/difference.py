"""Differences of losses of k + 1 and k samples, from numbers of single samples: the rest is arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hessfig.config import Direction
from hessfig.curvature.gradients import Along, Samples, Slope
from hessfig.curvature.problem import Problem
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

    `landscape_difference` and `landscape_rms`: mean and root mean square over orders of the samples, with errors.
    `landscape_null`: the root mean square that chance gives (orders.null_difference). `landscape_bound`:
    2 L_max / (k + 1) + M d^2 / (k + 1) (arXiv 2510.16927, Theorem 7), L_max = `largest_loss` at w*. At w* itself
    that is all. At a distance d: M = `largest_curvature`, the largest spectral norm of H_i at w* among the
    `landscape.curvatures` samples most curved along u, hence a lower bound of the theorem's M;
    `landscape_prediction`: the mean with l_i(w) replaced by l_i + d u.g_i + d^2 u.H_i u / 2 at w*;
    `prediction_correlation` (of ranks) and `prediction_slope`: of l_i(w) - l_i(w*) on its prediction.
    """
    samples, settings = samples_of(problem, request), request.at.config.landscape
    at, orders = places(settings.first, samples.count - 1, settings.points), orders_of(request, samples.count)
    if settings.distance is None:
        losses = samples.losses()
        return Measured(_rows(request, losses, orders, at, _loss_row(request, losses), 0.0), _kept(losses=losses))
    direction, distance = direction_of(samples, request), settings.distance
    found, losses = samples.along(direction), samples.losses(samples.moved(direction, distance))
    change = distance * found.slopes + distance**2 / 2 * found.curvatures
    curvature = _curvature_rows(problem, request, found)
    single, term = _loss_row(request, found.losses), float(curvature[0]["value"]) * distance**2
    rows = _rows(request, losses, orders, at, single, term) + curvature
    predicted = differences(in_orders(found.losses + change, orders), at)
    rows += averaged_rows("landscape_prediction", request, at, mean_size(predicted))
    rows += _agreement(request, _array(change), _array(losses - found.losses))
    start = {"losses_start": found.losses, "slopes": found.slopes, "curvatures": found.curvatures}
    return Measured(rows, _kept(losses=losses, **start))


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


def _rows(request: Request, losses: Tensor, orders: list[Tensor], at: Places, largest: Row, term: float) -> list[Row]:
    """Return what every distance has; `largest` holds L_max, `term` is M d^2."""
    true = differences(in_orders(losses, orders), at)
    return [
        *averaged_rows("landscape_difference", request, at, mean_size(true)),
        *averaged_rows("landscape_rms", request, at, root_mean_square(true)),
        *exact_rows("landscape_null", request, at, null_difference(_array(losses), at)),
        *exact_rows("landscape_bound", request, at, (2 * largest["value"] + term) / (at + 1)),
        largest,
    ]


def _loss_row(request: Request, losses: Tensor) -> Row:
    return state_row("largest_loss", request, float(losses.max()))


def _curvature_rows(problem: Problem, request: Request, found: Along) -> list[Row]:
    sizes = found.curvatures.abs()
    number = min(request.at.config.landscape.curvatures, len(sizes))
    chosen = torch.argsort(sizes, descending=True, stable=True)[:number]
    norm = largest_curvature(problem, [int(sample) for sample in chosen])
    return [
        state_row("largest_curvature", request, norm, error=None, estimator="power", num_probes=number),
        state_row("directional_curvature", request, float(sizes.max())),
    ]


def _agreement(request: Request, predicted: np.ndarray, true: np.ndarray) -> list[Row]:
    compared = {
        "prediction_correlation": rank_correlation(predicted, true),
        "prediction_slope": regression(predicted, true),
    }
    return [
        state_row(name, request, value, error=error, estimator="samples") for name, (value, error) in compared.items()
    ]


def _kept(**numbers: Tensor) -> dict[str, np.ndarray]:
    return {name: _array(values) for name, values in numbers.items()}


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
