"""estimator=auto: small columns are dense, other cells keep their keys, intervals cover, and one text says it all."""

import re
from pathlib import Path

import pytest
import torch

import hessfig
from hessfig.analysis.intervals import deviate, probe_interval
from hessfig.config.compose.job import compose
from hessfig.config.enums import AUTO, Method
from hessfig.config.presets import names
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.config.settings import settings
from hessfig.measurements.block_norms import hutchinson
from hessfig.measurements.settings_and_costs import (
    FEW,
    frobenius_settings,
    norm_settings,
    probe_settings,
    too_expensive,
)
from hessfig.rng import stream
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Part
from hessfig.weights import SMALL
from tests.daily import daily
from tests.draws import tanh_network
from tests.toys import toy_task

ROOT = Path(__file__).parents[2]
NORMS = re.compile(r"quantities:.*\b(frobenius|trace)\b")


def config(d_model):
    model = ModelConfig(d_model=d_model, n_layers=2, d_mlp=4)
    return Config(
        model=model,
        task=toy_task(model),
        estimator=EstimatorConfig(num_probes=4),
        blocks=["W_V"],
    )


def first_layer(d_model):
    rows = compute_cell(Cell(Variant("", config(d_model)), 0.5, 3)).rows
    return [row for row in rows if row["layer"] == 1]


def test_columns_of_few_entries_are_dense_and_longer_ones_probed():
    small = first_layer(16)
    large = first_layer(17)
    assert {(row["estimator"], row["num_probes"], row["error"]) for row in small} == {
        ("dense", 0, 0.0)
    }
    assert {(row["estimator"], row["num_probes"]) for row in large} == {("auto", 4)}
    for row in large:
        assert row["error"] > 0


def test_columns_of_few_entries_of_a_large_network_are_probed():
    network = tanh_network(2, 40, SMALL // 40)
    inputs = torch.ones(2, 2)
    targets = torch.tensor([0, 1])
    table = hessfig.measure(
        hessfig.Problem(network, inputs, targets), blocks=["0.weight"], num_probes=4
    )
    assert set(table["estimator"]) == {"auto"}
    assert set(table["num_probes"]) == {4}


def test_only_cells_with_columns_of_few_entries_have_another_key():
    small = Variant("", config(16))
    large = Variant("", config(17))
    assert norm_settings(small.config, small.layout)["estimator"].pop("dense") == FEW
    assert norm_settings(large.config, large.layout) == probe_settings(
        large.config, large.layout
    )
    last = Variant("", Config(model=ModelConfig(d_model=4), blocks=["W_V"]))
    assert norm_settings(last.config, last.layout) == probe_settings(
        last.config, last.layout
    )


def kept_sweeps():
    return sorted(
        set(names("sweep"))
        - {"network", "gpt2", "trained_spectra", "trained_transformers"}
    )


@pytest.mark.parametrize("sweep", daily(kept_sweeps(), *kept_sweeps()[::60]))
def test_shipped_sweeps_keep_their_exact_norms_and_pilots(sweep):
    """Their cells of 0.4.0 are found again: where the rules by cost would change them, the preset names the first."""
    for name, made in compose([f"sweep={sweep}"]).variants:
        variant = Variant(name, made)
        if "frobenius" in made.quantities and made.estimator.method == Method.auto:
            assert not too_expensive(made, variant.layout)
            assert not variant.left_out
            assert frobenius_settings(made, variant.layout) == norm_settings(
                made, variant.layout
            )


def probing_sweeps():
    texts = {}
    for path in (ROOT / "conf" / "sweep").glob("*.yaml"):
        texts[path.stem] = path.read_text("utf-8")
    probed = []
    for name, text in texts.items():
        if "estimator: auto" in text and NORMS.search(text):
            probed.append(name)
    return sorted(set(probed) - {"network"})  # the user's own


@pytest.mark.parametrize("sweep", probing_sweeps())
def test_no_shipped_sweep_has_a_column_of_few_entries(sweep):
    """Their cells of 0.2.1 are found again: nothing was added to the settings in their keys."""
    for name, made in compose([f"sweep={sweep}"]).variants:
        layout = Variant(name, made).layout
        assert made.estimator.method == Method.auto
        assert frobenius_settings(made, layout) == probe_settings(made, layout)


class Block:
    """A random symmetric block with few directions: two eigenvalues of a weight of 400 entries."""

    dim = 400
    shape = torch.Size([20, 20])
    dtype = torch.float64
    bytes_per_probe = 1
    like = torch.empty(0, dtype=torch.float64)

    def __init__(self):
        draws = torch.randn(
            400, 2, generator=stream(0, "directions"), dtype=torch.float64
        )
        self.matrix = torch.linalg.qr(draws)[0] * torch.tensor([1.0, 0.5])

    def split_matmat(self, probes, parts):
        return {("W", Part.H): self.matrix.T @ probes}


@pytest.mark.parametrize("probes", daily([4, 12], 4))
def test_stated_intervals_cover_and_students_t_alone_does_not(probes):
    block = Block()
    generator = stream(0, "coverage", probes)
    count = 800
    exact = float(block.matrix.norm())
    inside = 0
    by_t = 0
    for _ in range(count):
        found = hutchinson(block, [Part.H], probes, generator=generator)["W", Part.H]
        interval = probe_interval(found.value, found.error, probes)
        inside += interval.low <= exact <= interval.high
        by_t += abs(found.value - exact) <= deviate(probes - 1) * found.error
    assert 0.93 <= inside / count <= 0.97
    assert by_t < inside


def test_what_auto_does_is_said_once():
    assert f"{FEW} entries" in AUTO
    pages = []
    for name in ("accuracy.md", "table.md", "settings.md"):
        pages.append(ROOT / "docs" / name)
    preset = (ROOT / "conf" / "estimator" / "auto.yaml").read_text("utf-8")
    texts = [
        settings()["estimator.method"].about,
        hessfig.measure.__doc__ or "",
        preset,
        *(page.read_text("utf-8") for page in pages),
    ]
    for text in texts:
        assert AUTO in " ".join(text.split())
    assert f"{SMALL:,}".replace(",", " ") in pages[0].read_text("utf-8")
