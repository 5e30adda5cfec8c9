"""Power laws y = c x^p by least squares in logarithms, and those of the points bench_scaling.py measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import linear_regression
from typing import Any

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient x^exponent between `low` and `high`; the error is that of the regression, None for two points."""

    coefficient: float
    exponent: float
    standard_error: float | None
    low: float
    high: float


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Fit a straight line to log y against log x."""
    u, v = [math.log(x) for x in xs], [math.log(y) for y in ys]
    line = linear_regression(u, v)
    residual = sum((b - line.intercept - line.slope * a) ** 2 for a, b in zip(u, v, strict=True))
    spread = sum((a - sum(u) / len(u)) ** 2 for a in u)
    error = math.sqrt(residual / (len(u) - 2) / spread) if len(u) > 2 else None
    return PowerLaw(math.exp(line.intercept), line.slope, error, min(xs), max(xs))


def upper_half(rows: Rows) -> Rows:
    """Return the rows with the larger x, the middle (of an even number, both) included; three at least."""
    return sorted(rows, key=lambda row: row["x"])[-max(3, len(rows) // 2 + 1) :]


def fits(rows: Rows) -> Rows:
    """Return a power law for every axis, engine and clock with three points or more in its upper half."""
    found = []
    for axis, engine in dict.fromkeys((row["axis"], row["engine"]) for row in rows):
        series = [row for row in rows if (row["axis"], row["engine"]) == (axis, engine)]
        upper = upper_half(series)
        for clock in ("cpu_seconds", "seconds") if len(upper) > 2 else ():
            law = fit_power_law([row["x"] for row in upper], [row[clock] for row in upper])
            found.append({"axis": axis, "engine": engine, "clock": clock, **asdict(law)})
    return found
