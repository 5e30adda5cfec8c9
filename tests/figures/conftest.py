"""Sweeps to draw, and a way to look at a figure's artists without looking at its pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.colors import to_hex

from hessfig.figures.parts.page import styled
from hessfig.figures.parts.panel_sheet import Page
from hessfig.figures.sheets import LAYOUTS, FigureSpec, check
from tests.analysis.synthetic import CONFIG, depths, make_table, write_sweep

Draw = Callable[..., list[Page]]


@pytest.fixture
def pages(tmp_path):
    """Return draw(layout, table, settings=..., windows=..., x=..., **options) -> pages, nothing saved."""

    def draw(layout, table, *, settings=CONFIG, windows=None, **options):
        folder = write_sweep(table, tmp_path, settings=settings)
        seen = {
            key: options.pop(key)
            for key in ("x", "colour", "dashes", "preset", "where")
            if key in options
        }
        spec = FigureSpec(
            "x", folder.name, layout, windows or [(None, 1.0)], options, **seen
        )
        check(spec)
        return list(LAYOUTS[layout].draw(spec, folder))

    with styled():
        yield draw


@pytest.fixture
def deep():
    """Return a table of networks of one to three layers."""
    return make_table(networks=depths(1, 2, 3), seeds=3)


def texts_of(artists):
    """Return what artists such as texts and labels of ticks say."""
    return [one.get_text() for one in artists]


def titles_of(axes):
    return [ax.get_title() for ax in axes]


def labels_of(artists):
    """Return the labels of lines or containers, which a legend shows."""
    return [one.get_label() for one in artists]


def suffixes(drawn):
    """Return what stands behind the names of the pages' files."""
    return [page.suffix for page in drawn]


def note_of(page):
    """Return the note below a page, on one line."""
    return " ".join(" ".join(texts_of(page.figure.texts)).split())


def colours(lines):
    return {to_hex(line.get_color()) for line in lines}


def heights(lines):
    return [np.asarray(line.get_ydata(), dtype=float) for line in lines]


def thin(ax):
    """Return the lines of single seeds."""
    return [line for line in ax.lines if line.get_linewidth() < 0.5]


def dots(ax):
    """Return the lines that have round markers."""
    return [line for line in ax.lines if line.get_marker() == "o"]


def words(ax):
    """Return everything written in a panel: texts and legend entries."""
    found = texts_of(ax.texts)
    if legend := ax.get_legend():
        found += texts_of([legend.get_title(), *legend.get_texts()])
    return "\n".join(found)


def curves(ax):
    """Return the measured curves of a panel: solid lines with markers."""
    return [line for line in dots(ax) if line.get_linestyle() == "-"]


def guides(ax):
    """Return the dashed power laws of a panel (neither the dotted line at sigma = 1 nor seeds)."""
    unmarked = [line for line in ax.lines if line.get_marker() == "None"]
    return [
        line for line in unmarked if len(line.get_xdata()) > 2 and line not in thin(ax)
    ]
