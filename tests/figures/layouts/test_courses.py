"""Figures along a training on text: heat maps a part, where attention goes, and pages of layers, by their data."""

import itertools

import numpy as np
import pytest

from hessfig.errors import UserError
from tests.analysis.spectral import spectral_table
from tests.analysis.synthetic import CONFIG
from tests.figures.conftest import dots, heights, note_of, suffixes

ALONG = {**CONFIG, "sweep": {"axis": "step"}}


def masses():
    """Return the weight of the first key of 2 layers of 3 heads, and of 4 keys, for 2 seeds at 2 steps."""
    rows = []
    for seed, step, layer in itertools.product((1, 2), (0.0, 9.0), (1, 2)):
        place = {"seed": seed, "step": step, "layer": layer, "row_layer": layer}
        for head in (1, 2, 3):
            mass = {"quantity": "sink_mass", "index": head}
            rows.append({**place, **mass, "value": 0.1 * layer * head * (step > 0)})
        for key in range(1, 5):
            mass = {"quantity": "key_mass", "index": key}
            rows.append({**place, **mass, "value": layer / key})
    return spectral_table(rows).assign(row="", col="", part="", num_layers=2)


def test_attention_is_drawn_by_head_along_steps_and_by_key(pages):
    (page,) = pages("attention_mass", masses(), settings=ALONG)
    heads, steps, keys = page.figure.axes
    np.testing.assert_allclose(
        heads.images[0].get_array(), [[0.1, 0.2, 0.3], [0.2, 0.4, 0.6]]
    )
    first, second = heights(dots(steps))
    np.testing.assert_allclose(sorted([first[-1], second[-1]]), [0.2, 0.4])
    assert len(steps.lines) == 2 + 4  # the means of two layers, and two seeds of each
    np.testing.assert_allclose(
        heights(dots(keys)), [[1, 1 / 2, 1 / 3, 1 / 4], [2, 1, 2 / 3, 1 / 2]]
    )
    uniform = (1 / 2 + 1 / 3 + 1 / 4) / 3
    assert f"gives the first of 4 keys {uniform:.3f}" in note_of(page)
    assert set(page.numbers["panel"]) == {"first_key", "steps", "keys"}


def test_attention_that_was_not_measured_is_said(pages):
    table = masses().replace({"sink_mass": "score_spread"})
    with pytest.raises(
        UserError, match=r"the table has none(.|\n)*sweep=language_sinks"
    ):
        pages("attention_mass", table, settings=ALONG)


def test_heat_maps_have_a_page_a_part(pages):
    rows = [
        {
            "row": "W_V",
            "layer": 1,
            "row_layer": 1,
            "seed": seed,
            "step": step,
            "part": part,
            "value": value,
        }
        for seed in (1, 2)
        for step in (0.0, 9.0)
        for part, value in (("H", 10.0), ("H_o", 100.0), ("H_f", 1000.0))
    ]
    table = spectral_table(rows)
    found = pages("curvature_flow", table, settings=ALONG, parts=["H", "H_f"])
    assert suffixes(found) == ["_H", "_H_f"]
    assert [
        float(page.figure.axes[0].images[0].get_array().max()) for page in found
    ] == [1.0, 3.0]
    (alone,) = pages("curvature_flow", table, settings=ALONG)
    (last,) = [ax for ax in alone.figure.axes if "at step 9" in ax.get_title()]
    assert all(tick.label2.get_visible() for tick in last.yaxis.get_major_ticks())
    assert alone.suffix == ""
    assert float(alone.figure.axes[0].images[0].get_array().max()) == 1.0
