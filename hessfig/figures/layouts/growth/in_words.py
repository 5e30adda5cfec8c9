"""What growth sheets print of their curves: slopes on the windows, or mean levels in them; and how they were found."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hessfig.analysis.slopes.bootstrap import ARITHMETIC, MIN_POINTS
from hessfig.analysis.windows import Window, as_window, label
from hessfig.figures.parts.measured import LEVEL, Measured, windows_in_words
from hessfig.figures.parts.numbers import in_digits
from hessfig.figures.parts.panels import fitted, positive, why_empty

DAGGER = "†"  # a slope on another window than the first, which the note names


def how(measured: Measured) -> str:
    """Return the note of a growth sheet: how the numbers were measured, and how what is printed was found."""
    if measured.said == LEVEL:
        means = "arithmetic" if measured.average == ARITHMETIC else "geometric"
        windows = windows_in_words(measured.windows, measured.axis)
        return f"{measured.how()} Levels: {means} mean over {windows}; ± standard error over seeds."
    other = next(
        (
            window
            for window in map(_window, _rows(measured.telling_slopes()))
            if window != measured.windows[0]
        ),
        None,
    )
    dagger = (
        f" {DAGGER}: {label(other, measured.axis.symbol)}." if other and len(measured.layers()) > 1 else ""
    )
    return f"{measured.how()} {slope_words(measured)}{dagger}"


def slope_words(measured: Measured) -> str:
    """Return how slopes were found."""
    means = "" if measured.average == ARITHMETIC else " of geometric means"
    windows = windows_in_words(measured.windows, measured.axis)
    return f"Slopes: least squares{means} in log-log, {windows}; ± bootstrap over seeds."


def window_words(measured: Measured) -> list[str]:
    """Return 'slope ± error' (or the level) of a single curve on each window."""
    rows = _rows(measured.levels if measured.said == LEVEL else measured.slopes)
    if len(rows) == 1 and rows[0].num_points >= MIN_POINTS:
        return [f"{measured.said} {_number(rows[0], measured)}"]
    return [f"{label(_window(row), measured.axis.symbol)}: {_number(row, measured)}" for row in rows]


def layer_words(measured: Measured, layer: int) -> str:
    """Return the layer and its telling slope (or its level in the first window)."""
    if not positive(measured.curves).any():
        return f"{layer}: {why_empty(measured)}"
    telling = measured.levels if measured.said == LEVEL else measured.telling_slopes()
    row = _rows(telling)[0]
    return f"{layer}: {_number(row, measured)}{DAGGER * (_window(row) != measured.windows[0])}"


def _number(row: Any, measured: Measured) -> str:
    if measured.said == LEVEL:
        return in_digits(row.level, row.level_se)
    return fitted(row.slope, row.slope_se)


def _window(row: Any) -> Window:
    return as_window(row.window_low, row.window_high)


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())
