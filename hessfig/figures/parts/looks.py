"""How general sheets look: what colours and dashes stand for, their legend, and scales that fit the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from hessfig.analysis.axis import Axis
from hessfig.analysis.variants import last_word
from hessfig.figures.parts.dimensions import MOST_DASHES, ordered, values_of
from hessfig.figures.parts.panels import set_decades
from hessfig.figures.parts.style import matrix_colour, part_colour, shades
from hessfig.figures.parts.words import plain, symbol

_DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))
_NAMED = 8  # so many values are named in a legend, and so many places on an axis by a tick of their own
_WIDE_X, _WIDE_Y = 8, 30  # ranges from which on a scale is logarithmic
_NARROW = 1 / 14  # neighbouring ticks closer than this share of the axis would collide
_NEUTRAL = "#555555"


@dataclass(frozen=True)
class Look:
    """What lines run along, and what colour, dashes and columns of panels stand for ("": nothing)."""

    axis: Axis
    colour: str
    dashes: str
    column: str

    def tones(self, page: pd.DataFrame, weight: str) -> dict[Any, Any]:
        """Return the colour of each value: shades of the weight's own (of grey for ""), darker for later values."""
        values = ordered(values_of(page, self.colour))
        if self.colour == "part":
            return {value: part_colour(value) if value else "black" for value in values}
        colour = matrix_colour(weight) if weight else _NEUTRAL
        return dict(zip(values, shades(colour, len(values)), strict=True))

    def widths(self, page: pd.DataFrame) -> dict[Any, float]:
        """Return the width of each colour's lines, narrower for later values: lines that coincide stay countable."""
        values = ordered(values_of(page, self.colour))
        return dict(
            zip(values, np.linspace(1.6, 0.8, len(values)) if len(values) > 1 else [1.0], strict=True)
        )

    def strokes(self, page: pd.DataFrame) -> dict[Any, Any]:
        """Return the dashes of each value."""
        values = ordered(values_of(page, self.dashes))
        return {value: _DASHES[rank % MOST_DASHES] for rank, value in enumerate(values)}

    def name(self, ax: Axes, page: pd.DataFrame) -> None:
        """Write the legend: a few of the colours when there are many, every kind of dashes."""
        tones, strokes = self.tones(page, ""), self.strokes(page)
        some = list(tones)[:: -(-len(tones) // _NAMED)] if self.colour else []
        entries = [
            (Line2D([], [], color=tones[value], marker="o"), _value(self.colour, value)) for value in some
        ]
        for value in strokes if self.dashes else ():
            words = f"{plain(last_word(self.dashes))} {_value(self.dashes, value)}"
            entries.append((Line2D([], [], color=_NEUTRAL, linestyle=strokes[value]), words))
        if entries:
            handles, names = zip(*entries, strict=True)
            title = f"{plain(last_word(self.colour))}:" if self.colour else None
            ax.legend(handles, names, title=title, loc="best", alignment="left", handlelength=2.2)


def set_x_scale(ax: Axes, places: pd.Series) -> bool:
    """Make the x axis logarithmic if the places span it (linear below the first of them where one is 0).

    A few places have a tick each. Return whether the axis is logarithmic all along.
    """
    different = np.sort(places.unique())
    positive = different[different > 0]
    spans = bool(different[0] >= 0 and len(positive) and positive[-1] >= _WIDE_X * positive[0])
    is_log = spans and different[0] > 0
    if is_log:
        set_decades(ax, "x")
    elif spans:
        ax.set_xscale("symlog", linthresh=positive[0], linscale=0.4)
    if len(different) <= _NAMED and _apart(ax, different):
        ax.set_xticks(different, [f"{place:g}" for place in different])
        ax.xaxis.set_minor_locator(NullLocator())
    return is_log


def set_y_scale(ax: Axes, means: pd.Series) -> bool:
    """Make the y axis logarithmic if the means are positive (or zero, which is left out) and span it."""
    finite = means[np.isfinite(means)]
    positive = finite[finite > 0]
    is_log = bool(len(positive) and finite.min() >= 0 and positive.max() >= _WIDE_Y * positive.min())
    if is_log:
        set_decades(ax, "y")
    else:
        ax.ticklabel_format(axis="y", scilimits=(-2, 4))
    return is_log


def _apart(ax: Axes, places: np.ndarray) -> bool:
    """Return whether ticks at the places would stand apart on the axis as it is scaled."""
    drawn = ax.xaxis.get_transform().transform(places)
    return bool(len(drawn) < 2 or np.diff(drawn).min() >= _NARROW * (drawn[-1] - drawn[0]))


def _value(name: str, value: Any) -> str:
    if name == "part":
        return symbol(value) or "(whole)"
    text = str(value)
    return f"{float(text):.3g}" if name == "sigma" and text else plain(text) or "(none)"
