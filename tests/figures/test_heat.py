"""Heat maps layer by weight: what stands where, on which scale, and what is refused."""

import numpy as np
import pytest

from hessfig.errors import UserError
from hessfig.figures.parts.page import TEXT_WIDTH, Paper, styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec
from tests.analysis.synthetic import make_table, write_sweep
from tests.figures import shipped
from tests.figures.conftest import texts_of, words


def deep_table(**columns):
    """Return a table of one network of three layers at one sigma."""
    table = make_table(networks=[("", 3)], seeds=2, sigma=[1.0], noise=0, wander=0)
    return table.assign(**columns)


def test_layers_run_down_and_weights_across(pages):
    table = deep_table()
    (page,) = pages("heat", table)
    panels = [ax for ax in page.figure.axes if ax.images]
    names = list(dict.fromkeys(table[table["row"] == table["col"]]["row"]))
    for ax, part in zip(panels, ("H_o", "H_f", "H"), strict=False):
        square = ax.images[0].get_array()
        assert square.shape == (3, len(names))
        for (i, j), value in np.ndenumerate(square):
            here = page.numbers
            row = here[(here["part"] == part) & (here["layer"] == i + 1)].iloc[j]
            assert row["is_zero"] or value == pytest.approx(np.log10(row["mean"]))
    assert texts_of(panels[0].get_yticklabels()) == ["1", "2", "3"]


def test_negative_values_are_coloured_themselves(pages):
    table = deep_table()
    table["value"] *= np.where(table["part"] == "H", -1.0, 1.0)
    table["quantity"] = "smallest_eigenvalue"
    (page,) = pages("heat", table, quantities=["smallest_eigenvalue"])
    last = [ax for ax in page.figure.axes if ax.images][-1]
    assert np.nanmax(last.images[0].get_array()) < 0
    assert "smallest eigenvalue" in page.figure.axes[-1].get_ylabel()


def test_few_weights_carry_their_numbers(pages):
    (page,) = pages("heat", deep_table())
    assert "−" in words(page.figure.axes[0]) or "." in words(page.figure.axes[0])


def test_pairs_alone_are_refused(pages):
    table = deep_table()
    with pytest.raises(UserError, match="blocks=each"):
        pages(
            "heat",
            table.assign(col="W_K", row="W_Q").drop_duplicates(
                ["layer", "part", "seed"]
            ),
        )


def colour_bar(page):
    """Return how far the colour bar stands from the last map, and how wide it is, in inches."""
    width = page.figure.get_figwidth()
    *_, last, bar = (ax.get_position() for ax in page.figure.axes)
    return (bar.x0 - last.x1) * width, bar.width * width


def heat_pages(folder, asked):
    write_sweep(deep_table(), folder)
    with styled(asked):
        return list(
            LAYOUTS["heat"].draw(
                FigureSpec("heat", "sigma", "heat", paper=asked), folder / "sigma"
            )
        )


def test_the_colour_bar_is_as_wide_on_every_page(tmp_path):
    (narrow,), (wide,) = (
        heat_pages(tmp_path, Paper(width=width)) for width in (3.25, TEXT_WIDTH)
    )
    assert colour_bar(narrow) == pytest.approx(colour_bar(wide), rel=1e-6)


def test_titles_fit_a_narrow_page(tmp_path):
    asked = Paper(width=3.25)
    (page,) = heat_pages(tmp_path, asked)
    with styled(asked):
        assert shipped.overlaps(page.figure) == []
        assert shipped.outside(page.figure) == []
