"""Computes the values of sigma of a grid, and checks grids."""

import math

from hessfig.config.enums import Spacing
from hessfig.config.schema import GridConfig
from hessfig.errors import UserError


def sigma_values(grid: GridConfig) -> list[float]:
    """Return the swept values in ascending order, rounded to 12 significant digits so that they print exactly."""
    if grid.values is not None:
        return sorted(float(v) for v in grid.values)
    if grid.points == 1:
        return [float(grid.low)]
    steps = [i / (grid.points - 1) for i in range(grid.points)]
    if grid.spacing == Spacing.log:
        low = math.log10(grid.low)
        high = math.log10(grid.high)
        raw = [10 ** (low + t * (high - low)) for t in steps]
    else:
        raw = [grid.low + t * (grid.high - grid.low) for t in steps]
    return [float(f"{v:.12g}") for v in raw]


def check_grid(grid: GridConfig) -> None:
    """Raise UserError for an inverted grid, and for equal values: one network would be measured twice."""
    if grid.values is not None:
        return
    if grid.low > grid.high:
        raise UserError(
            "grid.low is above grid.high",
            got=f"{grid.low} > {grid.high}",
            allowed="low <= high",
            remedy="exchange them",
        )
    if len(set(sigma_values(grid))) < grid.points:
        raise UserError(
            "grid.points: two values of sigma are equal, to 12 digits",
            got=f"{grid.points} points from {grid.low} to {grid.high}",
            allowed="values that differ",
            remedy="grid.points=1, or a wider grid",
        )
