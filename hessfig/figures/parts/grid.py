"""Grids of panels laid out in inches, so that every figure has the same margins and text never collides.

The width is that of the paper (parts/paper.py), and so is whether the note is written below: a layout that takes its
figure from here obeys `figure.width`, `figure.note`, `figure.formats` and `style`. One that names its panels
(parts/folding.py) obeys `figure.panels` too, and stands in fewer columns where the page is narrow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hessfig.figures.parts.paper import paper
from hessfig.figures.parts.style import BACKING, TINY, fitting, points, width_of
from hessfig.figures.parts.words import plain

_LINE = 0.125  # height of a line of the note in inches
_EDGE, _LABEL = 0.05, 0.38  # from the page's edge to the note; from a panel to the middle of its y label


@dataclass(frozen=True)
class Margins:
    """Space in inches around the grid and between panels; the note below comes on top of `bottom`."""

    left: float = 0.54
    right: float = 0.08
    top: float = 0.23
    bottom: float = 0.38
    across: float = 0.12
    down: float = 0.14


MARGINS = Margins()
NARROWEST = 1.1  # inches: a panel that holds 'σ ≤ 0.1: −0.02 ± 0.01' in 7 points


def panel_grid(
    rows: int,
    cols: int,
    *,
    note: str = "",
    panel_height: float = 1.3,
    margins: Margins = MARGINS,
    share_x: bool = True,
    share_y: Literal["row", "all", False] = "row",
    height_ratios: list[float] | None = None,
) -> tuple[Figure, NDArray[np.object_]]:
    """Return a figure of the paper's width and its (rows, cols) axes, with `note` in small print below them.

    `panel_height` is the mean over rows where `height_ratios` make them differ.
    """
    page, below = paper().inches, note_height(note)
    bottom = margins.bottom + below
    height = margins.top + bottom + rows * panel_height + (rows - 1) * margins.down
    width = panel_width(cols, margins)
    figure = noted_figure(height, note)
    edges: dict[str, Any] = {
        "left": margins.left / page,
        "right": 1 - margins.right / page,
        "top": 1 - margins.top / height,
        "bottom": bottom / height,
        "wspace": margins.across / width,
        "hspace": margins.down / panel_height,
        "height_ratios": height_ratios,
    }
    axes = figure.subplots(rows, cols, squeeze=False, sharex=share_x, sharey=share_y, gridspec_kw=edges)
    return figure, axes


def panel_width(columns: int, margins: Margins) -> float:
    """Return the inches of each of some columns of panels."""
    return (paper().inches - margins.left - margins.right - (columns - 1) * margins.across) / columns


def width_in(ax: Axes) -> float:
    """Return the width of a panel in inches."""
    figure: Any = ax.figure
    return float(ax.get_position().width * figure.get_figwidth())


def height_in(ax: Axes) -> float:
    """Return the height of a panel in inches."""
    figure: Any = ax.figure
    return float(ax.get_position().height * figure.get_figheight())


def label_side(ax: Axes, words: str) -> None:
    """Write a y label at a fixed distance from its panel, as long as the panel is high and a little more."""
    size = points("axes.labelsize")
    ax.set_ylabel(fitting([words], height_in(ax) + 0.15, size))
    ax.yaxis.set_label_coords(-_LABEL / width_in(ax), 0.5)


def fitting_columns(margins: Margins, narrowest: float = NARROWEST) -> int:
    """Return how many columns of panels the page holds; at least one."""
    room = paper().inches - margins.left - margins.right + margins.across
    return max(1, int((room + 1e-9) / (narrowest + margins.across)))


def note_height(note: str) -> float:
    """Return the inches that a note takes below the panels: none where the paper leaves it out."""
    lines = note_lines(note) if paper().note else []
    return _LINE * len(lines) + _EDGE if lines else 0.0


def noted_figure(height: float, note: str) -> Figure:
    """Return an empty figure of the paper's width with a note at its foot; its label is the note, for its .txt."""
    figure = Figure(figsize=(paper().inches, height))
    figure.set_label(whole_note(note))
    for index, line in enumerate(reversed(note_lines(note) if paper().note else [])):
        y = (_EDGE + _LINE * index) / height
        figure.text(_EDGE / paper().inches, y, line, fontsize=TINY, color="#555555", va="bottom")
    return figure


def whole_note(note: str) -> str:
    """Return a note with the settings at its end in which the network is not the preset's, unless it tells them."""
    untold = [words for words in paper().changed if not re.search(rf"(?<!\w){re.escape(words)}(?!\w)", note)]
    return f"{note} Changed from the preset: {', '.join(untold)}.".strip() if untold else note


def note_lines(note: str) -> list[str]:
    """Return a note broken into lines that the page holds."""
    room, lines, note = paper().inches - 2 * _EDGE, [""], whole_note(note)
    for word in plain(note).split(" ") if note else []:
        longer = f"{lines[-1]} {word}".strip()
        if width_of(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(fitting([word], room))
    return [line for line in lines if line]


def only_outer_labels(axes: NDArray[np.object_], *, x: str, y: list[str]) -> None:
    """Label the bottom row's x axes and the left column's y axes (one label a row)."""
    for axis in axes[-1]:
        axis.set_xlabel(x)
    for axis, label in zip(axes[:, 0], y, strict=True):
        label_side(axis, label)


def say(ax: Axes, words: str) -> None:
    """Write words in the middle of a panel that has no curve: an empty panel explains itself."""
    backing, place = {**BACKING, "facecolor": ax.get_facecolor()}, {"ha": "center", "va": "center"}
    ax.text(0.5, 0.5, words, transform=ax.transAxes, color="#555555", bbox=backing, fontdict=place)
