"""One A4 page of results: existing pictures, a few lines below each, and a list of verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten, wrap

import matplotlib.image
from matplotlib.figure import Figure

from hessfig.figures.parts.page import styled
from hessfig.figures.parts.saving import save_figure

SHOWN, _TALLEST = 4, 0.2  # pictures on the page, and the largest share of its height that one takes
_A4 = (8.27, 11.69)  # inches
_COLUMN, _WIDE = 0.46, 0.42  # shares of the width: from column to column, and of a picture
_LINE, _TOP, _LEFT = 0.0135, 0.965, 0.06  # of the page's height and width


@dataclass(frozen=True)
class SummaryEntry:
    """A picture with its heading and the lines below it."""

    title: str
    picture: Path
    lines: Sequence[str]


def save_summary(about: str, entries: Sequence[SummaryEntry], verdicts: Sequence[str], folder: Path) -> Path:
    """Write the page into a folder as a PDF; return its path."""
    with styled():
        figure = Figure(figsize=_A4)
        figure.text(_LEFT, _TOP, "Curvature of transformers: results at a glance", size=14)
        figure.text(_LEFT, _TOP - 0.018, f"{about}; slopes: own (published; predicted)", size=8, color="0.35")
        tops = [_TOP - 0.045, _TOP - 0.045]
        for number, entry in enumerate(entries):
            side = number % 2
            tops[side] = _draw_one(figure, entry, left=_LEFT + _COLUMN * side, top=tops[side])
        _draw_verdicts(figure, verdicts, top=min(tops) - 0.012)
        (path,) = save_figure(figure, folder, "summary", ["pdf"])
    return path


def _draw_one(figure: Figure, entry: SummaryEntry, *, left: float, top: float) -> float:
    """Draw a heading, a picture and its lines from `top` down; return the position of their lower end."""
    image = matplotlib.image.imread(entry.picture)
    shape = _A4[0] / _A4[1] * image.shape[0] / image.shape[1]
    height = min(_WIDE * shape, _TALLEST)
    figure.text(left, top, shorten(entry.title, 62, placeholder=" ..."), size=9, va="top")
    box = figure.add_axes((left, top - 0.018 - height, height / shape, height))
    box.imshow(image)
    box.set_axis_off()
    place = top - 0.022 - height
    for line in (words for text in entry.lines for words in wrap(text, 70)):
        figure.text(left, place, line, size=7.5, va="top")
        place -= _LINE
    return place - 0.012


def _draw_verdicts(figure: Figure, verdicts: Sequence[str], *, top: float) -> None:
    """List as many verdicts as fit on the page, in two columns."""
    if not verdicts:
        return
    room = max(int((top - 0.05) / _LINE), 1)
    figure.text(_LEFT, top, "Claims of the literature", size=9, va="top")
    for number, words in enumerate(verdicts[: 2 * room]):
        left, row = _LEFT + _COLUMN * (number // room), number % room
        figure.text(left, top - 0.018 - _LINE * row, words, size=7.5, va="top")
    if len(verdicts) > 2 * room:
        figure.text(_LEFT, 0.02, f"and {len(verdicts) - 2 * room} more in claims.csv", size=7.5)
