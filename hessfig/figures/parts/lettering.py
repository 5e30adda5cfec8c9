"""Font sizes, and the width of words in print."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.cbook import is_math_text
from matplotlib.font_manager import FontProperties

# Points: limits of the font sizes that a style may ask for.
SMALLEST, LARGEST = (7.0, 9.0)
SMALL = TINY = SMALLEST  # points: ticks, legends and words in panels
# Behind words on lines.
BACKING = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
_DOTS = 300  # dots per inch at which text is measured


def points(key: str) -> float:
    """Return a font size of the current style, such as axes.titlesize, in points."""
    sizes: Any = mpl.rcParams
    return float(FontProperties(size=sizes[key]).get_size_in_points())


def width_of(words: str, size: float = TINY) -> float:
    """Return the width of the widest line of a text in inches, in the current font at `size` points."""
    family = tuple(mpl.rcParams["font.family"])
    return max((_width(line, size, family) for line in words.split("\n")), default=0.0)


def fitting(candidates: Sequence[str], room: float, size: float = TINY) -> str:
    """Return the first text that fits into `room` inches, otherwise the last one, cut in its middle if it is plain."""
    for words in candidates:
        if width_of(words, size) <= room:
            return words
    words = candidates[-1]
    if is_math_text(words):
        return words
    for keep in range(len(words) - 1, 2, -1):
        shorter = _cut(words, keep)
        if width_of(shorter, size) <= room:
            return shorter
    return _cut(words, 2)


def broken(words: str, room: float, size: float = TINY) -> list[str]:
    """Return a text as lines that fit into `room` inches; a longer word is cut."""
    lines = [""]
    for word in words.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if width_of(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(fitting([word], room, size))
    return [line for line in lines if line]


@cache
def _renderer() -> RendererAgg:
    return RendererAgg(1, 1, _DOTS)


@cache
def _width(line: str, size: float, family: tuple[str, ...]) -> float:
    letters = FontProperties(family=list(family), size=size)
    width, *_ = _renderer().get_text_width_height_descent(
        line, letters, is_math_text(line)
    )
    return float(width) / _DOTS


def _cut(words: str, keep: int) -> str:
    return f"{words[: (keep + 1) // 2]}…{words[len(words) - keep // 2 :]}"
