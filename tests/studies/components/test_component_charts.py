"""Centred softmax before and after training: what is drawn are the numbers of the rule and the predicted gaps."""

from itertools import product

import numpy as np
import pytest

from hessfig.errors import UserError
from hessfig.studies.components.per_seed import tuned_losses
from tests.analysis.spectral import spectral_table
from tests.analysis.synthetic import CONFIG, make_table, write_sweep
from tests.figures.artists import under_legends

ALONG = {
    **CONFIG,
    "model": {
        **CONFIG["model"],
        "centring": 0.0,
        "scaled_weight": "",
        "weight_scale": 1.0,
    },
    "sweep": {"axis": "step"},
    "training": {"optimiser": "adamw", "learning_rate": 0.01, "momentum": 0.0},
}
EXPONENTS = {"": (2, 5), "model.centring=0.9": (2, 5), "model.centring=1.0": (6, 5)}
SIGMAS = (0.001, 0.005, 0.02, 0.1, 1.0)


NETWORKS = {
    "softmax": "",
    "centred 0.9": "model.centring=0.9",
    "centred 1": "model.centring=1.0",
    "rescaled": "model.scaled_weight=query_key,model.weight_scale=0.1,model.temperature=0.01",
    "frozen": "model.scaled_weight=query_key,model.weight_scale=100000.0,model.temperature=10000000000.0",
}
OPTIMISERS = {
    "sgd": "training.optimiser=sgd",
    "sgd, momentum": "training.optimiser=sgd,training.momentum=0.9",
    "adamw": "training.optimiser=adamw",
    "muon": "training.optimiser=muon,training.momentum=0.95",
}
RATES = (0.0147, 0.0215, 0.0316, 0.0464, 0.0681)


def trainings(*, best=2, diverges_from=9):
    """Return losses of trainings: SGD 0.1 decades behind AdamW, the best rate at the place `best`.

    From the place `diverges_from` on, runs have no last loss.
    """
    random = np.random.default_rng(0)
    rows = []
    for network, optimiser, place, seed in product(
        NETWORKS, OPTIMISERS, range(len(RATES)), range(10)
    ):
        if optimiser == "muon" and network in ("rescaled", "frozen"):
            continue
        words = [OPTIMISERS[optimiser], f"training.learning_rate={RATES[place]}"]
        variant = ",".join([NETWORKS[network]] * (network != "softmax") + words)
        lag = 0.1 if optimiser.startswith("sgd") else 0.0
        log = lag + 0.02 * (place - best) ** 2 + 0.001 * random.normal()
        here = {"variant": variant, "seed": seed, "quantity": "held_out_loss"}
        last = {**here, "step": 600.0}
        rows.append({**here, "step": 0.0, "value": 4.6})
        rows.append({**last, "quantity": "bigram_loss", "value": 2.5})
        if place < diverges_from:
            rows.append({**last, "value": 2.0 * 10**log})
    return spectral_table(rows).assign(row="", col="", part="")


def untrained():
    rows = []
    for variant, sigma, seed in product(EXPONENTS, SIGMAS, range(3)):
        here = {"variant": variant, "sigma": sigma, "seed": seed, "layer": 1}
        for name, power in zip(("W_V", "W_Q"), EXPONENTS[variant], strict=True):
            rows.append({**here, "row": name, "value": sigma**power})
    table = spectral_table(rows, sweep="centring")
    return table.assign(row_layer=1, quantity="frobenius")


def test_rates_at_which_every_run_diverged_count_as_tried():
    found = tuned_losses(trainings(best=3, diverges_from=4))
    assert len(found) == 10 * (len(NETWORKS) * len(OPTIMISERS) - 2)


def test_the_figure_has_gaps_ratios_and_tuned_losses(pages, tmp_path):
    table = trainings()
    with pytest.raises(UserError, match="sweep=centring"):
        pages("centred", table, settings=ALONG)
    write_sweep(untrained(), tmp_path, settings=ALONG)
    (page,) = pages("centred", table, settings=ALONG)
    gaps, ratios, losses = page.figure.axes
    fitted = page.numbers[page.numbers["panel"] == "gap"]
    np.testing.assert_allclose(fitted["mean"], [3, 3, -1], atol=1e-6)
    circles = [
        float(line.get_ydata()[0])
        for line in gaps.lines
        if line.get_markerfacecolor() == "none"
    ]
    assert circles == [3, 3, -1]
    ends = sorted(float(line.get_ydata()[-1]) for line in ratios.lines)
    np.testing.assert_allclose(ends, sorted(sigma**-1.0 for sigma in (0.02, 0.1, 1.0)))
    rule = 10 ** tuned_losses(table).groupby(level=["network", "optimiser"]).mean()
    drawn = page.numbers[page.numbers["panel"] == "loss"]
    softmax = drawn[(drawn["line"] == "AdamW") & (drawn["place"] == 0)]["mean"]
    assert float(softmax.iloc[0]) == pytest.approx(rule["softmax", "adamw"], rel=1e-3)
    assert len(drawn) == len(rule) + 1
    assert float(drawn[drawn["line"] == "bigram"]["mean"].iloc[0]) == 2.5
    assert any(set(line.get_ydata()) == {2.5} for line in losses.lines)
    assert not under_legends(page.figure)


@pytest.mark.long
def test_without_small_sigmas_there_are_no_gaps(pages, tmp_path):
    table = untrained()
    write_sweep(table[table["sigma"] >= 0.1], tmp_path, settings=ALONG)
    (page,) = pages("centred", trainings(), settings=ALONG)
    assert "too few sigmas" in page.figure.axes[0].texts[0].get_text()
    assert set(page.numbers["panel"]) == {"ratio", "loss"}


def test_without_an_optimum_inside_the_grid_nothing_is_drawn(pages, tmp_path):
    write_sweep(untrained(), tmp_path, settings=ALONG)
    with pytest.raises(UserError, match="inside the grid"):
        pages("centred", trainings(best=4), settings=ALONG)


def test_ratios_are_geometric_means_of_the_seeds_own(pages):
    networks = [("", 1), ("model.attention=linear", 1)]
    table = make_table(networks=networks, parts=["H"], sigma=[0.1, 1.0], seeds=3)
    (page,) = pages("components", table, ratios=True)
    values = table.pivot_table(
        index=["variant", "sigma", "seed"], columns="row", values="value"
    )
    expected = np.exp(
        np.log(values["W_Q"] / values["W_V"]).groupby(level=[0, 1], sort=False).mean()
    )
    found = page.numbers.set_index(["variant", "sigma"])["mean"]
    np.testing.assert_allclose(found, expected.reindex(found.index))
    assert len(page.figure.axes[0].containers) == 2
    assert page.figure.axes[0].get_xlabel()
