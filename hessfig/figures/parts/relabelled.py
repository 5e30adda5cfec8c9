"""Figures with a title, labels and legends of the reader's own, and figures that a notebook shows."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

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
    """Replace what is given: a line above the panels, labels of axes that have one, places of legends (or none)."""
    if title is not None:
        figure.suptitle(title, y=1.0, va="bottom")
    for ax in figure.axes:
        if xlabel is not None and ax.get_xlabel():
            ax.set_xlabel(xlabel)
        if ylabel is not None and ax.get_ylabel():
            ax.set_ylabel(ylabel)
    legends = [*(ax.get_legend() for ax in figure.axes), *figure.legends]
    for one in legends if legend is not None else ():
        if one is not None and legend == "none":
            one.remove()
        elif one is not None:
            one.set_loc(legend)
