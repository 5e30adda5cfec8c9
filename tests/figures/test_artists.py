"""The rules of figures, asked of artists: words, ticks, legends, and colours that nobody confuses."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from hessfig.figures.parts.colours import TONES, matrix_colour, matrix_mark, part_colour
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import Sheet
from hessfig.terms import PARTS, Matrix, Part
from tests.figures.artists import identifiers, short_of_ticks, under_legends
from tests.figures.shipped import FIGURES, pages

PAPER = Paper()
OWN = ("blocks.", "Section")  # names of a user's weights stand in figures as they are
# What is left of red, green and blue (linear) to an eye without the medium, or the long
# receptor (Machado et al. 2009, table 1), and on a page without colours.
DEUTERANOPE = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
PROTANOPE = np.array(
    [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
)
GREY = np.tile([0.2126, 0.7152, 0.0722], (3, 1))
EYES = {"all receptors": np.eye(3), "deuteranope": DEUTERANOPE, "protanope": PROTANOPE}
LEAST = 12.0  # Delta E (CIE 1976) between any two colours of a figure; 2.3 is just noticeable
_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.072175],
        [0.0193339, 0.119192, 0.9503041],
    ]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.long
def test_words_ticks_and_legends(figure, tmp_path):
    for page in pages(figure, tmp_path, PAPER):
        assert identifiers(page.figure, OWN) == []
        if page.suffix != "_overview":  # of one depth
            assert short_of_ticks(page.figure) == []
        assert under_legends(page.figure) == []


def _apart(one, other, eye):
    """Return the Delta E of two colours to an eye: their distance in L*a*b*."""
    return float(np.linalg.norm(_lab(one, eye) - _lab(other, eye)))


def _lab(colour, eye):
    stored = np.array(to_rgb(colour))
    linear = np.where(
        stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4
    )
    share = _TO_XYZ @ np.clip(eye @ linear, 0, 1) / _WHITE
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


WEIGHTS = [
    *(name.value for name in Matrix if name != Matrix.W),
    "norms",
    "a weight of another network",
]


@pytest.mark.parametrize("eye", EYES.values(), ids=EYES)
def test_colours_of_weights_and_parts_are_told_apart(eye):
    """All weights, the parts of H at the outputs, and the parts at the scores, which no panel shows next to weights."""
    parts = [part_colour(part) for part in PARTS]
    for together in (
        [*map(matrix_colour, WEIGHTS), *parts],
        list(map(part_colour, Part)),
    ):
        for one, other in itertools.combinations(together, 2):
            assert _apart(one, other, eye) > LEAST, (one, other)


@pytest.mark.parametrize(
    "eye", [np.eye(3), DEUTERANOPE], ids=["all receptors", "deuteranope"]
)
def test_colours_of_kinds_of_networks_are_told_apart(eye):
    for one, other in itertools.combinations(TONES, 2):
        assert _apart(one, other, eye) > LEAST, (one, other)


def test_weights_of_one_grey_differ_in_their_markers():
    for one, other in itertools.combinations(WEIGHTS[:-1], 2):
        alike = _apart(matrix_colour(one), matrix_colour(other), GREY) < LEAST
        assert not alike or matrix_mark(one) != matrix_mark(other), (one, other)


def test_a_colour_has_one_meaning():
    """No kind of network is coloured as a weight or a part."""
    taken = [
        *(matrix_colour(name.value) for name in Matrix),
        *(part_colour(part) for part in Part),
    ]
    for tone, colour in itertools.product(TONES, taken):
        assert _apart(tone, colour, np.eye(3)) > LEAST, (tone, colour)


@pytest.mark.parametrize("style", [{"marker": "o"}, {"linewidth": 0.4}])
def test_legends_stand_clear_of_curves_between_points_and_of_single_seeds(style):
    with styled():
        ax = (sheet := Sheet.grid(Paper(), [["one"]])).first
        ax.plot([0, 0.1, 9.9, 10], [0, 9, 9, 0], **style)
        ax.plot([0, 10], [0, 0], "o", label="another one")
        ax.legend(loc="upper center")
        page = sheet.page("", pd.DataFrame())
    FigureCanvasAgg(page.figure).draw()
    box = ax.get_legend().get_window_extent()
    assert box.width > 10
    assert not any(
        box.contains(*ax.transData.transform((x, 9))) for x in np.linspace(0.1, 9.9, 50)
    )
