"""Computes the values of sigma of a grid, and checks grids."""

import math
from itertools import pairwise

from hessfig.config.enums import Spacing
from hessfig.config.schema import GridConfig
from hessfig.errors import UserError

MOST_POINTS = 100_000


def sigma_values(grid: GridConfig) -> list[float]:
    """Return the swept values in ascending order, rounded to 12 significant digits so that they print exactly."""
    if grid.values is not None:
        return sorted(float(v) for v in grid.values)
    if grid.points == 1:
        return [float(grid.low)]
    steps = [i / (grid.points - 1) for i in range(grid.points)]
    if grid.spacing == Spacing.log:
        low, high = math.log10(grid.low), math.log10(grid.high)
        raw = [10 ** (low + t * (high - low)) for t in steps]
    else:
        raw = [grid.low + t * (grid.high - grid.low) for t in steps]
    return [float(f"{v:.12g}") for v in raw]


def check_grid(grid: GridConfig) -> None:
    """Raise UserError for a grid that is empty or huge, and for values that are not scales or equal each other."""
    _check_number(grid)
    ends = {} if grid.values else {"grid.low": grid.low, "grid.high": grid.high}
    for key, value in [*ends.items(), *(("grid.values", v) for v in grid.values or [])]:
        if not (math.isfinite(value) and value > 0):
            raise UserError(
                f"{key}: sigma must be positive and finite", got=value, allowed="sigma > 0", remedy="for example 0.01"
            )
    if grid.values is None and grid.low > grid.high:
        raise UserError(
            "grid.low is above grid.high",
            got=f"{grid.low} > {grid.high}",
            allowed="low <= high",
            remedy="exchange them",
        )
    _check_distinct(grid)


def _check_number(grid: GridConfig) -> None:
    if grid.values is not None and not grid.values:
        raise UserError(
            "grid.values is empty", got="[]", allowed="at least one sigma > 0", remedy="for example grid.values=[0.1,1]"
        )
    if grid.values is None and not 1 <= grid.points <= MOST_POINTS:
        raise UserError(
            "grid.points: the grid is empty" if grid.points < 1 else "grid.points: the grid is too large",
            got=grid.points,
            allowed=f"a whole number >= 1, and at most {MOST_POINTS}",
            remedy="grid.points=20",
        )


def _check_distinct(grid: GridConfig) -> None:
    """Raise UserError for equal values: one network would be measured twice, under the same sigma."""
    values = sigma_values(grid)
    twice = next((low for low, high in pairwise(values) if low == high), None)
    if twice is not None:
        by_list = grid.values is not None
        raise UserError(
            f"{'grid.values' if by_list else 'grid.points'}: two values of sigma are equal, to 12 digits",
            got=f"{twice} twice" if by_list else f"{grid.points} points from {grid.low} to {grid.high}",
            allowed="values that differ",
            remedy="name every value once" if by_list else "grid.points=1, or a wider grid",
        )
