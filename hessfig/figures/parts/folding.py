"""Sheets of named panels: all of them or those that are picked, in as many columns as the paper's width holds.

A layout names its panels row by row and draws each where the sheet put it. Where the width does not hold a row, panels
stand in fewer columns and say in their titles what they are; rows become columns where that loses no place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessfig.figures.parts.grid import (
    MARGINS,
    NARROWEST,
    Margins,
    fitting_columns,
    label_side,
    note_height,
    noted_figure,
    panel_width,
    width_in,
)
from hessfig.figures.parts.paper import paper
from hessfig.figures.parts.style import fitting, points, width_of

_INNER, _TITLE, _TICKS, _LABEL = 0.38, 0.22, 0.16, 0.16  # inches
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
        self,
        *,
        x: str,
        columns: Sequence[Sequence[str]],
        rows: Sequence[str],
        names: Sequence[str],
        unit: str = "",
    ) -> None:
        """Write what columns and rows are: titles above and y labels at the left, or all of it above each panel.

        Each column has candidates for its title, from the longest to the shortest; `names` are short words for rows,
        `unit` is the y label where they stand in titles.
        """
        titled = [cell for line in (self.lines if self.is_folded else self.lines[:1]) for cell in line]
        self._title(
            {c: [_joined(names[c[0]] * self.is_folded, one) for one in columns[c[1]]] for c in titled}
        )
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
    names: Sequence[Sequence[str]],
    margins: Margins,
    narrowest: float,
    left_out: Sequence[str],
    share_y: Share,
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
    down = _TITLE + (_TICKS if ragged else 0.0) if share_x else _TITLE + _TICKS + _LABEL
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
            ax.tick_params(
                labelbottom=not (share_x and below), labelleft=not (at and _shares(line, at, share_y))
            )
            panels[cell] = ax
        top -= high + margins.down
    return panels


def _same(cell: Cell, other: Cell, share_y: Share) -> bool:
    return share_y == "all" or (share_y == "row" and cell[0] == other[0])
