"""Quantity norm_sharpness: a lower bound, by searches, on the largest curvature in the unit balls of norms."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.gradients import LossGradient, WholeHessian
from hessfig.curvature.problem import Objective
from hessfig.curvature.spectral.extremes import End
from hessfig.measurements.eigenvalues import extremes_of, outer_estimate
from hessfig.measurements.quantity import (
    Estimate,
    Measured,
    Request,
    Row,
    exact,
    state_row,
    state_rows,
)
from hessfig.measurements.stability import coming_rate
from hessfig.states.training.norm_descent import length, steepest
from hessfig.terms import Block, Group, Part, StepNorm

# Largest number of iterations of a search, and the relative gap at which it ends.
_ITERATIONS, _GAP = (500, 1e-8)
Vector = Float[Tensor, " n"]


def norm_sharpness(objective: Objective, request: Request) -> Measured:
    """Return max d.Hd over ||d|| <= 1 for several norms (generalised sharpness, arXiv 2603.05002), as a lower bound.

    H is the Hessian of all parameters. `euclidean_sharpness` is its largest eigenvalue,
    with the residual as error. The other numbers are the best results of conditional
    gradient searches from the steepest direction, the eigenvector and directions.starts
    random directions. A search ends at a stationary point, where max (s - d).Hd over
    the ball is below 1e-8 of d.Hd (1e-5 in float32); a search that is cut off is
    `not_converged`. The distance to a higher maximum is unknown, so that no error is
    given. `NAME_steepest_curvature` is d.Hd for the steepest direction itself.
    `sharpness_edge` is 2 / eta of the next update of a training, the threshold of
    steepest descent in any norm.
    """
    search = _Search(objective, request)
    rows: list[Row] = []
    for norm in StepNorm:
        rows += search.rows(norm)
    data = request.at.config.task.data
    if request.at.moments is not None or data.facts.is_trainable:
        edge = 2 / coming_rate(request.at)
        rows.append(state_row("sharpness_edge", request, edge))
    return Measured(rows)


class _Search:
    """Searches for the largest curvature of the whole Hessian in the unit ball of a norm."""

    def __init__(self, objective: Objective, request: Request) -> None:
        self._request, self._slope = request, LossGradient(objective)
        self._shapes = [slope.shape for slope in self._slope.gradient.values()]
        self._hessian = WholeHessian(self._slope)
        self._generator = request.stream(0, Group.all.value)
        self._largest = extremes_of(
            self._hessian, End.largest, request.spectrum, self._generator
        )

    def rows(self, norm: StepNorm) -> list[Row]:
        """Return rows with the sharpness of a norm and the curvature along its steepest direction."""
        steep, _ = self._steepest(self._slope.flat.double().cpu(), norm)
        along = exact(float(steep @ self._product(steep)), "products")
        if norm == StepNorm.euclidean:
            sharpness = outer_estimate(self._largest)
        else:
            sharpness = self._best(norm, steep)
        numbers = {f"{norm}_sharpness": sharpness, f"{norm}_steepest_curvature": along}
        return state_rows(
            self._request,
            numbers,
            block=Block(0, Group.all.value, Group.all.value),
            part=Part.H,
        )

    def _best(self, norm: StepNorm, steep: Vector) -> Estimate:
        count = self._request.at.config.directions.starts
        vector = self._largest.vectors[:, 0].double().cpu()
        drawn = torch.randn(
            count, self._hessian.dim, dtype=torch.float64, generator=self._generator
        )
        climbs = [self._climbed(start, norm) for start in (steep, vector, *drawn)]
        values = [value for value, _ in climbs]
        best = max(values)
        is_cut = not next(done for value, done in climbs if value == best)
        return Estimate(best, math.nan, 0, "conditional gradient", is_unreliable=is_cut)

    def _climbed(self, start: Vector, norm: StepNorm) -> tuple[float, bool]:
        """Return d.Hd at the end of a search from the direction `start`, and whether the search converged.

        On the line from d to the steepest ascent s in the ball, the curvature is a + b
        t + c t^2 with b >= 0. The search takes the best t in [0, 1], so that the
        curvature never decreases.
        """
        size = length(self._shaped(start), norm)
        at = start / size if size else start
        image = self._product(at)
        for _ in range(_ITERATIONS):
            value = float(at @ image)
            to, top = self._steepest(image, norm)
            gap = top - value  # half of the slope b towards `to`
            if not gap > max(_GAP, self._hessian.rounding) * abs(value):
                return value, True
            other = self._product(to)
            bend = float((to - at) @ (other - image))
            t = 1.0 if gap + bend >= 0 else -gap / bend
            at, image = at + t * (to - at), image + t * (other - image)
        return float(at @ image), False

    def _product(self, vector: Vector) -> Vector:
        return self._hessian.matmat(vector[:, None])[:, 0]

    def _steepest(self, slope: Vector, norm: StepNorm) -> tuple[Vector, float]:
        pieces, dual = steepest(self._shaped(slope), norm)
        return torch.cat([piece.flatten() for piece in pieces]), dual

    def _shaped(self, vector: Vector) -> list[Tensor]:
        pieces = vector.split([shape.numel() for shape in self._shapes])
        return [
            piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)
        ]
