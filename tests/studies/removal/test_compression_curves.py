"""Curves of pruning and quantisation: what lines and marks hold, and what is refused."""

from itertools import pairwise
from math import atanh, sqrt, tanh

import numpy as np
import pandas as pd
import pytest

from hessfig.errors import UserError
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec
from tests.analysis.synthetic import CONFIG, make_table, write_sweep
from tests.figures.conftest import titles_of

LOSSES = {"magnitude": (1.0, 4.0), "obd_hessian": (1.0, 2.0), "obs_hessian": (1.0, 1.5)}
CORRELATIONS = {"magnitude": (0.1, 0.3), "obs_hessian": (0.7, 0.9)}


def rows(quantity, by_seed, index=0, blocks=("all",)):
    """Return rows of a quantity, a value for each seed."""
    made = make_table(
        seeds=len(by_seed),
        sigma=[0.2],
        blocks=[(name, name) for name in blocks],
        parts=["H"],
    )
    place = made["seed"].rank(method="dense").astype(int) - 1
    values = [by_seed[one] for one in place]
    return made.assign(
        quantity=quantity,
        index=index,
        part="",
        layer=0,
        row_layer=0,
        value=values,
        status="ok",
    )


def drawn(layout, table, folder, **options):
    written = write_sweep(table, folder, settings=CONFIG)
    spec = FigureSpec(
        "figure", written.name, layout, [(None, None)], options, paper=Paper()
    )
    with styled(spec.paper):
        return list(LAYOUTS[layout].draw(spec, written))


def test_curves_and_correlations_are_means_over_seeds(tmp_path):
    tables = [
        rows("removed_share", (0.0, 0.0), 0),
        rows("removed_share", (0.5, 0.5), 1),
    ]
    for name, ys in LOSSES.items():
        for k, y in enumerate(ys):
            tables.append(rows(f"{name}_loss", (2 * y, y / 2), k))
    for name, values in CORRELATIONS.items():
        tables.append(rows(f"{name}_correlation", values))
    table = pd.concat(tables, ignore_index=True)
    losses, page = drawn("pruning", table, tmp_path)
    (curves,), (correlations,) = losses.figure.axes, page.figure.axes
    (few, _) = drawn("pruning", table, tmp_path, saliencies=["obs_hessian"])
    assert set(few.numbers["saliency"]) == {"obs_hessian"}
    assert len(few.figure.axes[0].lines) < len(curves.lines)
    with pytest.raises(
        UserError, match=r"saliencies: there is no such saliency[\s\S]*obs_hessian"
    ):
        drawn("pruning", table, tmp_path, saliencies=["obs_hesian"])
    lines = {tuple(np.round(line.get_ydata(), 9)): line for line in curves.lines}
    # Of 2 y and y / 2 the geometric mean is y.
    assert set(lines) == set(LOSSES.values())
    for line in lines.values():
        assert list(line.get_xdata()) == [0.0, 0.5]
    by_rule = [lines[LOSSES[name]] for name in ("obd_hessian", "obs_hessian")]
    assert by_rule[0].get_color() == by_rule[1].get_color()
    assert [one.get_linestyle() for one in by_rule] == ["--", "-"]

    marks = set()
    expected = []
    for line in correlations.lines:
        if line.get_marker() == "o":
            marks.add(float(line.get_xdata()[0]))
    for one, other in CORRELATIONS.values():
        expected.append(tanh((atanh(one) + atanh(other)) / 2))
    assert sorted(marks) == pytest.approx(sorted(expected))
    numbers = page.numbers[page.numbers["number"] == "correlation"].set_index(
        "saliency"
    )
    # Student's t of one degree of freedom.
    half = 12.706204736 * abs(atanh(0.9) - atanh(0.7)) / sqrt(2) / sqrt(2)
    middle = (atanh(0.9) + atanh(0.7)) / 2
    assert numbers.loc["obs_hessian", "high"] == pytest.approx(tanh(middle + half))


def test_a_panel_of_bits_is_that_of_a_block_and_bits_fall(tmp_path):
    rises = {8: 0.0, 4: 0.1, 3: 0.4}
    tables = []
    for name, factor in (("nearest", 1.0), ("gptq_hessian", 0.5)):
        for bits, rise in rises.items():
            values = (factor * rise, factor * rise)
            tables.append(rows(f"{name}_increase", values, bits, ("W_E", "all")))
    table = pd.concat(tables, ignore_index=True)
    (page,) = drawn("quantisation", table, tmp_path)
    first, second = page.figure.axes
    assert titles_of((first, second)) == ["all matrices", r"$W_{\mathrm{E}}$"]
    found = [
        list(line.get_ydata()) for line in first.lines if len(line.get_xdata()) == 3
    ]
    np.testing.assert_allclose(found, [[0.4, 0.1, 0.0], [0.2, 0.05, 0.0]])
    assert first.get_xlim()[0] > first.get_xlim()[1]


def test_labels_of_four_networks_do_not_meet(tmp_path):
    one = pd.concat(
        [
            rows("removed_share", (0.0, 0.0), 0),
            rows("removed_share", (0.5, 0.5), 1),
            rows("magnitude_loss", (1.0, 2.0), 0),
            rows("magnitude_loss", (2.0, 3.0), 1),
            rows("magnitude_correlation", (0.1, 0.3)),
        ]
    )
    table = pd.concat(
        [one.assign(variant=f"model.d_model={width}") for width in (2, 4, 8, 16)]
    )
    for page in drawn("pruning", table, tmp_path, saliencies=["magnitude"]):
        page.figure.canvas.draw()
        places = []
        for ax in page.figure.axes:
            box = ax.xaxis.label.get_window_extent()
            places.append((box.x0, box.x1))
        assert len(places) == 4
        for (_, end), (start, _) in pairwise(places):
            assert end < start
        assert places[-1][1] <= page.figure.bbox.width


@pytest.mark.parametrize("layout", ["pruning", "quantisation"])
def test_a_table_without_such_numbers_is_refused(layout, tmp_path):
    with pytest.raises(
        UserError, match=f"layout={layout}: the table has no such numbers"
    ):
        drawn(layout, make_table(seeds=1), tmp_path)
