"""Sweeps to draw, and a way to look at a figure's artists without looking at its pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes

from hessfig.figures.parts.page import styled
from hessfig.figures.parts.panel_sheet import Page
from hessfig.figures.sheets import LAYOUTS, FigureSpec, check
from tests.analysis.synthetic import CONFIG, make_table, write_sweep

Draw = Callable[..., list[Page]]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Draw]:
    """Return draw(layout, table, settings=..., windows=..., x=..., **options) -> pages, nothing saved."""

    def draw(
        layout: str,
        table: pd.DataFrame,
        *,
        settings: Any = CONFIG,
        windows: Any = None,
        **options: Any,
    ) -> list[Page]:
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
def deep() -> pd.DataFrame:
    """Return a table of networks of one to three layers."""
    return make_table(networks=[("", depth) for depth in (1, 2, 3)], seeds=3)


def words(ax: Axes) -> str:
    """Return everything written in a panel: texts and legend entries."""
    legend = ax.get_legend()
    entries = (
        []
        if legend is None
        else [
            legend.get_title().get_text(),
            *(t.get_text() for t in legend.get_texts()),
        ]
    )
    return "\n".join([*(text.get_text() for text in ax.texts), *entries])


def curves(ax: Axes) -> list[Any]:
    """Return the measured curves of a panel: solid lines with markers."""
    return [
        line
        for line in ax.lines
        if line.get_marker() == "o" and line.get_linestyle() == "-"
    ]


def guides(ax: Axes) -> list[Any]:
    """Return the dashed power laws of a panel (not the dotted line at sigma = 1)."""
    lines = [
        line
        for line in ax.lines
        if line.get_marker() == "None" and len(line.get_xdata()) > 2
    ]
    # Thinner ones are seeds.
    return [line for line in lines if line.get_linewidth() > 0.5]
