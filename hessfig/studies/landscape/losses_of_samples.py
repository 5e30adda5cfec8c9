"""The loss of the first k samples as k grows: its differences, their averages around the state, its gradient."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hessfig.config.checks import number_of_samples
from hessfig.config.enums import SampleDirection
from hessfig.curvature.gradients import Along, LossGradient, Samples
from hessfig.curvature.losses import no_mean
from hessfig.curvature.problem import Objective
from hessfig.curvature.samples import by_sample, check_alike, sample_weights
from hessfig.errors import UserError
from hessfig.measurements.quantity import (
    Estimate,
    Measured,
    Request,
    Row,
    state_row,
    state_rows,
)
from hessfig.rng import stream

Array = NDArray[np.float64]
Places = NDArray[np.int64]
ORDERS = "orders"
_NEAR = 1e-5  # of the weights of all samples and the divisor of a mean
_PRODUCTS = 30  # number of products of a power iteration
POINTS = "points"


def landscape_difference(objective: Objective, request: Request) -> Measured:
    """Return rows along k of |L_{k+1}(w) - L_k(w)|, and the numbers of single samples that they are made of.

    `landscape_difference` and `landscape_rms`: mean and root mean square over orders of
    the samples, with errors. `landscape_null`: the root mean square that chance gives
    (null_difference). `landscape_bound`: 2 L_max / (k + 1) + M d^2 / (k + 1) (arXiv
    2510.16927, Theorem 7), L_max = `largest_loss` at w*. At w* itself that is all. At a
    distance d: M = `largest_curvature`, the largest spectral norm of H_i at w* among
    the `landscape.curvatures` samples most curved along u, hence a lower bound of the
    theorem's M; `landscape_prediction`: the mean with l_i(w) replaced by l_i + d u.g_i
    + d^2 u.H_i u / 2 at w*; `prediction_correlation` (of ranks) and `prediction_slope`:
    of l_i(w) - l_i(w*) on its prediction.
    """
    samples = samples_of(objective, request)
    settings = request.at.config.landscape
    at = places(settings.first, samples.count - 1, settings.points)
    orders = orders_of(request, samples.count)
    if settings.distance is None:
        losses = samples.losses()
        rows = _all_rows(request, losses, orders, at, float(losses.max()), 0.0)
        return Measured(rows, _kept(losses=losses))
    direction = direction_of(samples, request)
    distance = settings.distance
    expanded = samples.along(direction)
    losses = samples.losses(samples.moved(direction, distance))
    change = distance * expanded.slopes + distance**2 / 2 * expanded.curvatures
    curvature = _curvature_rows(samples.problem, request, expanded)
    term = float(curvature[0]["value"]) * distance**2
    rows = (
        _all_rows(request, losses, orders, at, float(expanded.losses.max()), term)
        + curvature
    )
    predicted = differences(in_orders(expanded.losses + change, orders), at)
    rows += averaged_rows("landscape_prediction", request, at, mean_size(predicted))
    rows += _agreement(request, _array(change), _array(losses - expanded.losses))
    start = {
        "losses_start": expanded.losses,
        "slopes": expanded.slopes,
        "curvatures": expanded.curvatures,
    }
    return Measured(rows, _kept(losses=losses, **start))


def landscape_integrals(objective: Objective, request: Request) -> Measured:
    """Return rows `delta_1` and `delta_2` along k, means over landscape.draws points w and orders of the samples.

    The array `losses` (draws, samples) holds the losses at every point w. Errors are
    standard errors over the points. `delta_2_null` is the mean over w of the squared
    null (see null_difference).
    """
    samples = samples_of(objective, request)
    settings = request.at.config.landscape
    at = places(settings.first, samples.count - 1, settings.points)
    orders = orders_of(request, samples.count)
    generator = request.stream(0, POINTS)
    losses = []
    for _ in range(settings.draws):
        shift = samples.shaped(
            torch.randn(samples.dim, dtype=torch.float64, generator=generator)
        )
        losses.append(samples.losses(samples.moved(shift, settings.spread)))
    kept_losses = torch.stack(losses).double().cpu().numpy()
    numbers: dict[str, list[Array]] = {"delta_1": [], "delta_2": [], "delta_2_null": []}
    for one, kept in zip(losses, kept_losses, strict=True):
        change = differences(in_orders(one, orders), at)
        numbers["delta_1"].append(mean_size(change).value)
        numbers["delta_2"].append((change**2).mean(axis=0))
        numbers["delta_2_null"].append(null_difference(kept, at) ** 2)
    rows = []
    for name, values in numbers.items():
        # One number per point w: the errors are over these.
        mean = mean_size(np.stack(values))
        rows += averaged_rows(
            name, request, at, mean, over=POINTS, number=settings.draws
        )
    return Measured(rows, {"losses": kept_losses})


def stationarity(objective: Objective, request: Request) -> Measured:
    """Return rows along k of |grad L_k(w*)|, up to all samples, and its numbers order by order.

    `stationarity` and `stationarity_rms`: mean and root mean square over orders;
    `stationarity_null`: sd / sqrt(k), what independent gradients of mean zero would
    give; `stationarity_expected`: what random orders of these gradients give, exactly
    (expected_gradient). sd^2 is the summed variance of the gradient's entries over
    samples.
    """
    samples = samples_of(objective, request)
    settings = request.at.config.landscape
    at = places(settings.first, samples.count, settings.points)
    orders = orders_of(request, samples.count)
    lengths = np.stack([_lengths(samples, order, at) for order in orders])
    squares = samples.gradient_lengths()
    mean = float(lengths[0, -1])
    spread = max(float(squares.sum()) - samples.count * mean**2, 0.0) / (
        samples.count - 1
    )
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
    return Measured(
        rows, {"k": at, "lengths": lengths, "squares": squares.cpu().numpy()}
    )


@dataclass(frozen=True)
class Averaged:
    """Means over orders at every k, with their standard errors."""

    value: Array
    error: Array


def places(first: int, last: int, count: int) -> Places:
    """Return at most `count` whole numbers from `first` to `last`, both included, evenly spaced in the logarithm."""
    return np.unique(np.round(np.geomspace(first, last, count)).astype(np.int64))


def differences(losses: Array, at: Places) -> Array:
    """Return L_{k+1} - L_k = (l_{k+1} - L_k) / (k + 1) at the places k, for losses in one order (the last axis)."""
    sums = np.cumsum(losses, axis=-1)
    return (losses[..., at] - sums[..., at - 1] / at) / (at + 1)


def null_difference(losses: Array, at: Places) -> Array:
    """Return the root mean square of L_{k+1} - L_k over random orders of these losses: sd sqrt(1 + 1/k) / (k + 1).

    The result is exact, with sd the root of sum (l_i - L)^2 / (N - 1): the covariances
    of samples drawn without replacement cancel. Independent draws give the same value,
    so that a slope of -1 says nothing about the network.
    """
    return float(np.std(losses, ddof=1)) * np.sqrt(1 + 1 / at) / (at + 1)


def null_gradient(spread: float, at: Places) -> Array:
    """Return sd / sqrt(k): the root mean square of a mean of k independent gradients whose own mean is zero."""
    return spread / np.sqrt(at)


def expected_gradient(length: float, spread: float, number: int, at: Places) -> Array:
    """Return the root mean square of |mean of k of `number` gradients| over random orders, exactly.

    sqrt(|g|^2 + sd^2 (1/k - 1/N)), g their mean and sd^2 = sum |g_i - g|^2 / (N - 1).
    """
    return np.sqrt(length**2 + spread**2 * (1 / at - 1 / number))


def mean_size(values: Array) -> Averaged:
    """Return the mean of |values| over the first axis."""
    return _mean(np.abs(values))


def root_mean_square(values: Array) -> Averaged:
    """Return the root mean square over the first axis, with its error to first order."""
    squares = _mean(np.square(values))
    value = np.sqrt(squares.value)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(value > 0, squares.error / (2 * value), 0.0)
    return Averaged(value, error)


def rank_correlation(one: Array, other: Array) -> tuple[float, float]:
    """Return Spearman's correlation and its standard error sqrt((1 - r^2) / (n - 2)); nan where one is constant."""
    if min(np.ptp(one), np.ptp(other)) == 0 or len(one) < 3:
        return float("nan"), float("nan")
    correlation = float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])
    return correlation, float(np.sqrt(max(1 - correlation**2, 0.0) / (len(one) - 2)))


def _ranks(values: Array) -> Array:
    order = np.argsort(values, kind="stable")
    return np.argsort(order, kind="stable").astype(float)


def regression(predicted: Array, true: Array) -> tuple[float, float]:
    """Return the slope of true on predicted through their means, and its standard error; 1 for a perfect prediction."""
    x, y = predicted - predicted.mean(), true - true.mean()
    if float(x @ x) == 0 or len(x) < 3:
        return float("nan"), float("nan")
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))


def _mean(values: Array) -> Averaged:
    return Averaged(
        values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    )


def samples_of(objective: Objective, request: Request) -> Samples:
    """Return the samples whose landscape is measured.

    Raises UserError for several batches, for samples with different weights or that
    depend on each other, and for a loss that is a sum over them.
    """
    if objective.more:
        raise UserError(
            "the landscape is of one batch, whose samples have an order",
            got=f"{1 + len(objective.more)} batches",
            allowed="inputs and targets that are tensors",
            remedy="concatenate the batches; those of model=huggingface are one with a larger memory=...",
        )
    apart = by_sample(objective)
    count = number_of_samples(request.at.config, size=len(objective.batch.inputs))
    check_alike(objective)
    share = sample_weights(objective, objective.batch)
    if not math.isclose(float(share.weights.sum()), share.divisor, rel_tol=_NEAR):
        raise no_mean(objective.loss)
    return Samples(apart, count)


def orders_of(request: Request, count: int) -> list[torch.Tensor]:
    """Return the orders of the samples from the cell's own stream; a larger number of orders keeps the first ones."""
    generator = request.stream(0, ORDERS)
    number = request.at.config.landscape.permutations
    return [torch.randperm(count, generator=generator) for _ in range(number)]


def in_orders(values: torch.Tensor, orders: Iterable[torch.Tensor]) -> Array:
    """Return the numbers of the samples with one row per order."""
    numbers = values.detach().double().cpu().numpy()
    return np.stack([numbers[order.numpy()] for order in orders])


def averaged_rows(
    name: str,
    request: Request,
    at: Places,
    averaged: Averaged,
    *,
    over: str = ORDERS,
    number: int | None = None,
) -> list[Row]:
    """Return means as rows with `index` k. Errors are over `number` values of `over` (by default, all orders)."""
    count = request.at.config.landscape.permutations if number is None else number
    numbers = zip(at, averaged.value, averaged.error, strict=True)
    rows = []
    for k, value, error in numbers:
        estimate = Estimate(float(value), float(error), count, over)
        rows.append(state_row(name, request, estimate, index=int(k)))
    return rows


def exact_rows(name: str, request: Request, at: Places, values: Array) -> list[Row]:
    """Return numbers that do not depend on an order of the samples as rows with `index` k."""
    return [
        state_row(name, request, float(value), index=int(k))
        for k, value in zip(at, values, strict=True)
    ]


def direction_of(samples: Samples, request: Request) -> Mapping[str, Tensor]:
    """Return a unit vector: random from the cell's own stream (the same at every distance), or along the gradient.

    If the gradient vanishes, return the zero vector.
    """
    if request.at.config.landscape.direction == SampleDirection.gradient:
        flat = samples.summed_gradient(torch.arange(samples.count))
    else:
        generator = request.stream(0, "direction")
        flat = torch.randn(samples.dim, dtype=torch.float64, generator=generator)
    length = float(flat.norm())
    if length:
        flat = flat / length
    return samples.shaped(flat)


def largest_curvature(objective: Objective, chosen: list[int]) -> float:
    """Return a lower bound, by power iteration, on the largest |eigenvalue| of the Hessians of single samples."""
    return max(_spectral_norm(objective, sample) for sample in chosen)


def _spectral_norm(objective: Objective, sample: int) -> float:
    slope = LossGradient(
        replace(objective, batch=objective.batch.samples(slice(sample, sample + 1)))
    )
    vector = torch.randn(
        len(slope.flat), dtype=torch.float64, generator=stream(sample, "power")
    ).to(slope.flat)
    norm = vector.norm()
    for _ in range(_PRODUCTS):
        vector = slope.product(vector / norm)
        norm = vector.norm()
        if not norm > 0:
            break
    return float(norm)


def _all_rows(
    request: Request,
    losses: Tensor,
    orders: list[Tensor],
    at: Places,
    largest: float,
    term: float,
) -> list[Row]:
    """Return the rows that exist at every distance; `largest` is L_max, `term` is M d^2."""
    true = differences(in_orders(losses, orders), at)
    return [
        *averaged_rows("landscape_difference", request, at, mean_size(true)),
        *averaged_rows("landscape_rms", request, at, root_mean_square(true)),
        *exact_rows("landscape_null", request, at, null_difference(_array(losses), at)),
        *exact_rows("landscape_bound", request, at, (2 * largest + term) / (at + 1)),
        state_row("largest_loss", request, largest),
    ]


def _curvature_rows(
    objective: Objective, request: Request, expanded: Along
) -> list[Row]:
    sizes = expanded.curvatures.abs()
    number = min(request.at.config.landscape.curvatures, len(sizes))
    chosen = torch.argsort(sizes, descending=True, stable=True)[:number]
    norm = Estimate(
        largest_curvature(objective, chosen.tolist()), np.nan, number, "power"
    )
    return state_rows(
        request,
        {"largest_curvature": norm, "directional_curvature": float(sizes.max())},
    )


def _agreement(request: Request, predicted: np.ndarray, true: np.ndarray) -> list[Row]:
    correlation = Estimate(*rank_correlation(predicted, true), 0, "samples")
    slope = Estimate(*regression(predicted, true), 0, "samples")
    return state_rows(
        request, {"prediction_correlation": correlation, "prediction_slope": slope}
    )


def _kept(**numbers: Tensor) -> dict[str, np.ndarray]:
    return {name: _array(values) for name, values in numbers.items()}


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


def _lengths(samples: Samples, order: torch.Tensor, at: Places) -> Array:
    """Return |grad L_k| at the places k of one order; the last place is all samples."""
    pieces = torch.tensor_split(order, [int(k) for k in at[:-1]])
    sums = accumulate(samples.summed_gradient(piece) for piece in pieces)
    return np.array(
        [float(total.norm()) / k for total, k in zip(sums, at, strict=True)]
    )
