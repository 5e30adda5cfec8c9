"""The values of sigma a grid stands for."""

from __future__ import annotations

import math

from hessfig.config.choices import Spacing
from hessfig.config.schema import GridConfig


def sigma_values(grid: GridConfig) -> list[float]:
    """Return the swept values in ascending order, rounded to 12 significant digits so that they print exactly."""
    if grid.values is not None:
        return sorted({float(v) for v in grid.values})
    if grid.points == 1:
        return [float(grid.low)]
    steps = [i / (grid.points - 1) for i in range(grid.points)]
    if grid.spacing == Spacing.log:
        low, high = math.log10(grid.low), math.log10(grid.high)
        raw = [10 ** (low + t * (high - low)) for t in steps]
    else:
        raw = [grid.low + t * (grid.high - grid.low) for t in steps]
    return [float(f"{v:.12g}") for v in raw]
