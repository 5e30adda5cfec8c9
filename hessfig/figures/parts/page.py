"""Setup of a page: its width, fonts and style, and the title and labels that the user sets."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.transforms import Bbox

from hessfig.errors import UserError
from hessfig.figures.parts.lettering import LARGEST, SMALL, SMALLEST, TINY, broken

TEXT_WIDTH = 5.5  # inches: the text of an ICLR page
FORMATS = ("pdf", "png", "svg")
_BUNDLES = {"iclr": "iclr2024", "neurips": "neurips2024", "icml": "icml2024"}
_SIZES = (
    "font.size",
    "axes.labelsize",
    "axes.titlesize",
    "legend.fontsize",
    "xtick.labelsize",
    "ytick.labelsize",
)
_FAMILIES = ["STIXGeneral", "DejaVu Serif"]


@dataclass(frozen=True)
class Paper:
    """The settings of a page that apply to every layout: figure.width, note, formats, panels, title ..., and `style`.

    `width` is in inches; None means the width of the style. Without `note` the note is
    written to a .txt file next to the figure. `panels` names the panels to draw; empty
    for all. `title`, `xlabel`, `ylabel` and `legend` (a location of matplotlib, or
    none) replace those of the layout. `seen` holds titles by the suffix of the page, or
    by "*" for every page, which `title` replaces. `changed` lists settings in which the
    network differs from the preset's; every note then names them.
    """

    width: float | None = None
    note: bool = True
    formats: Sequence[str] = FORMATS
    panels: Sequence[str] = ()
    style: str = "default"
    changed: Sequence[str] = ()
    title: str | None = None
    xlabel: str | None = None
    ylabel: str | None = None
    legend: str | None = None
    seen: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("title", "xlabel", "ylabel"):
            check_words(f"figure.{key}", getattr(self, key) or "")

    def labels(self, suffix: str) -> dict[str, str | None]:
        """Return the arguments of `relabel` for the page with this suffix."""
        if self.title is None:
            title = self.seen.get(suffix.lstrip("_"), self.seen.get("*"))
        else:
            title = self.title
        return {
            "title": title,
            "xlabel": self.xlabel,
            "ylabel": self.ylabel,
            "legend": self.legend,
        }

    @property
    def inches(self) -> float:
        """The width of the page in inches."""
        return self.width or (
            _bundle(self.style)["figure.figsize"][0]
            if self.style in _BUNDLES
            else TEXT_WIDTH
        )

    def type_settings(self) -> dict[str, Any]:
        """Return font sizes, clipped to SMALLEST and LARGEST, and family of the style as rcParams; never LaTeX."""
        if self.style not in _BUNDLES:
            return {}
        bundle = _bundle(self.style)
        sizes = {key: min(max(float(bundle[key]), SMALLEST), LARGEST) for key in _SIZES}
        sizes["legend.title_fontsize"] = sizes["legend.fontsize"]
        return {**sizes, "font.family": [*_installed(bundle["font.serif"]), *_FAMILIES]}


def _bundle(style: str) -> dict[str, Any]:
    from tueplots import bundles

    return dict(getattr(bundles, _BUNDLES[style])(usetex=False))


def _installed(families: Sequence[str]) -> list[str]:
    """Return the font families that are installed: matplotlib would warn of a missing one at every letter."""
    from matplotlib.font_manager import fontManager

    known = {font.name for font in fontManager.ttflist}
    return [family for family in families if family in known]


_TICKS = ("xtick", "ytick")
RC = {
    "font.family": _FAMILIES,
    "mathtext.fontset": "stix",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.5,
    "axes.titlepad": 4,
    "axes.labelpad": 2,
    "axes.titley": 1.0,  # a fixed place: finding one costs a layout of every tick label
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.0,
    "lines.markersize": 2.0,
    "legend.fontsize": TINY,
    "legend.title_fontsize": TINY,
    "legend.framealpha": 0.8,
    "legend.edgecolor": "none",
    "legend.fancybox": False,
    "legend.handlelength": 1.2,
    "legend.labelspacing": 0.15,
    "legend.borderpad": 0.1,
    "legend.handletextpad": 0.4,
    "legend.borderaxespad": 0.2,
    "pdf.fonttype": 42,
    "svg.hashsalt": "hessfig",
    "savefig.dpi": 300,
    "figure.dpi": 100,
}
for _tick in _TICKS:
    RC[f"{_tick}.labelsize"] = SMALL
    RC[f"{_tick}.major.width"] = 0.5
    RC[f"{_tick}.major.size"] = 2.2
    RC[f"{_tick}.major.pad"] = 2


@contextmanager
def styled(paper: Paper | None = None) -> Iterator[None]:
    """Context in which figures of a page are built and saved. The caller's rcParams are restored at its end."""
    settings: dict[Any, Any] = {
        k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")
    }
    with mpl.rc_context(settings | RC | (paper or Paper()).type_settings()):
        yield


# Inches of a title and of each of its lines, and points.
_TITLE = 0.12
_TITLE_LINE = 0.14
_TITLE_SIZE = 8.5


class ShownFigure(Figure):
    """A figure that notebooks display with any backend, and whose saved files include its title."""

    def savefig(self, fname: Any, **settings: Any) -> None:
        """Save as matplotlib does; without `bbox_inches`, save the page with its title, as the command line does."""
        super().savefig(fname, **{"bbox_inches": page_box(self), **settings})

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        FigureCanvasAgg(self)
        self.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
        return buffer.getvalue()


def page_box(figure: Figure) -> Bbox | None:
    """Return the area of a figure that is saved. A title stands above the page, so that the area is higher."""
    (width, height), title = figure.get_size_inches(), figure.get_suptitle()
    tall = _TITLE + _TITLE_LINE * (1 + title.count("\n"))
    return Bbox([[0, 0], [width, height + tall]]) if title else None


def shown(figure: Figure) -> ShownFigure:
    """Return the figure as one that notebooks display."""
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
    """Replace the title, the labels of axes that have one, and the location of legends, as far as they are given.

    A title that is wider than the page is broken into lines. Where the y label of a
    panel names its row, the name stays in front of the user's own label.
    """
    if title is not None:
        room = figure.get_figwidth() - 0.1
        # An equation stays on one line.
        whole = title.replace(" = ", "\u00a0=\u00a0")
        lines: list[str] = []
        for line in whole.split("\n"):
            lines.extend(broken(line, room, _TITLE_SIZE))
        words = "\n".join(lines).replace("\u00a0", " ")
        figure.suptitle(words, y=1.0, va="bottom", fontsize=_TITLE_SIZE)
        # They stay on the page below, which grows upwards when it is saved.
        for above in figure.legends:
            above.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
    for ax in figure.axes:
        if xlabel is not None and ax.get_xlabel():
            ax.set_xlabel(xlabel)
        if ylabel is not None and ax.get_ylabel():
            # Matplotlib's own names of axes are in angle brackets.
            row = str(ax.get_label())
            is_named = row and not row.startswith("<")
            ax.set_ylabel(f"{row}: {ylabel}" if is_named else ylabel)
    if legend is None:
        return
    for drawn in [*(ax.get_legend() for ax in figure.axes), *figure.legends]:
        if drawn is not None and legend == "none":
            drawn.remove()
        elif drawn is not None:
            drawn.set_loc(legend)


def check_words(key: str, words: str) -> None:
    """Raise UserError for text that cannot be drawn: formulas that matplotlib cannot parse, and control characters.

    The message names the setting `key` and the position of the error.
    """
    why, place = _control_character(words) or _unreadable(words)
    if why:
        raise UserError(
            f"{key}: {why} at character {place + 1}",
            got=words,
            allowed=r"words, and formulas between dollar signs as matplotlib's mathtext has them: $\sigma^2$",
            remedy=r"a formula without packages of LaTeX, or \$ for a dollar sign",
        )


def _control_character(words: str) -> tuple[str, int] | None:
    for place, letter in enumerate(words):
        if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cs"):
            return "a control character", place
    return None


def _unreadable(words: str) -> tuple[str, int]:
    """Return why a line of some words is not mathtext, and where; ("", 0) for those that can be set."""
    start = 0
    for line in words.split("\n"):
        try:
            if is_math_text(line):
                _parser().parse(line)
        except ValueError as error:
            position = re.search(r"\(at char (\d+)\)", str(error))
            if position:
                start += int(position[1])
            return "this formula cannot be read", start
        start += len(line) + 1
    return "", 0


@cache
def _parser() -> MathTextParser[Any]:
    return MathTextParser("path")
