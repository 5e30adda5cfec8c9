"""Panels arranged on a sheet, chosen and folded to its width."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hessfig.figures.parts.labels import plain
from hessfig.figures.parts.page import BACKING, TINY, Page, Paper, fitting, points, width_of
from hessfig.figures.parts.ticks import name_two_ticks, part_ticks

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
_INNER, _TITLE, _TICKS, _PANEL_LABEL = 0.38, 0.22, 0.16, 0.16  # inches
Cell = tuple[int, int]
Share = Literal["row", "all", False]
NARROWEST = 1.1  # inches: a panel that holds 'σ ≤ 0.1: −0.02 ± 0.01' in 7 points


def panel_width(paper: Paper, columns: int, margins: Margins) -> float:
    """Return the inches of each of some columns of panels."""
    return (paper.inches - margins.left - margins.right - (columns - 1) * margins.across) / columns


def in_rows(items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Return a sequence in pieces of at most `most`; a single empty one for none."""
    return [items[start : start + most] for start in range(0, max(len(items), 1), most)]


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


def fitting_columns(paper: Paper, margins: Margins, narrowest: float = NARROWEST) -> int:
    """Return how many columns of panels the page holds; at least one."""
    room = paper.inches - margins.left - margins.right + margins.across
    return max(1, int((room + 1e-9) / (narrowest + margins.across)))


def whole_note(paper: Paper, note: str) -> str:
    """Return a note with the settings at its end in which the network is not the preset's, unless it tells them."""
    untold = [
        words for words in paper.changed if not re.search(rf"(?<!\w){re.escape(words)}(?!\w)", note, re.IGNORECASE)
    ]
    return f"{note} Changed from the preset: {', '.join(untold)}.".strip() if untold else note


def note_lines(paper: Paper, note: str) -> list[str]:
    """Return a note broken into lines that the page holds."""
    room, lines = paper.inches - 2 * _EDGE, [""]
    for word in plain(note).split(" ") if note else []:
        longer = f"{lines[-1]} {word}".strip()
        if width_of(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(fitting([word], room))
    return [line for line in lines if line]


def say(ax: Axes, words: str) -> None:
    """Write words in the middle of a panel that has no curve: an empty panel explains itself."""
    backing, place = {**BACKING, "facecolor": ax.get_facecolor()}, {"ha": "center", "va": "center"}
    ax.text(0.5, 0.5, words, transform=ax.transAxes, color="#555555", bbox=backing, fontdict=place)


@dataclass(frozen=True)
class Sheet:
    """A figure and the axes of its panels by their place in the matrix of names; `lines` are they as they stand.

    `names` are those of all panels, drawn or not; `across` are the inches between panels.
    """

    figure: Figure
    panels: dict[Cell, Axes]
    lines: list[list[Cell]]
    is_folded: bool
    names: tuple[str, ...]
    across: float

    def __iter__(self) -> Iterator[tuple[int, int, Axes]]:
        return ((row, column, ax) for (row, column), ax in self.panels.items())

    def row(self, row: int) -> list[Axes]:
        """Return the panels of a row of the matrix."""
        return [ax for (i, _), ax in self.panels.items() if i == row]

    @property
    def axes(self) -> list[Axes]:
        """The panels, line by line."""
        return list(self.panels.values())

    def page(self, suffix: str, numbers: pd.DataFrame) -> Page:
        """Return the sheet as a page of a figure, with the numbers that are drawn; every axis has two labels."""
        name_two_ticks(self.axes)
        for ax in self.axes:
            _make_room(ax)
            part_ticks(ax)
        return Page(suffix, self.figure, numbers, self.names)

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
        for line in self.lines:
            label_side(self.panels[line[0]], unit if self.is_folded else rows[line[0][0]])
        if x:
            self.label_below(x)

    def label_below(self, x: str) -> None:
        """Write the x label under every panel that has none below it: a last line may be shorter than the others."""
        for line, below in zip(self.lines, [*self.lines[1:], []], strict=True):
            for cell in line[len(below) :]:
                self.panels[cell].set_xlabel(x)

    def _title(self, candidates: Mapping[Cell, Sequence[str]]) -> None:
        """Give panels titles of one length: the longest that fits every one of them; they may end in the next gap."""
        size = points("axes.titlesize")
        for rank in range(max(map(len, candidates.values()))):
            titles = {cell: words[min(rank, len(words) - 1)] for cell, words in candidates.items()}
            if all(width_of(words, size) <= width_in(self.panels[cell]) for cell, words in titles.items()):
                break
        for cell, words in titles.items():
            ax = self.panels[cell]
            margin = (1 - ax.get_position().x1) * self.figure.get_figwidth()
            ax.set_title(fitting([words], width_in(ax) + min(0.8 * self.across, 2 * margin), size))


def _make_room(ax: Axes) -> None:
    """Stretch the y axis until the points of lines stand clear of the legend, which keeps its corner."""
    legend, figure = ax.get_legend(), ax.get_figure(root=True)
    lines = [line for line in ax.lines if np.size(line.get_xdata()) and line.get_marker() not in (None, "None", "")]
    if legend is None or not lines or not ax.get_visible() or figure is None:
        return
    FigureCanvasAgg(figure)
    box = legend.get_window_extent().transformed(ax.transAxes.inverted())
    drawn = np.concatenate([line.get_xydata() for line in lines]).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        places = ax.transAxes.inverted().transform(ax.transData.transform(drawn))
    across = (places[:, 0] > box.x0) & (places[:, 0] < box.x1) & (places[:, 1] > 0) & (places[:, 1] < 1)
    inside = places[across & (places[:, 1] > box.y0) & (places[:, 1] < box.y1), 1]
    is_top, room = box.y0 + box.y1 > 1, 1 - (box.y1 - box.y0) - 0.04
    if not len(inside) or not room > 0.3 or box.x0 > 1:
        return
    reach = (places[across, 1] if is_top else 1 - places[across, 1]).max()
    scaled = ax.yaxis.get_transform()
    low, high = scaled.transform(np.array(ax.get_ylim()))
    span = (high - low) * reach / room
    ends = (low, low + span) if is_top else (high - span, high)
    if span > high - low:
        ax.set_ylim(*scaled.inverted().transform(np.array(ends)))


def _joined(name: str, title: str) -> str:
    return ", ".join(filter(None, [name, title]))


def panel_sheet(
    paper: Paper,
    names: Sequence[Sequence[str]],
    *,
    note: str = "",
    height: float | Sequence[float] = 1.35,
    margins: Margins = MARGINS,
    narrowest: float | None = NARROWEST,
    share_x: bool = True,
    share_y: Share = "row",
    left_out: Sequence[str] = (),
    most: int = 0,
    on_grid: bool = False,
) -> Sheet:
    """Return a sheet of the paper's width with an axes for each name, and `note` in small print below them.

    A row of fewer names fills the width, unless rows have places for `most`. `height` is that of every panel, or of
    those of each row. A sheet is folded where panels would be narrower than `narrowest` (None: than they are on a page
    of the usual width); panels `left_out` are not drawn then. The figure's label is the note, for its .txt. The
    paper's `panels` pick some; a sheet that has none of them is whole, but not visible (and not saved).
    `on_grid`: matplotlib's grid computes the places, which differ in their last bits, and so in single pixels.
    """
    if narrowest is None:
        narrowest = min(NARROWEST, panel_width(Paper(), max(map(len, names)), margins))
    lines, is_folded = _arranged(paper, names, margins, narrowest, left_out, share_y)
    margins = _margins_of(lines, margins, share_x, share_y) if is_folded else margins
    heights = [height] * len(names) if isinstance(height, float | int) else list(height)
    words = whole_note(paper, note)
    written = note_lines(paper, words) if paper.note else []
    foot = _LINE * len(written) + _EDGE if written else 0.0
    tall = [heights[line[0][0]] for line in lines]
    before, after = ((margins.bottom + foot,), ()) if on_grid else ((), (margins.bottom, foot))
    stacked = math.fsum(tall) if on_grid else sum(tall)
    total = sum([margins.top, *before, stacked, (len(lines) - 1) * margins.down, *after])
    figure = Figure(figsize=(paper.inches, total))
    figure.set_label(words)
    for index, line in enumerate(reversed(written)):
        y = (_EDGE + _LINE * index) / total
        figure.text(_EDGE / paper.inches, y, line, fontsize=TINY, color="#555555", va="bottom")
    every = tuple(dict.fromkeys(name for row in names for name in row))
    figure.set_visible(not paper.panels or not set(paper.panels).isdisjoint(every))
    columns = [max(most, *map(len, lines)) if is_folded or most else len(line) for line in lines]
    panels = _placed(figure, lines, columns, tall, margins, share_x, share_y)
    if on_grid:
        _align(figure, panels, lines, columns, tall, replace(margins, bottom=margins.bottom + foot))
    return Sheet(figure, panels, lines, is_folded, every, margins.across)


def _arranged(
    paper: Paper,
    names: Sequence[Sequence[str]],
    margins: Margins,
    narrowest: float,
    left_out: Sequence[str],
    share_y: Share,
) -> tuple[list[list[Cell]], bool]:
    """Return the places of the panels line by line, and whether they are other lines than those of the matrix."""
    cells = {name: (i, j) for i, row in enumerate(names) for j, name in enumerate(row)}
    picked = [cells[name] for name in paper.panels if name in cells]
    whole = [[(i, j) for j in range(len(row))] for i, row in enumerate(names)]
    if picked:
        rows, columns = (list(dict.fromkeys(cell[side] for cell in picked)) for side in (0, 1))
        whole = [[(i, j) for j in columns] for i in rows]
    chosen = [cell for line in whole for cell in line]
    is_matrix = not picked or chosen == picked
    if is_matrix and max(map(len, whole)) <= fitting_columns(paper, margins, narrowest):
        return whole, False
    own_scales = share_y is False or (share_y == "row" and len(whole) > 1)
    wide = replace(margins, across=max(margins.across, _INNER)) if own_scales else margins
    most = fitting_columns(paper, wide, narrowest)
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
    columns: Sequence[int],
    heights: Sequence[float],
    margins: Margins,
    share_x: bool,
    share_y: Share,
) -> dict[Cell, Axes]:
    page, tall, panels = figure.get_figwidth(), figure.get_figheight(), dict[Cell, Axes]()
    top = tall - margins.top
    for number, (line, high) in enumerate(zip(lines, heights, strict=True)):
        width = (page - margins.left - margins.right - (columns[number] - 1) * margins.across) / columns[number]
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


def _align(
    figure: Figure,
    panels: dict[Cell, Axes],
    lines: list[list[Cell]],
    columns: Sequence[int],
    heights: Sequence[float],
    margins: Margins,
) -> None:
    page, tall, mean = figure.get_figwidth(), figure.get_figheight(), math.fsum(heights) / len(heights)
    edges: dict[str, float] = {
        "left": margins.left / page,
        "right": 1 - margins.right / page,
        "top": 1 - margins.top / tall,
        "bottom": margins.bottom / tall,
        "hspace": margins.down / mean,
    }
    ratios = heights if len(set(heights)) > 1 else None
    for number, (line, count) in enumerate(zip(lines, columns, strict=True)):
        width = (page - margins.left - margins.right - (count - 1) * margins.across) / count
        grid = figure.add_gridspec(len(lines), count, wspace=margins.across / width, height_ratios=ratios, **edges)
        for at, cell in enumerate(line):
            panels[cell].set_subplotspec(grid[number, at])


def _same(cell: Cell, other: Cell, share_y: Share) -> bool:
    return share_y == "all" or (share_y == "row" and cell[0] == other[0])
