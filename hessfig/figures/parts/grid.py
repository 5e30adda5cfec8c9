"""Grids of panels laid out in inches, so that every figure has the same margins and text never collides."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hessfig.figures.parts.style import BACKING, TEXT_WIDTH, TINY
from hessfig.figures.parts.words import plain

_LINE, _CHARACTERS = 0.09, 158  # height of a line of the note in inches, and how many characters fill it
_EDGE, _LABEL = 0.05, 0.37  # from the page's edge to the note; from a panel to the middle of its y label


@dataclass(frozen=True)
class Margins:
    """Space in inches around the grid and between panels; the note below comes on top of `bottom`."""

    left: float = 0.52
    right: float = 0.08
    top: float = 0.22
    bottom: float = 0.36
    across: float = 0.12
    down: float = 0.14


MARGINS = Margins()


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
    """Return a figure of the text's width and its (rows, cols) axes, with `note` in small print below them.

    `panel_height` is the mean over rows where `height_ratios` make them differ.
    """
    lines = textwrap.wrap(note, _CHARACTERS, break_on_hyphens=False)
    bottom = margins.bottom + (_LINE * len(lines) + _EDGE if lines else 0.0)
    height = margins.top + bottom + rows * panel_height + (rows - 1) * margins.down
    width = (TEXT_WIDTH - margins.left - margins.right - (cols - 1) * margins.across) / cols
    figure = Figure(figsize=(TEXT_WIDTH, height))
    _write(figure, lines)
    edges: dict[str, Any] = {
        "left": margins.left / TEXT_WIDTH,
        "right": 1 - margins.right / TEXT_WIDTH,
        "top": 1 - margins.top / height,
        "bottom": bottom / height,
        "wspace": margins.across / width,
        "hspace": margins.down / panel_height,
        "height_ratios": height_ratios,
    }
    axes = figure.subplots(rows, cols, squeeze=False, sharex=share_x, sharey=share_y, gridspec_kw=edges)
    return figure, axes


def only_outer_labels(axes: NDArray[np.object_], *, x: str, y: list[str]) -> None:
    """Label the bottom row's x axes and the left column's y axes (one label a row)."""
    for axis in axes[-1]:
        axis.set_xlabel(x)
    for axis, label in zip(axes[:, 0], y, strict=True):
        axis.set_ylabel(label)
        axis.yaxis.set_label_coords(-_LABEL * axis.figure.dpi / axis.bbox.width, 0.5)


def say(ax: Axes, words: str) -> None:
    """Write words in the middle of a panel that has no curve: an empty panel explains itself."""
    backing, place = {**BACKING, "facecolor": ax.get_facecolor()}, {"ha": "center", "va": "center"}
    ax.text(0.5, 0.5, words, transform=ax.transAxes, color="#555555", bbox=backing, fontdict=place)


def _write(figure: Figure, lines: list[str]) -> None:
    height = figure.get_figheight()
    for index, line in enumerate(reversed(lines)):
        y = (_EDGE + _LINE * index) / height
        figure.text(_EDGE / TEXT_WIDTH, y, plain(line), fontsize=TINY, color="#555555", va="bottom")
