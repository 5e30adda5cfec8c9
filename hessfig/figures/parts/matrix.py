"""A matrix of numbers as colours, with words in its cells, and its colour bar."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

from hessfig.figures.parts.lettering import TINY
from hessfig.figures.parts.ticks import part_ticks


def draw_matrix(
    ax: Axes,
    square: np.ndarray,
    scale: Normalize,
    *,
    words: np.ndarray | None = None,
    size: float = TINY,
    dark: float = 0.55,
    missing: str = "",
    **image: Any,
) -> AxesImage:
    """Draw finite numbers as colours, and `words` in the cells; other numbers leave a cell grey.

    Where these have a colour of their own (`missing`), which may be that of the page, the panel keeps its frame. Words
    are white on cells of less than the share `dark` of the scale, black on others.
    """
    shown = np.where(np.isfinite(square), square, np.nan)
    drawn = ax.imshow(shown, norm=scale, **{"cmap": "viridis", "aspect": "auto", **image})
    ax.set_facecolor(missing or "#e6e6e6")
    for (i, j), text in np.ndenumerate(words) if words is not None else ():
        if text:
            colour = "white" if np.isfinite(shown[i, j]) and scale(shown[i, j]) < dark else "black"
            ax.text(j, i, str(text), ha="center", va="center", color=colour, fontsize=size)
    if not missing:
        ax.spines[:].set_visible(False)
    return drawn


def name_sides(ax: Axes, *, rows: Sequence[str] = (), columns: Sequence[str] = (), upright: bool = True) -> None:
    """Write names next to rows and below columns, without ticks; those of columns run upwards if `upright`."""
    ax.tick_params(length=0)
    if columns:
        ax.set_xticks(range(len(columns)), columns, rotation=90 if upright else 0)
    if rows:
        ax.set_yticks(range(len(rows)), rows)


def colour_bar(ax: Axes, drawn: AxesImage, *, gap: float = 0.08, wide: float = 0.08, label: str = "") -> Colorbar:
    """Draw the scale of a matrix at the right of a panel, as far from it and as wide (in inches) on every page."""
    figure: Any = ax.figure
    box, page = ax.get_position(), figure.get_figwidth()
    place = figure.add_axes((box.x1 + gap / page, box.y0, wide / page, box.height), label="<colorbar>")
    bar: Colorbar = figure.colorbar(drawn, cax=place, label=label)
    part_ticks(place)
    return bar
