"""Figures with a title, labels and legends of the reader's own, and figures that a notebook shows."""

from __future__ import annotations

import io
import re
import unicodedata
from functools import cache
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.transforms import Bbox

from hessfig.errors import UserError

_TITLE = 0.25  # inches


class ShownFigure(Figure):
    """A figure that a notebook shows, whatever drawing backend it has, and whose files hold its title too."""

    def savefig(self, fname: Any, **settings: Any) -> None:
        """Save as matplotlib does: the page with its title, as on the command line, unless `bbox_inches` is given."""
        super().savefig(fname, **{"bbox_inches": page_box(self), **settings})

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        FigureCanvasAgg(self)
        self.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
        return buffer.getvalue()


def page_box(figure: Figure) -> Bbox | None:
    """Return what of a figure is saved: with a title, which stands above the page as it was laid out, a higher page."""
    width, height = figure.get_size_inches()
    return Bbox([[0, 0], [width, height + _TITLE]]) if figure.get_suptitle() else None


def shown(figure: Figure) -> ShownFigure:
    """Return the same figure as one that a notebook shows."""
    figure.__class__ = ShownFigure
    assert isinstance(figure, ShownFigure)
    return figure


def relabel(
    figure: Figure,
    *,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: Any = None,
) -> None:
    """Replace what is given: a line above the panels, labels of axes that have one, places of legends (or none).

    A panel whose y label names what its row shows is called so; the name stays before a label of the reader's own.
    """
    if title is not None:
        figure.suptitle(title, y=1.0, va="bottom")
        for above in figure.legends:  # they stay on the page below, which grows upwards when it is saved
            above.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
    for ax in figure.axes:
        if xlabel is not None and ax.get_xlabel():
            ax.set_xlabel(xlabel)
        if ylabel is not None and ax.get_ylabel():
            row = str(ax.get_label())  # matplotlib's own names of axes are in angle brackets
            ax.set_ylabel(ylabel if not row or row.startswith("<") else f"{row}: {ylabel}")
    legends = [*(ax.get_legend() for ax in figure.axes), *figure.legends]
    for one in legends if legend is not None else ():
        if one is not None and legend == "none":
            one.remove()
        elif one is not None:
            one.set_loc(legend)


def check_words(key: str, words: str) -> None:
    """Raise UserError for words that cannot be set in type: a formula that matplotlib cannot read, a control character.

    The setting `key` is named, and the place where reading ends.
    """
    wrong = next((letter for letter in words if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cs")), None)
    if wrong is not None:
        why, place = "a control character", words.index(wrong)
    else:
        why, place = _unreadable(words)
    if why:
        raise UserError(
            f"{key}: {why} at character {place + 1}",
            got=words,
            allowed=r"words, and formulas between dollar signs as matplotlib's mathtext has them: $\sigma^2$",
            remedy=r"a formula without packages of LaTeX, or \$ for a dollar sign",
        )


def _unreadable(words: str) -> tuple[str, int]:
    """Return why a line of some words is no mathtext, and where; ("", 0) for those that can be set."""
    start = 0
    for line in words.split("\n"):
        try:
            if is_math_text(line):
                _parser().parse(line)
        except ValueError as error:
            found = re.search(r"\(at char (\d+)\)", str(error))
            return "this formula cannot be read", start + (int(found[1]) if found else 0)
        start += len(line) + 1
    return "", 0


@cache
def _parser() -> MathTextParser[Any]:
    return MathTextParser("path")
