"""Figures of races by the data of their artists: curves, and dots that stand for the same runs."""

import numpy as np
import pytest

from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec
from tests.analysis.synthetic import CONFIG, write_sweep
from tests.analysis.test_training_runs import of_rules
from tests.figures.conftest import texts_of

VARIED = {"optimiser": "gd", "learning_rate": 1.0, "clip_norm": 0.0, "damping": 0.0}
RACE = {**CONFIG, "sweep": {"axis": "step"}, "training": VARIED}


def test_a_dot_and_the_end_of_a_curve_are_one_number(pages):
    (page,) = pages("race", of_rules(), settings=RACE, reference="adamw")
    curves, dots = page.figure.axes
    ends = {
        line.get_label(): line.get_ydata()[-1]
        for line in curves.lines
        if line.get_marker() not in ("None", "")
    }
    assert ends == pytest.approx(
        {"Newton": 0.1, "AdamW": 0.4, "gradient descent, clipping 0.1": 0.8}
    )
    assert texts_of(dots.get_yticklabels()) == sorted(ends, key=ends.__getitem__)
    places = []
    for number, one in enumerate(dots.containers):
        (mark, *_) = one.lines
        places.append(float(mark.get_xdata()[0]))
        assert (mark.get_markerfacecolor() == "white") == (number >= 3)
    np.testing.assert_allclose(places[:3], np.array([0.1, 0.4, 0.8]) / 0.4)
    assert places[3] > 1 > places[0]  # a look at the curvature costs nine updates


def test_what_is_not_drawn_is_in_the_file(pages):
    (page,) = pages("race", of_rules(), settings=RACE, reference="adamw")
    numbers = page.numbers
    newton = numbers[
        (numbers["rule"] == "newton") & (numbers["panel"] == "curve")
    ].set_index("gradients")
    assert newton.loc[10, "gradients_and_products"] == 10 + 2 * 300
    assert newton.loc[10, "seconds"] == 100
    assert newton["decrease_ratio"].tolist() == [2.5, 2.5]  # the median over seeds
    assert set(numbers["panel"]) == {"curve", "same step", "same seconds"}
    assert "1*" in set(numbers["rates"].dropna())  # the end of its grid


@pytest.mark.parametrize(
    "paper", [Paper(panels=["step"]), Paper(panels=["ratio"]), Paper(width=3.25)]
)
def test_panels_can_be_picked_and_narrow_pages_fold(tmp_path, paper):
    folder = write_sweep(of_rules(), tmp_path, settings=RACE)
    with styled(paper):
        (page,) = LAYOUTS["race"].draw(
            FigureSpec("x", folder.name, "race", paper=paper), folder
        )
    assert len(page.figure.axes) == (len(paper.panels) or 2)
