"""One look for every figure: sizes, fonts, colours. Nothing is set at import; draw inside `styled()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties

from hessfig.figures.parts.paper import SMALLEST, TEXT_WIDTH, Paper, laid_out_for
from hessfig.terms import Matrix, Part

__all__ = ["TEXT_WIDTH"]
SMALL = TINY = SMALLEST  # points: ticks, legends and words in panels

_MATRIX_COLOURS: dict[str, str] = {
    Matrix.W_V: "#7570b3",
    Matrix.W_Q: "#1b9e77",
    Matrix.W_K: "#66a61e",
    Matrix.W_QK: "#1b7f9e",
}
_PART_COLOURS = {Part.H_o: "#d95f02", Part.H_f: "#e7298a", Part.H: "#444444"}
_OTHER = "#a6761d"
_DOTS = 300  # per inch, at which words are measured
GUIDE = "#808080"
PUBLISHED = "#222222"
BACKING = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}  # behind words on lines

RC = {
    "font.family": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.5,
    "axes.titlepad": 4,
    "axes.titley": 1.0,  # a fixed place: finding one costs a layout of every tick label
    "axes.labelpad": 2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.2,
    "ytick.major.size": 2.2,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
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


@contextmanager
def styled(paper: Paper | None = None) -> Iterator[None]:
    """The context in which figures are built and saved, for a paper; the caller's settings come back after it."""
    chosen = paper or Paper()
    settings: dict[Any, Any] = {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")}
    with mpl.rc_context(settings | RC | chosen.type_settings()), laid_out_for(chosen):
        yield


def points(key: str) -> float:
    """Return a size of the present type, such as axes.titlesize, in points."""
    return float(FontProperties(size=mpl.rcParams[key]).get_size_in_points())


def width_of(words: str, size: float = TINY) -> float:
    """Return how many inches the widest line of some words takes in the present type, `size` in points."""
    family = tuple(mpl.rcParams["font.family"])
    return max((_width(line, size, family) for line in words.split("\n")), default=0.0)


def fitting(candidates: Sequence[str], room: float, size: float = TINY) -> str:
    """Return the first of some words that fit into `room` inches; else the last, cut in its middle if plain."""
    for words in candidates:
        if width_of(words, size) <= room:
            return words
    words = candidates[-1]
    if is_math_text(words):
        return words
    keep = next((n for n in range(len(words) - 1, 2, -1) if width_of(_cut(words, n), size) <= room), 2)
    return _cut(words, keep)


def matrix_colour(name: str) -> str:
    """Return the colour of a weight (the published ones for W_V and W_Q)."""
    return _MATRIX_COLOURS.get(name, _OTHER)


def part_colour(part: str) -> str:
    """Return the colour of a part of the Hessian, for panels that show several."""
    return _PART_COLOURS[Part(part)]


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """Return `count` shades of a colour, light to dark (later layers); a single one is the colour itself."""
    if count == 1:
        return [to_rgb(colour)]
    return [_shade(colour, 0.6 - 1.05 * index / (count - 1)) for index in range(count)]


def _shade(colour: str, lightness: float) -> tuple[float, float, float]:
    """Mix with white (lightness > 0) or black (lightness < 0)."""
    target, weight = (1.0, lightness) if lightness > 0 else (0.0, -lightness)
    red, green, blue = (channel + (target - channel) * weight for channel in to_rgb(colour))
    return red, green, blue


@cache
def _renderer() -> RendererAgg:
    return RendererAgg(1, 1, _DOTS)


@cache
def _width(line: str, size: float, family: tuple[str, ...]) -> float:
    letters = FontProperties(family=list(family), size=size)
    width, *_ = _renderer().get_text_width_height_descent(line, letters, is_math_text(line))
    return float(width) / _DOTS


def _cut(words: str, keep: int) -> str:
    return f"{words[: (keep + 1) // 2]}…{words[len(words) - keep // 2 :]}"
