"""Ratios along trainings, and SGD's gap next to untrained ratios: the lines are the numbers of the claims' rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.claims.rule import Evidence
from hessfig.errors import UserError
from hessfig.studies.components import rules as component_rules
from tests.analysis.synthetic import CONFIG, write_sweep
from tests.figures.artists import under_legends
from tests.figures.conftest import Draw
from tests.studies.components.test_rules import RATIOS, apart, one, races, trainings

ALONG = {
    **CONFIG,
    "model": {**CONFIG["model"], "scores": "plain", "scaled_weight": "", "weight_scale": 1.0},
    "sweep": {"axis": "step"},
    "training": {"optimiser": "adamw", "learning_rate": 0.01},
}


def as_measured(evidence: Evidence) -> pd.DataFrame:
    """Return the table of made evidence as runs write it: losses are of no block."""
    table = evidence.table
    return table.assign(**{name: table[name].where(table["part"] != "", "") for name in ("row", "col")})


def test_a_component_is_a_line_against_the_held_out_loss(pages: Draw) -> None:
    ends = {**RATIOS, "qk_norm": 0.5}
    (page,) = pages("ratio_courses", as_measured(trainings(ends)), settings=ALONG)
    (ax,) = page.figure.axes
    means = [line for line in ax.lines if line.get_marker() == "o"]
    lasts = sorted(float(line.get_ydata()[-1]) for line in means)
    np.testing.assert_allclose(np.log10(lasts), sorted(ends.values()), atol=0.05)
    assert all(line.get_xdata()[0] == pytest.approx(2 * line.get_xdata()[-1]) for line in means)
    assert ax.xaxis_inverted() and len(ax.lines) == 1 + 6 * len(ends)  # the guide; means and five seeds
    (band,) = ax.patches
    level = component_rules.equal_losses(page.numbers)
    assert (band.get_x(), band.get_width()) == pytest.approx((level.min(), level.max() - level.min()))
    assert {text.get_text() for text in ax.texts} >= {"QK-norm", "softmax", "sigmoid"}


def test_a_component_without_an_optimum_is_named(pages: Draw) -> None:
    (page,) = pages("ratio_courses", as_measured(trainings(RATIOS, {"post": 10.0})), settings=ALONG)
    assert "an end of the grid: post-norm" in page.figure.get_label()
    with pytest.raises(UserError, match="inside the grid"):
        pages("ratio_courses", as_measured(trainings(RATIOS, dict.fromkeys(RATIOS, 10.0))), settings=ALONG)


def test_the_gap_stands_against_the_untrained_ratio(pages: Draw, tmp_path: Path) -> None:
    evidence = races(apart, one)
    with pytest.raises(UserError, match="sweep=ratio_initial"):
        pages("sgd_gap", as_measured(evidence), settings=ALONG)
    write_sweep(evidence.other("ratio_initial").table.assign(sweep="ratio_initial"), tmp_path, settings=ALONG)
    (page,) = pages("sgd_gap", as_measured(evidence), settings=ALONG)
    loss, rate = page.figure.axes
    for ax, slope in ((loss, 0.1), (rate, 0.0)):
        joined = [line for line in ax.lines if line.get_marker() == "None" and len(line.get_xdata()) == 3]
        assert len(joined) == len(RATIOS)
        for line in joined:
            assert np.polyfit(line.get_xdata(), line.get_ydata(), 1)[0] == pytest.approx(slope, abs=0.01)
    losses = page.numbers[page.numbers["panel"] == "losses"].set_index(["network", "scale"])
    assert losses.loc[("sigmoid", 1.0), "x"] == pytest.approx(4.0, abs=0.05)
    assert (losses["low"] <= losses["y"]).all() and (losses["count"] == 5).all()
    assert "weights rescaled 0.1 [" in page.figure.get_label() and not under_legends(page.figure)
