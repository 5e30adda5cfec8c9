"""The values of settings of slopes and figures."""

from __future__ import annotations

from enum import StrEnum


class Average(StrEnum):
    """Whose logarithm slopes are fitted to: the mean over seeds, or the geometric mean (for norms of many decades)."""

    arithmetic = "arithmetic"
    geometric = "geometric"


class FigureGroup(StrEnum):
    """Figures of the paper, of its claims beyond it, of follow-ups, and of theory studies that need no sweep."""

    paper = "paper"
    beyond = "beyond"
    follow_up = "follow_up"
    study = "study"
    own = "own"


class Published(StrEnum):
    """What the authors published of a figure: numbers, pictures alone, or nothing."""

    numbers = "numbers"
    pictures = "pictures"
    nothing = "nothing"


class Style(StrEnum):
    """Type and width of a figure: our own, or those of a conference (by tueplots)."""

    default = "default"
    iclr = "iclr"
    neurips = "neurips"
    icml = "icml"


class Format(StrEnum):
    """The files of a figure; its numbers are written as CSV beside them."""

    pdf = "pdf"
    png = "png"
    svg = "svg"
