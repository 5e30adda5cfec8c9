"""What a figure's artists tell about the rules of figures: words, ticks, legends, colours."""

from __future__ import annotations

import re

import numpy as np

from tests.figures.shipped import laid_out, texts

_IDENTIFIER = re.compile(r"\b(?![WH]_)[A-Za-z]\w*_\w+")
_MATHTEXT = re.compile(r"\$[^$]*\$")


def identifiers(figure, own=()):
    """Return the drawn words that hold names of the code, such as d_model; formulas and names of one's `own` may."""
    found = [
        words
        for words, _, _ in texts(figure)
        if _IDENTIFIER.search(_MATHTEXT.sub("", words))
    ]
    return [words for words in found if not any(name in words for name in own)]


def short_of_ticks(figure):
    """Return the axes (by panel and direction) on which data stand and fewer than two places have a label."""
    laid_out(figure)
    found = []
    for ax in _with_data(figure):
        for which in ("x", "y"):
            if _labels(ax, which) < 2:
                found.append(
                    f"{ax.get_title() or ax.get_ylabel() or '?'}: {which} has {_labels(ax, which)}"
                )
    return found


def under_legends(figure):
    """Return the panels whose legend covers points of lines."""
    laid_out(figure)
    found = []
    for ax in _with_data(figure):
        legend = ax.get_legend()
        if legend is None:
            continue
        box = legend.get_window_extent()
        covered = sum(int(box.contains(x, y)) for x, y in _drawn_points(ax))
        if covered:
            found.append(
                f"{ax.get_title() or ax.get_ylabel() or '?'}: {covered} points"
            )
    return found


def _with_data(figure):
    for ax in figure.axes:
        if (
            ax.get_visible()
            and ax.axison
            and any(np.size(line.get_xdata()) for line in ax.lines)
        ):
            yield ax


def _labels(ax, which):
    """Return how many labels stand at an axis, or at one that shares its scale."""
    return max(
        _own_labels(one, which)
        for one in getattr(ax, f"get_shared_{which}_axes")().get_siblings(ax)
    )


def _own_labels(ax, which):
    axis = getattr(ax, f"{which}axis")
    scaled = axis.get_transform().transform
    low, high = sorted(scaled(np.array(axis.get_view_interval())))
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    shown = [
        tick
        for tick in ticks
        if low - 1e-9 <= scaled(np.array([tick.get_loc()]))[0] <= high + 1e-9
    ]
    return sum(
        bool(tick.label1.get_text().strip() and tick.label1.get_visible())
        for tick in shown
    )


def _drawn_points(ax):
    """Yield every point of the lines with data (not guides across the panel), in pixels."""
    for line in ax.lines:
        if np.size(line.get_xdata()) > 2 and line.get_marker() not in (
            "None",
            None,
            "",
        ):
            yield from ax.transData.transform(
                np.column_stack([line.get_xdata(), line.get_ydata()]).astype(float)
            )
