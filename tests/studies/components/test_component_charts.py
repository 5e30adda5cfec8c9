"""Centred softmax before and after training: what is drawn are the numbers of the rule and the predicted gaps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.claims.rule import Evidence
from hessfig.errors import UserError
from hessfig.studies.components.rules import tuned_losses
from scripts.claim_power import trainings
from tests.analysis.claim_tables import block, of
from tests.analysis.synthetic import CONFIG, make_table, write_sweep
from tests.figures.artists import under_legends
from tests.figures.conftest import Draw
from tests.studies.components.test_rules import WHOLE

ALONG = {
    **CONFIG,
    "model": {**CONFIG["model"], "centring": 0.0, "scaled_weight": "", "weight_scale": 1.0},
    "sweep": {"axis": "step"},
    "training": {"optimiser": "adamw", "learning_rate": 0.01, "momentum": 0.0},
}
EXPONENTS = {"": (2, 5), "model.centring=0.9": (2, 5), "model.centring=1.0": (6, 5)}
SIGMAS = (0.001, 0.005, 0.02, 0.1, 1.0)


def as_measured(losses: pd.DataFrame) -> pd.DataFrame:
    """Return a table of losses as runs write it, with the loss of a table of pairs."""
    rows = losses[["variant", "seed", "step", "value"]].to_dict("records")
    pairs = [{**row, "value": 2.5, "quantity": "bigram_loss"} for row in rows if row["step"]]
    table = of({"quantity": "held_out_loss", "part": "", **row} for row in [*rows, *pairs]).table
    return table.assign(row="", col="")


def untrained() -> pd.DataFrame:
    found = of(
        block(name, sigma**power, variant=variant, sigma=sigma, seed=seed)
        for variant, powers in EXPONENTS.items()
        for sigma in SIGMAS
        for seed in range(3)
        for name, power in zip(("W_V", "W_Q"), powers, strict=True)
    )
    return found.table.assign(sweep="centring", part="H")


def test_the_figure_has_gaps_ratios_and_tuned_losses(pages: Draw, tmp_path: Path) -> None:
    table = trainings(WHOLE, noise=0.001, draw=0)
    with pytest.raises(UserError, match="sweep=centring"):
        pages("centred", as_measured(table), settings=ALONG)
    write_sweep(untrained(), tmp_path, settings=ALONG)
    (page,) = pages("centred", as_measured(table), settings=ALONG)
    gaps, ratios, losses = page.figure.axes
    fitted = page.numbers[page.numbers["panel"] == "gap"]
    np.testing.assert_allclose(fitted["mean"], [3, 3, -1], atol=1e-6)
    circles = [float(line.get_ydata()[0]) for line in gaps.lines if line.get_markerfacecolor() == "none"]
    assert circles == [3, 3, -1]
    ends = sorted(float(line.get_ydata()[-1]) for line in ratios.lines)
    np.testing.assert_allclose(ends, sorted(sigma**-1.0 for sigma in (0.02, 0.1, 1.0)))
    rule = 10 ** tuned_losses(Evidence(table)).groupby(level=["network", "optimiser"]).mean()
    drawn = page.numbers[page.numbers["panel"] == "loss"]
    softmax = drawn[(drawn["line"] == "AdamW") & (drawn["place"] == 0)]["mean"]
    assert float(softmax.iloc[0]) == pytest.approx(rule["softmax", "adamw"], rel=1e-3)
    assert len(drawn) == len(rule) + 1 and float(drawn[drawn["line"] == "bigram"]["mean"].iloc[0]) == 2.5
    assert any(set(line.get_ydata()) == {2.5} for line in losses.lines) and not under_legends(page.figure)


def test_lines_join_softmax_and_centred_softmax_alone(pages: Draw, tmp_path: Path) -> None:
    write_sweep(untrained(), tmp_path, settings=ALONG)
    table = trainings(WHOLE, noise=0.001, draw=0)
    known = ~(table["variant"].str.contains("centring=1.0") & (table["step"] > 0))
    (page,) = pages("centred", as_measured(table[known]), settings=ALONG)
    joined = [list(line.get_xdata()) for line in page.figure.axes[2].lines if line.get_linestyle() == "-"]
    assert joined == [[0, 1]] * 4


def test_without_small_sigmas_there_are_no_gaps(pages: Draw, tmp_path: Path) -> None:
    table = untrained()
    write_sweep(table[table["sigma"] >= 0.1], tmp_path, settings=ALONG)
    (page,) = pages("centred", as_measured(trainings(WHOLE, noise=0.001, draw=0)), settings=ALONG)
    assert "too few sigmas" in page.figure.axes[0].texts[0].get_text()
    assert set(page.numbers["panel"]) == {"ratio", "loss"}


def test_without_an_optimum_inside_the_grid_nothing_is_drawn(pages: Draw, tmp_path: Path) -> None:
    write_sweep(untrained(), tmp_path, settings=ALONG)
    with pytest.raises(UserError, match="inside the grid"):
        pages("centred", as_measured(trainings(WHOLE, noise=0.001, draw=0, best=4)), settings=ALONG)


def test_ratios_are_geometric_means_of_the_seeds_own(pages: Draw) -> None:
    networks = [("", 1), ("model.attention=linear", 1)]
    table = make_table(networks=networks, parts=["H"], sigma=[0.1, 1.0], seeds=3)
    (page,) = pages("components", table, ratios=True)
    values = table.pivot_table(index=["variant", "sigma", "seed"], columns="row", values="value")
    expected = np.exp(np.log(values["W_Q"] / values["W_V"]).groupby(level=[0, 1], sort=False).mean())
    found = page.numbers.set_index(["variant", "sigma"])["mean"]
    np.testing.assert_allclose(found, expected.reindex(found.index))
    assert len(page.figure.axes[0].containers) == 2 and page.figure.axes[0].get_xlabel()
