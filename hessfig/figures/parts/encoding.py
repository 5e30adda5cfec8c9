"""Encoding of a figure: what its colours, dashes and columns of panels show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, Series

from hessfig.analysis.axis import (
    DEPTHS,
    Axis,
    X,
    as_numbers,
    setting_name,
    varied_key,
    varied_settings,
    with_settings,
    without,
)
from hessfig.errors import UserError
from hessfig.figures.parts.colours import (
    TONES,
    matrix_colour,
    matrix_mark,
    part_colour,
    shades,
)
from hessfig.figures.parts.figure_spec import FigureSpec
from hessfig.figures.parts.labels import (
    plain,
    says_itself,
    symbol,
    value_words,
    variant_words,
)
from hessfig.figures.parts.lettering import width_of
from hessfig.terms import Matrix

COLUMNS = ("layer", "num_layers", "part", "index")
WEIGHT = "weight"  # all diagonal blocks in one panel, one colour per block
VARIANT = "variant"  # whole variants, which may differ in several settings at once
MOSTDASHES = 4
PLAIN = "plain"  # the variant that changes no setting


def seen(spec: FigureSpec, curves: DataFrame) -> tuple[str, str]:
    """Return what colour and dashes show: the figure's settings, otherwise the first names that vary; "" for nothing.

    Raises UserError for a name that does not vary, and when both show the same.
    """
    colour = _canonical(spec, "colour", curves)
    dashes = _canonical(spec, "dashes", curves)
    if colour and colour == dashes:
        raise UserError(
            "figure.colour and figure.dashes are the same",
            got=colour,
            allowed=", ".join(_varying(curves)) or "nothing varies here",
            remedy="leave one of them out",
        )
    shown = {"part", *_told_by(curves, [colour, dashes])}
    if VARIANT in (colour, dashes):
        shown.update(varied_settings(curves["variant"].unique()))
    free = [name for name in _varying(curves) if name not in shown]
    if not colour and free:
        colour = free[0]
    if dashes:
        return colour, dashes
    for name in free:
        if name != colour and len(values_of(curves, name).unique()) <= MOSTDASHES:
            return colour, name
    return colour, ""


def values_of(curves: DataFrame, name: str) -> Series:
    """Return the value of `name` for each point: the value of a column, or that of a setting as text."""
    if name in (*COLUMNS, WEIGHT, VARIANT):
        return curves["row" if name == WEIGHT else name]
    return with_settings(curves, name)[name].astype(object)


def ordered(values: Series) -> list[Any]:
    """Return the distinct values: numbers in rising order, words in the order of their appearance."""
    unique = list(values.unique())
    numbers = as_numbers(map(str, unique))
    if numbers is None:
        return unique
    return [unique[k] for k in sorted(range(len(unique)), key=numbers.__getitem__)]


def unseen(curves: DataFrame, used: Sequence[str]) -> DataFrame:
    """Return what still distinguishes the points, in the columns variant, num_layers, layer, part and index."""
    shown = _told_by(curves, used)
    rest = curves[["variant", *COLUMNS]].copy()
    rest[[name for name in COLUMNS if name in shown]] = 0
    if VARIANT in used:
        rest["variant"] = ""
    else:
        rest["variant"] = rest["variant"].map(lambda one: without(one, *used))
    return rest


def _told_by(curves: DataFrame, used: Sequence[str]) -> set[str]:
    """Return the names that `used` distinguishes. Weights distinguish layers where each belongs to a single layer."""
    told = set(used)
    if WEIGHT in used and curves[["row", "layer"]].drop_duplicates()["row"].is_unique:
        told.add("layer")
    return told


def _canonical(spec: FigureSpec, key: str, curves: DataFrame) -> str:
    word = getattr(spec, key)
    if word is None:
        return ""
    if word in DEPTHS:
        return "num_layers"
    if word in (*COLUMNS, VARIANT) or (key == "colour" and word == WEIGHT):
        return word
    return varied_key(
        word,
        curves["variant"].unique(),
        asked=f"figure.{key}",
        others=(*COLUMNS, VARIANT),
    )


def _varying(curves: DataFrame) -> list[str]:
    keys = varied_settings(curves["variant"].unique())
    return [
        name for name in (*keys, *COLUMNS) if len(values_of(curves, name).unique()) > 1
    ]


DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))
_NAMED = 8  # largest number of values that a legend names
_NEUTRAL = "#555555"
# Blues and browns last: neighbours differ most.
_DISTINCT = [TONES[rank] for rank in (0, 1, 3, 2, 4, 5, 6)]
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_MARK_SIZE = 3.0  # points: a square or a triangle of 2 points is a dot
_HANDLE = 0.5  # inches of a legend's entry next to its words


@dataclass(frozen=True)
class Encoding:
    """The axis of the lines, and what colour, dashes and columns of panels show ("" for nothing).

    `unchanged` holds the values of settings for the variants that do not change them.
    """

    axis: Axis
    colour: str
    dashes: str
    column: str
    unchanged: Mapping[str, str] = field(default_factory=dict)

    def tones(self, page: DataFrame, weight: str) -> dict[Any, Any]:
        """Return the colour of each value. The words of a setting keep their colours in every panel.

        Numbers are shades of the weight's colour (grey for ""), darker for later
        numbers.
        """
        values = ordered(values_of(page, self.colour))
        if self.colour == "part":
            return {value: part_colour(value) if value else "black" for value in values}
        if self.colour == WEIGHT or (self.colour and set(values) <= set(Matrix)):
            return {value: matrix_colour(value) for value in values}
        if (
            self.colour
            and as_numbers(map(str, values)) is None
            and len(values) <= len(TONES)
        ):
            return dict(zip(values, _DISTINCT, strict=False))
        colour = matrix_colour(weight) if weight else _NEUTRAL
        return dict(zip(values, shades(colour, len(values)), strict=True))

    def widths(self, page: DataFrame) -> dict[Any, float]:
        """Return the line width of each colour: narrower for later values (not weights), so that all remain visible."""
        values = ordered(values_of(page, self.colour))
        if self.colour == WEIGHT:
            return dict.fromkeys(values, 1.0)
        if len(values) == 1:
            return {values[0]: 1.0}
        return dict(zip(values, np.linspace(1.6, 0.8, len(values)), strict=True))

    def strokes(self, page: DataFrame) -> dict[Any, Any]:
        """Return the dashes of each value."""
        values = ordered(values_of(page, self.dashes))
        return {value: DASHES[rank % MOSTDASHES] for rank, value in enumerate(values)}

    def marks(self, page: DataFrame) -> dict[Any, Any]:
        """Return the marker of each value of the dashes, or of the colours where there are no dashes."""
        name = self.dashes or self.colour
        values = ordered(values_of(page, name))
        kinds: dict[Any, Any] = {}
        for value, mark in zip(values, cycle(_MARKS), strict=False):
            kinds[value] = {"marker": mark, "markersize": _MARK_SIZE}
            if name == WEIGHT:
                kinds[value]["marker"] = matrix_mark(value) or mark
        if len(values) > 1 and (name == WEIGHT or len(values) <= len(_MARKS)):
            return kinds
        return {value: {} for value in values}

    def style(self, page: DataFrame, colour: Any, dashes: Any) -> dict[str, Any]:
        """Return dashes, width and marker of the line of one colour value and one dash value."""
        mark = self.marks(page)[dashes if self.dashes else colour]
        return {
            "linestyle": self.strokes(page)[dashes],
            "linewidth": self.widths(page)[colour],
            **mark,
        }

    def line_name(self, colour: Any, dashes: Any) -> str:
        """Return the values of one line in words."""
        words = []
        if self.colour:
            words.append(self._words(self.colour, colour))
        if self.dashes:
            words.append(self._words(self.dashes, dashes))
        return ", ".join(words)

    def ends(self, page: DataFrame) -> list[tuple[float, str, Any]]:
        """Return (last mean, name, colour) of the line of every colour."""
        drawn = page[
            np.isfinite(page["mean"]) & ~page["is_zero"].astype(bool)
        ].sort_values(X)
        lasts = drawn.groupby(
            values_of(drawn, self.colour).rename("colour"), sort=False
        )["mean"].last()
        tones = self.tones(page, "")
        ends = []
        for value, y in lasts.items():
            ends.append((float(y), self._words(self.colour, value), tones[value]))
        return ends

    def entries(self, page: DataFrame) -> list[tuple[Line2D, str]]:
        """Return the handles and words of the legend: all dashes, and at most a few of the colours."""
        tones = self.tones(page, "")
        strokes = self.strokes(page)
        marks = self.marks(page)
        step = 1 if self.colour == WEIGHT else -(-len(tones) // _NAMED)
        dot = {"marker": "o"}
        entries = []
        if self.colour:
            for value in list(tones)[::step]:
                if self.dashes and len(marks) > 1:
                    mark: Mapping[str, Any] = {"marker": ""}
                else:
                    mark = marks.get(value) or dot
                handle = Line2D([], [], color=tones[value], **mark)
                entries.append((handle, self._words(self.colour, value)))
        if self.dashes:
            setting = plain(setting_name(self.dashes))
            for value, dashes in strokes.items():
                style = {"color": _NEUTRAL, "linestyle": dashes, **marks[value]}
                words = f"{setting} {self._words(self.dashes, value)}"
                entries.append((Line2D([], [], **style), words))
        return entries

    @property
    def title(self) -> str | None:
        """The title of the legend: what the colours show, unless its words say it."""
        if self.colour and not says_itself(self.colour):
            return f"{plain(setting_name(self.colour))}:"
        return None

    def name(self, ax: Axes, page: DataFrame) -> None:
        """Write the legend into a panel."""
        if entries := self.entries(page):
            handles, names = zip(*entries, strict=True)
            style: dict[str, Any] = {
                "alignment": "left",
                "handlelength": 2.2,
                "ncols": 1 + (len(names) > _NAMED),
            }
            ax.legend(handles, names, title=self.title, loc="best", **style)

    def name_above(self, figure: Figure, page: DataFrame, inches: float) -> None:
        """Write the legend above all panels of a page of this width. It takes `lines_above` lines."""
        entries = self._all_named(page)
        columns = self._columns(page, inches)
        # Matplotlib's order.
        by_column = chain(*(entries[column::columns] for column in range(columns)))
        handles, names = zip(*by_column, strict=True)
        figure.legend(
            handles,
            names,
            loc="upper center",
            ncols=columns,
            columnspacing=1.0,
            handlelength=2.2,
        )

    def lines_above(self, page: DataFrame, inches: float) -> int:
        """Return how many lines the legend takes above the panels."""
        return -(-len(self._all_named(page)) // self._columns(page, inches))

    def _words(self, name: str, value: Any) -> str:
        """Return a value in words. Where a variant does not change the setting, this is the setting's own value."""
        if name == "part":
            return symbol(value) or "(whole)"
        if name == VARIANT:
            return variant_words(value) or PLAIN
        text = str(value) or self.unchanged.get(name, "")
        if name == "sigma" and text:
            return f"{float(text):.3g}"
        return value_words(name, text) or "(none)"

    def _columns(self, page: DataFrame, inches: float) -> int:
        entries = self._all_named(page)
        widest = max(width_of(words) for _, words in entries) + _HANDLE
        return min(len(entries), max(1, int(inches / widest)))

    def _all_named(self, page: DataFrame) -> list[tuple[Line2D, str]]:
        """Return the entries of a legend without a title. The first entry names what the colours show."""
        (line, words), *rest = self.entries(page)
        if self.title:
            words = f"{self.title} {words}"
        return [(line, words), *rest]
