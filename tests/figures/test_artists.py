"""The rules of figures, asked of artists: words, ticks, legends, and colours that nobody confuses."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from hessfig.figures.parts.colours import TONES, matrix_colour, part_colour
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import Sheet
from hessfig.terms import Matrix, Part
from tests.figures.artists import identifiers, short_of_ticks, under_legends
from tests.figures.shipped import FIGURES, pages

PAPER = Paper()
OWN = ("blocks.", "Section")  # names of a user's weights stand in figures as they are
# What is left of red, green and blue (linear) to an eye without the medium receptor (Machado et al. 2009, table 1).
DEUTERANOPE = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.long
def test_words_ticks_and_legends(figure: str, tmp_path: Path) -> None:
    for page in pages(figure, tmp_path, PAPER):
        assert identifiers(page.figure, OWN) == []
        if page.suffix != "_overview":  # of one depth
            assert short_of_ticks(page.figure) == []
        assert under_legends(page.figure) == []


def _apart(one: str, other: str, eye: np.ndarray) -> float:
    return float(np.abs(_seen(one, eye) - _seen(other, eye)).max())


def _seen(colour: str, eye: np.ndarray) -> np.ndarray:
    linear = np.array(to_rgb(colour)) ** 2.2
    return np.clip(eye @ linear, 0, 1) ** (1 / 2.2)


@pytest.mark.parametrize("eye", [np.eye(3), DEUTERANOPE], ids=["all receptors", "deuteranope"])
def test_colours_of_one_figure_are_told_apart(eye: np.ndarray) -> None:
    """Kinds of networks among themselves, and the parts of H that stand in one panel."""
    parts = [part_colour(part) for part in (Part.H_o, Part.H_f, Part.H)]
    for together in (TONES, parts):
        for one, other in itertools.combinations(together, 2):
            assert _apart(one, other, eye) > 0.1, (one, other)


def test_a_colour_has_one_meaning() -> None:
    """No kind of network is coloured as a weight or a part."""
    taken = [*(matrix_colour(name.value) for name in Matrix), *(part_colour(part) for part in Part)]
    for tone, colour in itertools.product(TONES, taken):
        assert _apart(tone, colour, np.eye(3)) > 0.1, (tone, colour)


@pytest.mark.parametrize("style", [{"marker": "o"}, {"linewidth": 0.4}])
def test_legends_stand_clear_of_curves_between_points_and_of_single_seeds(style: dict[str, Any]) -> None:
    with styled():
        ax = (sheet := Sheet.grid(Paper(), [["one"]])).first
        ax.plot([0, 0.1, 9.9, 10], [0, 9, 9, 0], **style)
        ax.plot([0, 10], [0, 0], "o", label="another one")
        ax.legend(loc="upper center")
        page = sheet.page("", pd.DataFrame())
    FigureCanvasAgg(page.figure).draw()
    box = ax.get_legend().get_window_extent()
    assert box.width > 10 and not any(box.contains(*ax.transData.transform((x, 9))) for x in np.linspace(0.1, 9.9, 50))
