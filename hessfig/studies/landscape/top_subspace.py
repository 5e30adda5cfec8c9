"""Quantity landscape_subspace: one more sample's change of the loss in the top eigenspace of H, and in all weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.gradients import LossGradient, Samples, WholeHessian
from hessfig.curvature.problem import Objective, standard_error
from hessfig.curvature.spectral.extremes import End, Extremes
from hessfig.measurements.eigenvalues import extremes_of
from hessfig.measurements.quantity import (
    Estimate,
    Measured,
    Request,
    Row,
    exact,
    state_row,
    state_rows,
)
from hessfig.studies.landscape.losses_of_samples import POINTS, samples_of
from hessfig.terms import Group

_CLOSED = "closed form"
Columns = Float[Tensor, "n k"]


def landscape_subspace(objective: Objective, request: Request) -> Measured:
    """Return means of v(w), the variance over samples of their losses at w, over points w = w* + s z, z ~ N(0, I).

    Over orders of the samples the mean of (L_{k+1}(w) - L_k(w))^2 is exactly v(w) (1 +
    1/k) / (k + 1)^2 (see landscape.null_difference): Delta_2 is a mean of v but for a
    factor of k alone. `landscape_start`: v(w*). `landscape_full`: z in all weights.
    `landscape_top`, `index` D: z in the span of the eigenvectors of the D largest
    eigenvalues of the samples' Hessian (arXiv 2604.14870, equation 4).
    `landscape_full_quadratic`, `landscape_top_quadratic`, `landscape_random_quadratic`:
    of second-order expansions of the losses; for D directions in closed form (equation
    15), `random` ones being orthonormal. `landscape_top_share`,
    `landscape_random_share`: what D directions add to v(w*) over what all weights add
    to it, both of expansions. Points are landscape.draws pairs z, -z, over which the
    errors are. What rests on eigenvectors that have not converged is `not_converged`.
    """
    samples = samples_of(objective, request)
    settings = request.at.config.landscape
    extremes = _top(samples.problem, samples.count, request)
    drawn = request.stream(0, POINTS)
    top = extremes.vectors.double().cpu()
    most = extremes.vectors.shape[1]
    points = torch.randn(
        samples.dim, settings.draws, dtype=torch.float64, generator=drawn
    )
    inside = torch.randn(most, settings.draws, dtype=torch.float64, generator=drawn)
    random = torch.linalg.qr(
        torch.randn(samples.dim, most, dtype=torch.float64, generator=drawn)
    ).Q
    start = float(samples.losses().double().var())
    full = _mean(_measured(samples, points, settings.spread))
    bent = _mean(_expanded(samples, points, settings.spread))
    numbers = {
        "landscape_start": exact(start),
        "landscape_full": full,
        "landscape_full_quadratic": bent,
    }
    rows = state_rows(request, numbers)
    closed = {
        "top": Expansion.of(samples, top),
        "random": Expansion.of(samples, random),
    }
    for count in settings.dimensions:
        here = _mean(
            _measured(samples, top[:, :count] @ inside[:count], settings.spread)
        )
        rows.append(_row("landscape_top", request, here, count, extremes))
        for name, expansion in closed.items():
            value = expansion.within(count).mean_variance(settings.spread)
            share = (value - start) / (bent.value - start)
            error = abs(share / (bent.value - start)) * bent.error
            ratio = replace(bent, value=share, error=error)
            shown = {"quadratic": exact(value, _CLOSED), "share": ratio}
            for number, estimate in shown.items():
                key = f"landscape_{name}_{number}"
                rows.append(_row(key, request, estimate, count, extremes))
    return Measured(rows)


@dataclass(frozen=True)
class Expansion:
    """The centred l_i, U^T g_i and U^T H_i U of every sample (minus their means), for orthonormal columns U."""

    losses: Float[Tensor, " samples"]
    slopes: Float[Tensor, "samples k"]
    curvatures: Float[Tensor, "samples k k"]

    @classmethod
    def of(cls, samples: Samples, vectors: Columns) -> Expansion:
        """Expand along columns; products of two of them by u.Hv = ((u + v).H(u + v) - u.Hu - v.Hv) / 2."""
        single = [samples.along(samples.shaped(vector)) for vector in vectors.T]
        bent = torch.stack([curve.curvatures.double() for curve in single], dim=1)
        curvatures = torch.diag_embed(bent)
        for i, j in combinations(range(vectors.shape[1]), 2):
            both = samples.along(
                samples.shaped(vectors[:, i] + vectors[:, j])
            ).curvatures.double()
            mixed = (both - bent[:, i] - bent[:, j]) / 2
            curvatures[:, i, j] = curvatures[:, j, i] = mixed
        slopes = torch.stack([curve.slopes.double() for curve in single], dim=1)
        losses = single[0].losses.double()
        return cls(
            losses - losses.mean(dim=0),
            slopes - slopes.mean(dim=0),
            curvatures - curvatures.mean(dim=0),
        )

    def within(self, count: int) -> Expansion:
        """Return the expansion along the first `count` columns."""
        return type(self)(
            self.losses, self.slopes[:, :count], self.curvatures[:, :count, :count]
        )

    def mean_variance(self, spread: float) -> float:
        """Return the mean over z ~ N(0, s^2 I) of the variance over samples of a + c.z + z.Bz / 2.

        By sample a^2 + a s^2 tr B + s^2 |c|^2 + s^4 (2 tr B^2 + (tr B)^2) / 4 (arXiv
        2604.14870, equation 15).
        """
        trace = self.curvatures.diagonal(dim1=1, dim2=2).sum(dim=1)
        square = spread**2
        linear = self.losses * trace + self.slopes.square().sum(dim=1)
        bent = 2 * self.curvatures.square().sum(dim=(1, 2)) + trace.square()
        variances = self.losses.square() + square * linear + square**2 / 4 * bent
        return float(variances.sum()) / (len(variances) - 1)


def _top(objective: Objective, count: int, request: Request) -> Extremes:
    """Return the outermost eigenvectors of the Hessian of the first samples, in every parameter."""
    chosen = replace(objective, batch=objective.batch.samples(slice(count)))
    hessian = WholeHessian(LossGradient(chosen))
    generator = request.stream(0, Group.all.value)
    return extremes_of(
        hessian,
        End.largest,
        request.spectrum,
        generator,
        k=max(request.at.config.landscape.dimensions),
    )


def _measured(samples: Samples, points: Columns, spread: float) -> Iterator[float]:
    """Yield the mean of v at both points of every pair."""
    for shift in map(samples.shaped, points.T):
        yield _mean_variance(
            samples.losses(samples.moved(shift, sign * spread)) for sign in (1, -1)
        )


def _expanded(samples: Samples, points: Columns, spread: float) -> Iterator[float]:
    """Yield the mean of v of the second-order expansions at both points of every pair."""
    for expanded in (samples.along(samples.shaped(point)) for point in points.T):
        middle = expanded.losses.double() + spread**2 / 2 * expanded.curvatures.double()
        slopes = spread * expanded.slopes.double()
        yield _mean_variance([middle + slopes, middle - slopes])


def _mean_variance(ends: Iterable[Tensor]) -> float:
    return sum(float(end.double().var()) for end in ends) / 2


def _mean(values: Iterator[float]) -> Estimate:
    each = torch.tensor(list(values), dtype=torch.float64)
    return Estimate(float(each.mean()), standard_error(each), len(each), POINTS)


def _row(
    name: str, request: Request, estimate: Estimate, count: int, eigenvectors: Extremes
) -> Row:
    is_unreliable = "top" in name and not eigenvectors.converged
    return state_row(
        name, request, replace(estimate, is_unreliable=is_unreliable), index=count
    )
