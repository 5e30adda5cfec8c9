"""The loss along directions and in a plane, with its second-order expansion; directions counted by curvature."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from hessfig.config.enums import SliceDirection
from hessfig.curvature.problem import Objective
from hessfig.curvature.spectral.extremes import End
from hessfig.measurements.quantity import (
    Arrays,
    Estimate,
    Measured,
    Request,
    Row,
    state_row,
    state_rows,
)
from hessfig.measurements.requirements import has_all_eigenvectors
from hessfig.studies.directions.loss_surface import ExpansionRule, LossPoint, Surface
from hessfig.terms import Group

Array = NDArray[np.float64]
# Reach: multiple of the farther departure, and the distance if no side departs.
_BEYOND, _UNBOUNDED = (1.5, 1.0)
_ANGLES = 64  # number of rays in a plane along which departures are searched


def slices(objective: Objective, request: Request) -> Measured:
    """Return slope g.u, curvature u.H u and departure of the expansion for every direction u; counts of directions.

    Directions have unit length over all weights and point downhill (g.u <= 0); their
    eigenvectors are those of H of the whole network. P(t) = L + t g.u + t^2 u.H u / 2
    departs from L(t) as ExpansionRule says; `index` 1 is downhill, 2 uphill, the error
    half a bracket, and infinite: not within a distance of 100. `convex_directions`,
    `flat_directions` and `concave_directions` count the eigenvalues above, within and
    below spectrum.cut times the largest in size, for networks whose Hessian is
    decomposed. Arrays: `rays`, and `distances`, `losses`, `expansions` (rays, points)
    of each; of the plane `plane_rays`, `plane_places` (2, points), `plane_losses` and
    `plane_expansions` (points, points) with the second direction along rows, and
    `plane_edge` (2, angles), where the expansion departs along rays from the state
    (NaN: nowhere).
    """
    surface = Surface(objective, request.model, request.estimator.products)
    axes = _Axes(surface, request)
    settings = request.at.config.directions
    lines = {
        ray: _Line(axes, ray)
        for ray in dict.fromkeys([*settings.along, *settings.plane])
    }
    rows: list[Row] = []
    for ray in settings.along:
        rows += lines[ray].rows(request)
    drawn = [lines[ray].drawn(settings.points) for ray in settings.along]
    arrays = {name: np.stack([line[name] for line in drawn]) for name in drawn[0]}
    plane = _Plane(axes, [lines[ray] for ray in settings.plane])
    names = {
        "rays": [*map(str, settings.along)],
        "plane_rays": [*map(str, settings.plane)],
    }
    return Measured(
        rows + axes.counted(), {**names, **arrays, **plane.drawn(settings.points)}
    )


class _Axes:
    """The directions at one state; each is computed on first use."""

    def __init__(self, surface: Surface, request: Request) -> None:
        self.surface, self.request = surface, request
        settings = request.at.config.directions
        self.rule = ExpansionRule(settings.departure, surface.rounding, surface.size)

    @cached_property
    def here(self) -> LossPoint:
        return self.surface.at(self.surface.start)

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor] | None:
        """All eigenvalues in ascending order with their vectors; None if the network is too large or not finite."""
        if not has_all_eigenvectors(self.surface.dim):
            return None
        matrix = self.surface.hessian(self.surface.start)
        if bool(matrix.isfinite().all()):
            return tuple(torch.linalg.eigh(matrix))
        return None

    def direction(self, ray: SliceDirection) -> Float[Tensor, " n"]:
        """Return a unit vector that points downhill, or the zero vector for a gradient that vanishes."""
        direction = self._drawn(ray)
        length = float(direction.norm())
        unit = direction / length if length else direction
        return -unit if float(self.here.gradient @ unit) > 0 else unit

    def counted(self) -> list[Row]:
        """Return how many eigenvalues are positive, zero and negative."""
        if self.spectrum is None:
            return []
        values = self.spectrum[0]
        cut = self.request.spectrum.cut * float(values.abs().max())
        counts = {
            "convex": values > cut,
            "flat": values.abs() <= cut,
            "concave": values < -cut,
        }
        return state_rows(
            self.request,
            {
                f"{name}_directions": float(chosen.sum())
                for name, chosen in counts.items()
            },
        )

    def _drawn(self, ray: SliceDirection) -> Tensor:
        if ray == SliceDirection.gradient:
            return self.here.gradient
        if ray == SliceDirection.random:
            return torch.randn(
                self.surface.dim,
                dtype=torch.float64,
                generator=self.request.stream(0, "random"),
            )
        if self.spectrum is not None:
            return self.spectrum[1][
                :, _place(ray, self.spectrum[0], self.request.spectrum.cut)
            ]
        if has_all_eigenvectors(self.surface.dim):  # not finite
            return torch.full_like(self.surface.start, torch.nan)
        generator = self.request.stream(0, Group.all.value)
        return (
            self.surface.extreme(End(ray.value), self.request.spectrum, generator)
            .vectors[:, 0]
            .double()
            .cpu()
        )


def _place(ray: SliceDirection, values: Tensor, cut: float) -> int:
    """Return the position of a ray's eigenvalue in ascending order; `bulk` is the median by size of those not flat."""
    if ray != SliceDirection.bulk:
        return len(values) - 1 if ray == SliceDirection.largest else 0
    order = values.abs().argsort(stable=True)
    bent = order[values.abs()[order] > cut * values.abs().max()]
    return int(bent[len(bent) // 2]) if len(bent) else 0


class _Line:
    """The loss and its expansion along one direction."""

    def __init__(self, axes: _Axes, ray: SliceDirection) -> None:
        self.axes, self.ray, self.unit = axes, ray, axes.direction(ray)
        self.slope = float(axes.here.gradient @ self.unit)
        self.curvature = float(self.unit @ axes.here.product(self.unit))

    @cached_property
    def departures(self) -> list[tuple[float, float]]:
        """Distance of the departure and half of its bracket, downhill and uphill."""
        rule = self.axes.rule
        downhill = rule.departure(self.loss, self.expansion)
        return [
            downhill,
            rule.departure(lambda t: self.loss(-t), lambda t: self.expansion(-t)),
        ]

    @property
    def reach(self) -> float:
        """The largest distance of the slice from the state."""
        asked = self.axes.request.at.config.directions.reach
        ends = [end for end, _ in self.departures]
        finite = [end for end in ends if np.isfinite(end)]
        return asked or (_BEYOND * max(finite) if finite else _UNBOUNDED)

    def loss(self, t: float) -> float:
        return self.axes.surface.loss(self.axes.surface.start + t * self.unit)

    def expansion(self, t: float) -> float:
        return self.axes.here.loss + t * self.slope + t**2 / 2 * self.curvature

    def rows(self, request: Request) -> list[Row]:
        """Return slope, curvature and both departures."""
        name = f"{self.ray}_ray"
        numbers = {f"{name}_slope": self.slope, f"{name}_curvature": self.curvature}
        rows = state_rows(request, numbers)
        for side, (value, error) in enumerate(self.departures, 1):
            departure = Estimate(value, error, 0, "losses")
            rows.append(state_row(f"{name}_departure", request, departure, index=side))
        return rows

    def drawn(self, points: int) -> dict[str, Array]:
        """Return distances from -reach to reach, and the loss and its expansion there."""
        places = np.linspace(-self.reach, self.reach, points)
        return {
            "distances": places,
            "losses": np.array([self.loss(t) for t in places.tolist()]),
            "expansions": np.array([self.expansion(t) for t in places.tolist()]),
        }


class _Plane:
    """The loss and its expansion in the plane of two directions, the second one made orthogonal to the first."""

    def __init__(self, axes: _Axes, lines: Sequence[_Line]) -> None:
        first, second = (line.unit for line in lines)
        rest = second - (second @ first) * first
        self.axes = axes
        self.reaches = [line.reach for line in lines]
        self.basis = torch.stack([first, rest / rest.norm()], dim=1)
        self.gradient = self.basis.T @ axes.here.gradient
        self.hessian = self.basis.T @ torch.stack(
            [axes.here.product(vector) for vector in self.basis.T], dim=1
        )

    def loss(self, at: Array) -> float:
        return self.axes.surface.loss(
            self.axes.surface.start + self.basis @ torch.from_numpy(at)
        )

    def expansion(self, at: Array) -> float:
        offset = torch.from_numpy(at)
        return self.axes.here.loss + float(
            self.gradient @ offset + offset @ self.hessian @ offset / 2
        )

    def drawn(self, points: int) -> Arrays:
        """Return the arrays of the plane."""
        x, y = (np.linspace(-reach, reach, points) for reach in self.reaches)
        grid = np.stack(np.meshgrid(x, y), axis=-1)
        losses = np.apply_along_axis(self.loss, -1, grid)
        expansions = np.apply_along_axis(self.expansion, -1, grid)
        angles = 2 * np.pi * np.arange(_ANGLES) / _ANGLES
        ways = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array(
            self.reaches
        )
        edge = np.stack([self._edge(way) for way in ways], axis=1)
        named = {
            "places": np.stack([x, y]),
            "losses": losses,
            "expansions": expansions,
            "edge": edge,
        }
        return {f"plane_{name}": array for name, array in named.items()}

    def _edge(self, way: Array) -> Array:
        """Return the place along a ray at which the expansion departs; NaN where it does not."""
        t, _ = self.axes.rule.departure(
            lambda t: self.loss(t * way), lambda t: self.expansion(t * way)
        )
        if not np.isfinite(t):
            t = np.nan
        return t * way
