"""Fit windows: closed intervals of the axis (sigma, as a rule) whose ends may be open."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hessfig.errors import UserError

Window = tuple[float | None, float | None]
WHOLE: Window = (None, None)


def within(x: Any, window: Window) -> Any:
    """Return whether x (number, array or column; positive) lies in the window, up to rounding."""
    low, high = window
    above = x >= (0.0 if low is None else low * (1 - 1e-9))
    return above & (x <= (math.inf if high is None else high * (1 + 1e-9)))


def label(window: Window, symbol: str = "σ") -> str:
    """Return the window in words that fit a figure, e.g. 'σ ≤ 0.1'; `symbol` is the axis'."""
    low, high = window
    if low is None and high is None:
        return f"all {symbol}"
    if low is None:
        return f"{symbol} ≤ {high:g}"
    return f"{symbol} ≥ {low:g}" if high is None else f"{low:g} ≤ {symbol} ≤ {high:g}"


def as_window(low: float, high: float) -> Window:
    """Return the window of a row of slopes.csv, where nan stands for an open end."""
    return (None if math.isnan(low) else low, None if math.isnan(high) else high)


def check_windows(windows: Sequence[Window]) -> None:
    """Raise UserError for windows that hold no interval."""
    bad = [w for w in windows if len(w) != 2 or (None not in w and not w[0] < w[1])]  # type: ignore[operator]
    if bad or not windows:
        raise UserError(
            "sweep.windows: a fit needs windows [low, high]",
            got=[list(w) for w in bad] or "none",
            allowed="pairs with low < high; null leaves an end open",
            remedy="for example sweep.windows=[[null,1.0]]",
        )
