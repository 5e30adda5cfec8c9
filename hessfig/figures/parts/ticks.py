"""Scales of axes and their ticks: logarithmic scales for wide ranges, ticks at powers of ten or between them."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)
from pandas import Series

# Decades: a shorter axis may have only one of 1, 2 and 5, and of 1, 2, 3, 4, 6, 8.
_SHORT, _SHORTEST = (0.7, 0.5)
_TICKED = 8  # up to this number of places, each has a tick
# Ratios of largest to smallest value from which a scale is logarithmic.
_WIDE_X, _WIDE_Y = (8, 30)
_LETTER = 0.045  # width in inches of a digit in the label of a tick
_NARROW = 1 / 14  # neighbouring ticks closer than this share of the axis would collide
_APART = 0.11  # inches between the middles of two labels of a y axis
# Decades from tick to tick; ticks.
_STEPS = (1, 2, 5, 10, 20, 50, 100, 1000)
_MOST_DECADES = 6
_CLOSE = 1e-9
SUPERSCRIPTS = str.maketrans("-.0123456789", "⁻˙⁰¹²³⁴⁵⁶⁷⁸⁹")


def width_in(ax: Axes) -> float:
    """Return the width of a panel in inches."""
    figure: Any = ax.figure
    return float(ax.get_position().width * figure.get_figwidth())


def height_in(ax: Axes) -> float:
    """Return the height of a panel in inches."""
    figure: Any = ax.figure
    return float(ax.get_position().height * figure.get_figheight())


def set_x_scale(ax: Axes, places: Series) -> bool:
    """Make the x axis logarithmic if the places span a wide range (linear below the first positive one if one is 0).

    If there are only a few places, each has a tick. Return whether the whole axis is
    logarithmic.
    """
    different = np.sort(places.unique())
    positive = different[different > 0]
    spans = bool(
        different[0] >= 0 and len(positive) and positive[-1] >= _WIDE_X * positive[0]
    )
    is_log = spans and different[0] > 0
    if is_log:
        set_decades(ax, "x")
    elif spans:
        ax.set_xscale("symlog", linthresh=positive[0], linscale=0.4)
    if len(different) <= _TICKED and all(map(_is_round, different)):
        labelled = _labelled(ax, different)
        if labelled is not None:
            names = [f"{place:g}" if place in labelled else "" for place in different]
            ax.set_xticks(different, names)
            ax.xaxis.set_minor_locator(NullLocator())
    return is_log


def set_y_scale(ax: Axes, means: Series) -> bool:
    """Make the y axis logarithmic if the means, zeros left out, are positive and span a wide range."""
    finite = means[np.isfinite(means)]
    positive = finite[finite > 0]
    is_log = bool(
        len(positive)
        and finite.min() >= 0
        and positive.max() >= _WIDE_Y * positive.min()
    )
    if is_log:
        set_decades(ax, "y")
    else:
        ax.ticklabel_format(axis="y", scilimits=(-2, 4))
    return is_log


def _is_round(place: float) -> bool:
    """Return whether a place is a round number: whole, or with two digits. Other places get no tick."""
    return float(place).is_integer() or float(f"{place:.1e}") == float(f"{place:.6e}")


def _labelled(ax: Axes, places: np.ndarray) -> np.ndarray | None:
    """Return the places whose labels do not overlap on the current scale: all, or every second; otherwise None."""
    drawn = ax.xaxis.get_transform().transform(places)
    spanned = drawn[-1] - drawn[0]
    if len(drawn) > 1 and np.diff(drawn).min() < _NARROW * spanned:
        return None
    inches = width_in(ax) / (spanned or 1.0)
    for chosen in (slice(None), slice(None, None, 2)):
        gap = np.diff(drawn[chosen]).min(initial=np.inf) * inches
        if gap >= _LETTER * (1 + max(len(f"{place:g}") for place in places[chosen])):
            return places[chosen]
    return None


def set_decades(ax: Axes, which: str) -> None:
    """Make an axis (and those that share it) logarithmic, with ticks at powers of ten."""
    ax.set(**{f"{which}scale": "log"})
    for axis in _sharing(ax, which):
        axis.set_major_locator(Decades())
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_power_of_ten))


def _sharing(ax: Axes, which: str) -> list[Any]:
    """Return the axis `which` of a panel and of those that share it."""
    panels = getattr(ax, f"get_shared_{which}_axes")().get_siblings(ax)
    return [getattr(panel, f"{which}axis") for panel in panels]


class Decades(LogLocator):
    """Places of ticks on a logarithmic axis: every decade, or every 2nd, 5th, 10th ... if these were too many."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the places between two positive ends."""
        low, high = (math.log10(end) for end in sorted((vmin, vmax)))
        powers = range(math.ceil(low - _CLOSE), math.floor(high + _CLOSE) + 1)
        for step in _STEPS:
            kept = [power for power in powers if power % step == 0]
            if len(kept) <= _MOST_DECADES:
                break
        return [10.0**power for power in kept]


def between_decades(ax: Axes, which: str) -> None:
    """Put ticks between powers of ten on an axis (and those that share it), at equal steps on the shortest ranges."""
    for axis in _sharing(ax, which):
        low, high = np.log10(np.sort(axis.get_view_interval()))
        digits = [1.0, 2.0, 5.0]
        if high - low < _SHORT:
            digits = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
        if high - low < _SHORTEST:
            axis.set_major_locator(MaxNLocator(4))
        else:
            axis.set_major_locator(LogLocator(subs=digits, numticks=12))
        axis.set_major_formatter(FuncFormatter(_digit_and_power))


def name_two_ticks(axes: Iterable[Axes]) -> None:
    """Put ticks between powers of ten on every logarithmic axis that shows fewer than two powers of ten."""
    for ax in axes:
        for which in ("x", "y"):
            axis = getattr(ax, f"{which}axis")
            low, high = sorted(axis.get_view_interval())
            in_decades = (
                isinstance(axis.get_major_formatter(), FuncFormatter)
                and axis.get_scale() == "log"
            )
            if in_decades and np.floor(np.log10(high)) - np.ceil(np.log10(low)) < 1:
                between_decades(ax, which)


def part_ticks(ax: Axes) -> None:
    """Remove ticks of a logarithmic or symlog y axis whose labels would overlap; ticks at 0 and above win."""
    if ax.yaxis.get_scale() not in ("log", "symlog"):
        return
    low, high = sorted(ax.get_ylim())
    places = sorted(
        (place for place in ax.yaxis.get_majorticklocs() if low <= place <= high),
        key=abs,
    )
    points = np.array([(ax.get_xlim()[0], place) for place in places]).reshape(-1, 2)
    figure: Any = ax.get_figure(root=True)
    inches = ax.transData.transform(points)[:, 1] / figure.dpi
    kept: list[int] = []
    for rank, inch in enumerate(inches):
        if all(abs(inch - inches[other]) >= _APART for other in kept):
            kept.append(rank)
    if len(kept) < len(places):
        ax.yaxis.set_major_locator(FixedLocator([places[rank] for rank in kept]))


def _digit_and_power(value: float, _: int) -> str:
    """Return '0.02', '500' or '2·10⁻⁷'."""
    if 1e-3 < value < 1e4:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9) if value > 0 else 0
    digit = f"{value / 10**exponent:.2g}"
    return f"{digit}·10".removeprefix("1·") + f"{exponent}".translate(SUPERSCRIPTS)


def _power_of_ten(value: float, _: int) -> str:
    """Return '10⁻³' as plain text, because mathtext in every tick would take half of the drawing time."""
    if value > 0:
        return "10" + f"{round(np.log10(value))}".translate(SUPERSCRIPTS)
    return ""
