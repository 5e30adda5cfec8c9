"""The values of sigma."""

from itertools import pairwise

import pytest

from hessfig.config.enums import Spacing
from hessfig.config.grid import sigma_values
from hessfig.config.science import GridConfig


def test_the_papers_grid():
    values = sigma_values(GridConfig())
    assert len(values) == 20
    assert (values[0], values[-1]) == (0.01, 10.0)
    ratios = {round(b / a, 9) for a, b in pairwise(values)}
    assert len(ratios) == 1


def test_the_published_sigmas_are_met():
    """The second published value is 0.01438449888."""
    assert sigma_values(GridConfig())[1] == pytest.approx(0.01438449888, rel=1e-9)


def test_linear_spacing():
    assert sigma_values(
        GridConfig(spacing=Spacing.linear, low=0.1, high=1.0, points=4)
    ) == [0.1, 0.4, 0.7, 1.0]


def test_given_values_are_sorted():
    assert sigma_values(GridConfig(values=[1, 0.1])) == [0.1, 1.0]


def test_one_point_is_the_low_end():
    assert sigma_values(GridConfig(points=1, low=0.3)) == [0.3]


def test_values_print_exactly():
    """A sigma read back from a table is the sigma that keyed the cell."""
    assert all(
        float(f"{value:.12g}") == value for value in sigma_values(GridConfig(points=37))
    )
