"""Arrangement of panels on a sheet: selection of panels, and folding to the width of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import BboxBase
from numpy.typing import NDArray
from pandas import DataFrame, concat

from hessfig.figures.parts.labels import plain
from hessfig.figures.parts.lettering import (
    BACKING,
    TINY,
    broken,
    fitting,
    points,
    width_of,
)
from hessfig.figures.parts.page import Paper
from hessfig.figures.parts.ticks import height_in, name_two_ticks, part_ticks, width_in

_LINE = 0.125  # height of a line of the note in inches
# Inches from the page's edge to the note, and from a panel to the middle of its y
# label.
_EDGE, _LABEL = (0.05, 0.38)
_INNER, _TITLE, _TICKS, _PANEL_LABEL = 0.38, 0.22, 0.16, 0.16  # inches
NARROWEST = 1.1  # inches: a panel that holds 'σ ≤ 0.1: −0.02 ± 0.01' in 7 points
_ENTRIES = 4  # on a line of a legend above the panels, at most
_STRETCH = 2.0  # largest factor by which a legend may stretch an axis
Cell = tuple[int, int]


@dataclass(frozen=True)
class SheetStyle:
    """Arrangement of panels: margins, gaps and heights in inches, and which axes the panels share.

    The note is below `bottom`. `height` is the height of every panel, or a list with
    one height per row. A sheet is folded if its panels would be narrower than
    `narrowest` (None: narrower than on a page of the usual width). A row with fewer
    panels fills the width, unless rows have places for `most` panels.
    """

    left: float = 0.54
    right: float = 0.08
    top: float = 0.23
    bottom: float = 0.38
    across: float = 0.12
    down: float = 0.14
    height: float | Sequence[float] = 1.35
    narrowest: float | None = NARROWEST
    share_x: bool = True
    share_y: Literal["row", "all", False] = "row"
    most: int = 0

    def replace(self, **changes: Any) -> SheetStyle:
        """Return the style with the given attributes changed."""
        return replace(self, **changes)

    def width(self, paper: Paper, columns: int) -> float:
        """Return the width in inches of each of `columns` columns of panels."""
        return (
            paper.inches - self.left - self.right - (columns - 1) * self.across
        ) / columns

    def columns(self, paper: Paper) -> int:
        """Return how many columns of panels fit on the page, at least one."""
        room = paper.inches - self.left - self.right + self.across
        return max(
            1, int((room + 1e-9) / ((self.narrowest or NARROWEST) + self.across))
        )


SHARED = SheetStyle()  # one x axis, and one y axis a row
# Columns of which a usual page holds any number.
BY_COLUMN = SHARED.replace(narrowest=None)
ONE_SCALE = SHARED.replace(share_y="all")
OWN_Y = SHARED.replace(share_y=False, across=0.36)
# Nothing shared.
APART = SHARED.replace(share_x=False, share_y=False, across=0.42, down=0.34)


def in_rows(items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Return the sequence in pieces of at most `most` items; a single empty piece for an empty sequence."""
    return [items[start : start + most] for start in range(0, max(len(items), 1), most)]


def in_sheets(
    items: Sequence[Any], most: int, name: str = "sheet"
) -> Iterator[tuple[Sequence[Any], str]]:
    """Yield pieces of at most `most` items with the suffixes of their pages: _sheet1, ..., or "" for a single piece."""
    pieces = in_rows(items, most)
    for number, piece in enumerate(pieces, start=1):
        yield piece, f"_{name}{number}" * (len(pieces) > 1)


def label_side(ax: Axes, words: str) -> None:
    """Write a y label at a fixed distance from its panel, at most a little longer than the panel is high."""
    size = points("axes.labelsize")
    ax.set_ylabel(fitting([words], height_in(ax) + 0.15, size))
    ax.yaxis.set_label_coords(-_LABEL / width_in(ax), 0.5)


def whole_note(paper: Paper, note: str) -> str:
    """Return the note with the settings that differ from the preset at its end, unless it names them already."""
    untold = []
    for one in paper.changed:
        if not re.search(rf"(?<!\w){re.escape(one)}(?!\w)", note, re.IGNORECASE):
            untold.append(one)
    if untold:
        return f"{note} Changed from the preset: {', '.join(untold)}.".strip()
    return note


def note_lines(paper: Paper, note: str) -> list[str]:
    """Return the note broken into lines that fit the page."""
    return broken(plain(note), paper.inches - 2 * _EDGE)


def say(ax: Axes, words: str) -> None:
    """Write words in the middle of a panel without a curve, so that the panel explains why it is empty."""
    backing = {**BACKING, "facecolor": ax.get_facecolor()}
    place = {"ha": "center", "va": "center"}
    ax.text(
        0.5,
        0.5,
        words,
        transform=ax.transAxes,
        color="#555555",
        bbox=backing,
        fontdict=place,
    )


@dataclass(frozen=True)
class Page:
    """A drawn sheet: the suffix of its file name ("" for a single sheet), the figure and its numbers.

    `panels` are the names of its panels, drawn or not; a figure that is not visible has
    none of those asked for.
    """

    suffix: str
    figure: Figure
    numbers: DataFrame
    panels: Sequence[str] = ()


@dataclass(frozen=True)
class Sheet:
    """A figure and the axes of its panels by their position in the matrix of names; `lines` holds them as drawn.

    `names` are the names of all panels, drawn or not; `across` is the gap between
    panels in inches.
    """

    figure: Figure
    panels: dict[Cell, Axes]
    lines: list[list[Cell]]
    is_folded: bool
    names: tuple[str, ...]
    across: float

    @classmethod
    def grid(
        cls,
        paper: Paper,
        names: Sequence[Sequence[str]],
        note: str = "",
        style: SheetStyle = SHARED,
        *,
        left_out: Sequence[str] = (),
    ) -> Sheet:
        """Return a sheet of the paper's width with axes for each name, and with `note` in small print below them.

        Panels `left_out` are not drawn if the sheet is folded. The label of the figure
        holds the note for its .txt file. The paper's `panels` select panels; a sheet
        with none of them is complete, but invisible and not saved.
        """
        if style.narrowest is None:
            style = style.replace(
                narrowest=min(NARROWEST, style.width(Paper(), max(map(len, names))))
            )
        lines, is_folded = _arranged(paper, names, style, left_out)
        style = _with_room(lines, style) if is_folded else style
        if isinstance(style.height, Sequence):
            heights = style.height
        else:
            heights = [style.height] * len(names)
        tall = [heights[line[0][0]] for line in lines]
        between = (len(lines) - 1) * style.down
        figure = _page(paper, note, style.top + sum(tall) + between + style.bottom)
        every = tuple(dict.fromkeys(chain(*names)))
        figure.set_visible(not paper.panels or not set(paper.panels).isdisjoint(every))
        columns = list(map(len, lines))
        if is_folded or style.most:
            columns = [max(style.most, *columns)] * len(lines)
        widths = [style.width(paper, count) for count in columns]
        panels = dict(_placed(figure, lines, widths, tall, style))
        return cls(figure, panels, lines, is_folded, every, style.across)

    def __iter__(self) -> Iterator[tuple[int, int, Axes]]:
        return ((row, column, ax) for (row, column), ax in self.panels.items())

    def row(self, row: int) -> list[Axes]:
        """Return the panels of a row of the matrix."""
        return [ax for (i, _), ax in self.panels.items() if i == row]

    @property
    def axes(self) -> list[Axes]:
        """The panels, line by line."""
        return list(self.panels.values())

    def page(self, suffix: str, *drawn: DataFrame) -> Page:
        """Return the sheet as a page of a figure, with the numbers that are drawn; every axis has two labels."""
        numbers = concat(drawn or [DataFrame()], ignore_index=True)
        name_two_ticks(self.axes)
        for ax in self.axes:
            _make_room(ax)
            part_ticks(ax)
        return Page(suffix, self.figure, numbers, self.names)

    @property
    def first(self) -> Axes:
        """The upper left panel."""
        return self.panels[self.lines[0][0]]

    @property
    def outermost(self) -> Axes:
        """The last panel of the first line; there is room for a colour bar to its right."""
        return self.panels[self.lines[0][-1]]

    def label(
        self,
        x: str,
        columns: Sequence[str | Sequence[str]],
        rows: Sequence[str],
        names: Sequence[str] | None = None,
        unit: str = "",
    ) -> None:
        """Label columns by titles and rows by y labels; on a folded sheet, write both above each panel.

        A column may have several candidates for its title, from the longest to the
        shortest. `names` are short words for rows; where titles contain them, `unit` is
        the y label.
        """
        short = rows if names is None else names
        titles = [(title,) if isinstance(title, str) else title for title in columns]
        titled = self.lines[0]
        before: Sequence[str] = [""] * len(rows)
        sides = rows
        if self.is_folded:
            titled = list(chain(*self.lines))
            before = short
            sides = [unit] * len(rows)
        titles_of = {}
        for i, j in titled:
            pairs = [filter(None, (before[i], title)) for title in titles[j]]
            titles_of[i, j] = list(map(", ".join, pairs))
        self._title(titles_of)
        self.label_sides(sides)
        if not self.is_folded and len(self.lines) > 1:
            # Where a y label of the reader's own stands, the row keeps its name.
            for line in self.lines:
                self.panels[line[0]].set_label(short[line[0][0]])
        if x:
            self.label_below(x)

    def label_sides(self, rows: Sequence[str]) -> None:
        """Write the y labels of rows to the left of every line."""
        for line in self.lines:
            label_side(self.panels[line[0]], rows[line[0][0]])

    def name_above(self, ax: Axes, *, long: float = 2.0) -> None:
        """Write the legend of a panel above all panels; `long` is the length of its handles."""
        handles, names = ax.get_legend_handles_labels()
        lines = -(-len(names) // _ENTRIES)
        columns = -(-len(names) // max(lines, 1))
        self.figure.legend(
            handles,
            names,
            loc="upper center",
            ncols=columns,
            columnspacing=1.0,
            handlelength=long,
        )

    def label_below(self, x: str) -> None:
        """Write the x label below every panel without a panel below it; the last line may be a shorter one."""
        for line, below in zip(self.lines, [*self.lines[1:], []], strict=True):
            for cell in line[len(below) :]:
                self.panels[cell].set_xlabel(x)

    def _title(self, candidates: Mapping[Cell, Sequence[str]]) -> None:
        """Set the titles: for all panels the longest candidates that fit. Titles may extend into the next gap."""
        size = points("axes.titlesize")
        for rank in range(max(map(len, candidates.values()))):
            titles = {
                cell: words[min(rank, len(words) - 1)]
                for cell, words in candidates.items()
            }
            if all(
                width_of(words, size) <= width_in(self.panels[cell])
                for cell, words in titles.items()
            ):
                break
        for cell, words in titles.items():
            ax = self.panels[cell]
            margin = (1 - ax.get_position().x1) * self.figure.get_figwidth()
            ax.set_title(
                fitting(
                    [words], width_in(ax) + min(0.8 * self.across, 2 * margin), size
                )
            )


_BETWEEN = 9  # places on a line between two of its points


def _make_room(ax: Axes) -> None:
    """Stretch the y axis until no curve of means or of single seeds runs below the legend or below words in a corner.

    These keep their corners. Guides, which have no markers and are not thin, may run
    below them. Words that would need an axis much longer than the data stay as they
    are.
    """
    figure = ax.get_figure(root=True)
    corners = [text for text in ax.texts if text.get_bbox_patch() is not None]
    lines = [line for line in ax.lines if np.size(line.get_xdata()) and _is_curve(line)]
    if not lines or not ax.get_visible() or figure is None:
        return
    FigureCanvasAgg(figure)
    for words in (ax.get_legend(), *corners):
        if words is not None:
            _clear(
                ax,
                words.get_window_extent().transformed(ax.transAxes.inverted()),
                lines,
            )


def _clear(ax: Axes, box: BboxBase, lines: Sequence[Line2D]) -> None:
    """Stretch the y axis until the lines are above or below a box in axes coordinates."""
    with np.errstate(invalid="ignore", divide="ignore"):
        places = np.concatenate([_along(ax, line) for line in lines])
    across = (
        (places[:, 0] > box.x0)
        & (places[:, 0] < box.x1)
        & (places[:, 1] > 0)
        & (places[:, 1] < 1)
    )
    inside = places[across & (places[:, 1] > box.y0) & (places[:, 1] < box.y1), 1]
    is_top = box.y0 + box.y1 > 1
    room = 1 - (box.y1 - box.y0) - 0.04
    if not len(inside) or not room > 0.3 or box.x0 > 1:
        return
    heights = places[across, 1]
    reach = heights.max() if is_top else (1 - heights).max()
    scaled = ax.yaxis.get_transform()
    low, high = scaled.transform(np.array(ax.get_ylim()))
    span = (high - low) * reach / room
    ends = (low, low + span) if is_top else (high - span, high)
    if high - low < span <= _STRETCH * (high - low):
        ax.set_ylim(*scaled.inverted().transform(np.array(ends)))


def _is_curve(line: Line2D) -> bool:
    return line.get_marker() not in (None, "None", "") or (
        np.size(line.get_xdata()) > 2 and line.get_linewidth() < 0.5
    )


def _along(ax: Axes, line: Line2D) -> NDArray[np.float64]:
    """Return points along a line in axes coordinates: its own, and points between them where a line joins them."""
    drawn = np.asarray(line.get_xydata(), dtype=float)
    points = ax.transAxes.inverted().transform(ax.transData.transform(drawn))
    if line.get_linestyle() == "None":
        return points
    ranks = np.arange(len(points))
    finer = np.linspace(0, ranks[-1], (_BETWEEN + 1) * ranks[-1] + 1)
    x, y = points.T
    return np.stack([np.interp(finer, ranks, x), np.interp(finer, ranks, y)], axis=1)


def _page(paper: Paper, note: str, tall: float) -> Figure:
    """Return an empty page with room for panels of this height in inches above the note."""
    words = whole_note(paper, note)
    written = note_lines(paper, words) if paper.note else []
    total = tall
    if written:
        total += _LINE * len(written) + _EDGE
    figure = Figure(figsize=(paper.inches, total))
    figure.set_label(words)
    for index, line in enumerate(reversed(written)):
        y = (_EDGE + _LINE * index) / total
        figure.text(
            _EDGE / paper.inches, y, line, fontsize=TINY, color="#555555", va="bottom"
        )
    return figure


def _arranged(
    paper: Paper,
    names: Sequence[Sequence[str]],
    style: SheetStyle,
    left_out: Sequence[str],
) -> tuple[list[list[Cell]], bool]:
    """Return the positions of the panels line by line, and whether the lines differ from the rows of the matrix."""
    whole = [[(i, j) for j in range(len(row))] for i, row in enumerate(names)]
    cells = {names[i][j]: (i, j) for i, j in chain(*whole)}
    picked = [cells[name] for name in paper.panels if name in cells]
    if picked:
        rows, columns = (dict.fromkeys(side) for side in zip(*picked, strict=True))
        whole = [[(i, j) for j in columns] for i in rows]
    chosen = list(chain(*whole))
    is_matrix = not picked or chosen == picked
    if is_matrix and max(map(len, whole)) <= style.columns(paper):
        return whole, False
    own_scales = style.share_y is False or (style.share_y == "row" and len(whole) > 1)
    apart = style
    if own_scales:
        apart = style.replace(across=max(style.across, _INNER))
    most = apart.columns(paper)
    chosen = picked or [(i, j) for i, j in chosen if names[i][j] not in left_out]
    if 1 < len(whole) <= most and is_matrix:
        chosen = sorted(chosen, key=lambda cell: (cell[1], cell[0]))
        most = len(whole)
    return [list(line) for line in in_rows(chosen, most)], True


def _with_room(lines: list[list[Cell]], style: SheetStyle) -> SheetStyle:
    """Return a style with room for a title above every panel, and for ticks and labels between panels."""
    ragged = any(len(line) > len(below) for line, below in pairwise(lines))
    down = _TITLE
    if not style.share_x:
        down = _TITLE + _TICKS + _PANEL_LABEL
    elif ragged:
        down = _TITLE + _TICKS
    across = style.across
    for cell, other in chain(*map(pairwise, lines)):
        if not _same(other, cell, style):
            across = max(across, _INNER)
    return style.replace(across=across, down=max(style.down, down))


def _same(cell: Cell, other: Cell, style: SheetStyle) -> bool:
    """Whether two panels share their y axis."""
    return style.share_y == "all" or (style.share_y == "row" and cell[0] == other[0])


def _placed(
    figure: Figure,
    lines: list[list[Cell]],
    widths: Sequence[float],
    heights: Sequence[float],
    style: SheetStyle,
) -> Iterator[tuple[Cell, Axes]]:
    """Yield the panels line by line, with tick labels unless the panel below or to the left has the same ones."""
    page = figure.get_figwidth()
    tall = figure.get_figheight()
    panels = dict[Cell, Axes]()
    top = tall - style.top
    for line, below, width, high in zip(
        lines, [*lines[1:], []], widths, heights, strict=True
    ):
        for at, cell in enumerate(line):
            left = style.left + at * (width + style.across)
            sharex = next(iter(panels.values()), None) if style.share_x else None
            sharey = next(
                (ax for other, ax in panels.items() if _same(cell, other, style)), None
            )
            box = (left / page, (top - high) / tall, width / page, high / tall)
            ax = figure.add_axes(box, sharex=sharex, sharey=sharey)
            named = (
                not (style.share_x and at < len(below)),
                not (at and _same(cell, line[at - 1], style)),
            )
            ax.tick_params(labelbottom=named[0], labelleft=named[1])
            panels[cell] = ax
            yield cell, ax
        top -= high + style.down
