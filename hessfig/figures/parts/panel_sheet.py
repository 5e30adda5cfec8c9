"""Panels arranged on a sheet, chosen and folded to its width."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hessfig.figures.parts.page import BACKING, TINY, fitting, paper, points, width_of
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


_INNER, _TITLE, _TICKS, _PANEL_LABEL = 0.38, 0.22, 0.16, 0.16  # inches
Cell = tuple[int, int]
Share = Literal["row", "all", False]


@dataclass(frozen=True)
class Sheet:
    """A figure and the axes of its panels by their place in the matrix of names; `lines` are they as they stand."""

    figure: Figure
    panels: dict[Cell, Axes]
    lines: list[list[Cell]]
    is_folded: bool

    def __iter__(self) -> Iterator[tuple[int, int, Axes]]:
        return ((row, column, ax) for (row, column), ax in self.panels.items())

    def row(self, row: int) -> list[Axes]:
        """Return the panels of a row of the matrix."""
        return [ax for (i, _), ax in self.panels.items() if i == row]

    @property
    def first(self) -> Axes:
        """The panel at the upper left."""
        return self.panels[self.lines[0][0]]

    def label(
        self, *, x: str, columns: Sequence[Sequence[str]], rows: Sequence[str], names: Sequence[str], unit: str = ""
    ) -> None:
        """Write what columns and rows are: titles above and y labels at the left, or all of it above each panel.

        Each column has candidates for its title, from the longest to the shortest; `names` are short words for rows,
        `unit` is the y label where they stand in titles.
        """
        titled = [cell for line in (self.lines if self.is_folded else self.lines[:1]) for cell in line]
        self._title({c: [_joined(names[c[0]] * self.is_folded, one) for one in columns[c[1]]] for c in titled})
        for number, line in enumerate(self.lines):
            below = self.lines[number + 1] if number + 1 < len(self.lines) else []
            for cell in line[len(below) :] if x else ():
                self.panels[cell].set_xlabel(x)
            label_side(self.panels[line[0]], unit if self.is_folded else rows[line[0][0]])

    def _title(self, candidates: Mapping[Cell, Sequence[str]]) -> None:
        """Give panels titles of one length: the longest that fits every one of them."""
        size = points("axes.titlesize")
        for rank in range(max(map(len, candidates.values()))):
            titles = {cell: words[min(rank, len(words) - 1)] for cell, words in candidates.items()}
            if all(width_of(words, size) <= width_in(self.panels[cell]) for cell, words in titles.items()):
                break
        for cell, words in titles.items():
            ax = self.panels[cell]
            ax.set_title(fitting([words], width_in(ax), size))


def _joined(name: str, title: str) -> str:
    return ", ".join(filter(None, [name, title]))


def panel_sheet(
    names: Sequence[Sequence[str]],
    *,
    note: str = "",
    height: float | Sequence[float] = 1.35,
    margins: Margins = MARGINS,
    narrowest: float = NARROWEST,
    share_x: bool = True,
    share_y: Share = "row",
    left_out: Sequence[str] = (),
) -> Sheet:
    """Return a sheet of the paper's width with an axes for each name (a row of fewer names fills the width).

    `height` is that of every panel, or of those of each row; panels `left_out` are not drawn where the sheet is folded.
    The paper's `panels` pick some; a sheet that has none of them is whole, but not visible (and not saved).
    """
    lines, is_folded = _arranged(names, margins, narrowest, left_out, share_y)
    margins = _margins_of(lines, margins, share_x, share_y) if is_folded else margins
    heights = [height] * len(names) if isinstance(height, float | int) else list(height)
    total = margins.top + sum(heights[line[0][0]] for line in lines) + (len(lines) - 1) * margins.down
    figure = noted_figure(total + margins.bottom + note_height(note), note)
    picked = [name for row in names for name in row if name in paper().panels]
    figure.set_visible(bool(picked) or not paper().panels)
    panels = _placed(figure, lines, heights, margins, is_folded=is_folded, share_x=share_x, share_y=share_y)
    return Sheet(figure, panels, lines, is_folded)


def _arranged(
    names: Sequence[Sequence[str]], margins: Margins, narrowest: float, left_out: Sequence[str], share_y: Share
) -> tuple[list[list[Cell]], bool]:
    """Return the places of the panels line by line, and whether they are other lines than those of the matrix."""
    cells = {name: (i, j) for i, row in enumerate(names) for j, name in enumerate(row)}
    paper().offered.update(dict.fromkeys(cells))
    picked = [cells[name] for name in paper().panels if name in cells]
    whole = [[(i, j) for j in range(len(row))] for i, row in enumerate(names)]
    if picked:
        rows, columns = (list(dict.fromkeys(cell[side] for cell in picked)) for side in (0, 1))
        whole = [[(i, j) for j in columns] for i in rows]
    chosen = [cell for line in whole for cell in line]
    is_matrix = not picked or chosen == picked
    if is_matrix and max(map(len, whole)) <= fitting_columns(margins, narrowest):
        return whole, False
    own_scales = share_y is False or (share_y == "row" and len(whole) > 1)
    wide = replace(margins, across=max(margins.across, _INNER)) if own_scales else margins
    most = fitting_columns(wide, narrowest)
    chosen = picked or [(i, j) for i, j in chosen if names[i][j] not in left_out]
    if 1 < len(whole) <= most and is_matrix:
        chosen, most = sorted(chosen, key=lambda cell: (cell[1], cell[0])), len(whole)
    return [chosen[start : start + most] for start in range(0, len(chosen), most)], True


def _margins_of(lines: list[list[Cell]], margins: Margins, share_x: bool, share_y: Share) -> Margins:
    """Return margins with room for a title above every panel, and for ticks and labels between panels."""
    inner = any(not _shares(line, at, share_y) for line in lines for at in range(1, len(line)))
    ragged = any(len(line) > len(below) for line, below in pairwise(lines))
    down = _TITLE + (_TICKS if ragged else 0.0) if share_x else _TITLE + _TICKS + _PANEL_LABEL
    return replace(
        margins, across=max(margins.across, _INNER) if inner else margins.across, down=max(margins.down, down)
    )


def _shares(line: Sequence[Cell], at: int, share_y: Share) -> bool:
    """Whether a panel has the y axis of the one at its left."""
    return share_y == "all" or (share_y == "row" and line[at][0] == line[at - 1][0])


def _placed(
    figure: Figure,
    lines: list[list[Cell]],
    heights: Sequence[float],
    margins: Margins,
    *,
    is_folded: bool,
    share_x: bool,
    share_y: Share,
) -> dict[Cell, Axes]:
    page, tall, panels = figure.get_figwidth(), figure.get_figheight(), dict[Cell, Axes]()
    top = tall - margins.top
    for number, line in enumerate(lines):
        columns = max(map(len, lines)) if is_folded else len(line)
        width, high = panel_width(columns, margins), heights[line[0][0]]
        for at, cell in enumerate(line):
            left = margins.left + at * (width + margins.across)
            shared: dict[str, Any] = {
                "sharex": next(iter(panels.values()), None) if share_x else None,
                "sharey": next((ax for other, ax in panels.items() if _same(cell, other, share_y)), None),
            }
            ax = figure.add_axes((left / page, (top - high) / tall, width / page, high / tall), **shared)
            below = number + 1 < len(lines) and at < len(lines[number + 1])
            ax.tick_params(labelbottom=not (share_x and below), labelleft=not (at and _shares(line, at, share_y)))
            panels[cell] = ax
        top -= high + margins.down
    return panels


def _same(cell: Cell, other: Cell, share_y: Share) -> bool:
    return share_y == "all" or (share_y == "row" and cell[0] == other[0])
