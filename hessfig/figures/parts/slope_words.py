"""Slopes and levels in words: the text in panels, and the sentences of notes about the fits."""

import math
from collections.abc import Sequence
from typing import Any

from pandas import DataFrame

from hessfig.analysis.axis import Axis
from hessfig.analysis.slopes.fit import ARITHMETIC, MIN_POINTS
from hessfig.analysis.slopes.printed import WHOLE, Window, label, window_of
from hessfig.figures.parts.measured import LEVEL, MeasuredCurves, windows_in_words
from hessfig.figures.parts.panels import positive, slope_and_half, why_empty
from hessfig.figures.parts.ticks import SUPERSCRIPTS
from hessfig.record import NETWORK

DAGGER = (
    "†"  # marks a slope on a later window than the first; the note names that window
)


def how(measured: MeasuredCurves) -> str:
    """Return the note of a growth sheet: how the numbers were measured, and how the printed slopes were fitted."""
    if measured.printed == LEVEL:
        means = "arithmetic" if measured.average == ARITHMETIC else "geometric"
        windows = windows_in_words(measured.windows, measured.axis)
        return f"{measured.how()} Levels: {means} mean over {windows}; ± standard error over seeds."
    note = f"{measured.how()} {slope_words(measured.windows, measured.axis, measured.average)}"
    if len(measured.layers()) > 1:
        fitted_on = map(window_of, rows_of(measured.telling_slopes()))
        others = [window for window in fitted_on if window != measured.windows[0]]
        if others:
            note += f" {DAGGER}: {label(others[0], measured.axis.symbol)}."
        predicted = measured.slopes.groupby([*NETWORK, "row", "part"])["predicted"]
        several = predicted.agg(lambda powers: len(set(powers)) > 1)
        if several.any():
            note += " In brackets: the layers for which a power is predicted."
    return note


def slope_words(windows: Sequence[Window], axis: Axis, average: str) -> str:
    """Return in words how slopes were fitted."""
    means = "" if average == ARITHMETIC else " of geometric means"
    windows_told = windows_in_words(windows, axis)
    return f"Slopes: least squares{means} in log-log, {windows_told}; ± 95% interval over seeds (statistical only)."


def window_words(measured: MeasuredCurves) -> tuple[str, str]:
    """Return 'slope ± half of its interval' (or the level ± its error) for a single curve on each window.

    The lines of a later window that contains all others are the second text: its slope
    is not that of a power law, and serves to compare with a published one.
    """
    fits = measured.levels if measured.printed == LEVEL else measured.slopes
    rows = rows_of(fits)
    if len(rows) == 1 and rows[0].num_points >= MIN_POINTS:
        number = f"{measured.printed} {number_of(rows[0], measured)}"
        return "\n".join([number, *_published(rows[0], measured)]), ""
    lines: dict[bool, list[str]] = {False: [], True: []}
    for row in rows:
        words = (
            f"{label(window_of(row), measured.axis.symbol)}: {number_of(row, measured)}"
        )
        lines[row is not rows[0] and window_of(row) == WHOLE] += [
            words,
            *_published(row, measured),
        ]
    return "\n".join(lines[False]), "\n".join(lines[True])


def _published(row: Any, measured: MeasuredCurves) -> list[str]:
    """Return the published slope with its standard error in words, if there is one for this curve and window."""
    if measured.printed == LEVEL or math.isnan(row.published):
        return []
    error = f" (se {row.published_se:.2f})" * math.isfinite(row.published_se)
    return [f"published {row.published:.2f}{error}".replace("-", "−")]


def layer_words(measured: MeasuredCurves, layer: int) -> str:
    """Return the layer and its slope (or its level in the first window) in words."""
    if not positive(measured.curves).any():
        return f"{layer}: {why_empty(measured)}"
    row = rows_of(measured.telling())[0]
    words = f"{layer}: {number_of(row, measured)}"
    if window_of(row) != measured.windows[0]:
        words += DAGGER
    return words


def number_of(row: Any, measured: MeasuredCurves) -> str:
    """Return the slope (or level) of a row with half of its interval (or its error)."""
    if measured.printed == LEVEL:
        return in_digits(row.level, row.level_se)
    return slope_and_half(row)


def in_digits(value: float, error: float) -> str:
    """Return 'value ± error' with a common power of ten; the error has two digits and sets those of the value."""
    if not math.isfinite(value):
        return "not known"
    scale = math.floor(math.log10(abs(value))) if value else 0
    shown = 0 if -2 <= scale <= 2 else scale
    value, error = value / 10**shown, error / 10**shown
    known = math.isfinite(error) and error > 0
    digits = min(max(1 - math.floor(math.log10(error)), 0), 4) if known else 2
    words = f"{value:.{digits}f}"
    if known:
        words += f" ± {error:.{digits}f}"
    if shown:
        words = f"({words})·10{str(shown).translate(SUPERSCRIPTS)}"
    return words.replace("-", "−")


def rows_of(frame: DataFrame) -> list[Any]:
    """Return the rows of slopes or levels as named tuples."""
    return list(frame.itertuples())
