"""docs/studies/directions.md and landscape.md, read literally, in plain PyTorch: one number for each sentence."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.config.enums import DType, NamedDirection
from hessfig.config.schema import Config
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.models.blocks import blocks_of
from hessfig.states.point import drawn
from hessfig.tasks.examples import training_batch
from hessfig.terms import Optimiser
from tests.tensors import copies, flat

GRADIENTS = 20


class Own(nn.Module):
    """A table, a square and a wide matrix, a read-out and biases; no parameter is named layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(5, 6)
        self.inner = nn.Linear(6, 8)
        self.readout = nn.Linear(8, 3)

    def forward(self, x):
        return self.readout(torch.tanh(self.inner(self.table(x))))


@pytest.fixture
def problem():
    torch.manual_seed(4)
    return hessfig.Problem(
        Own(), torch.randint(0, 5, (12,)), torch.randint(0, 3, (12,))
    )


def _length(table, name):
    found = table[(table["quantity"] == f"{name}_length") & (table["col"] == "all")]
    return float(found["value"].iloc[0])


def test_muon_takes_every_two_axis_weight_of_an_own_network(problem):
    found = hessfig.measure(
        problem, blocks=["all"], quantities=["along"], directions={"rules": ["muon"]}
    )
    network = Own().double()
    matrices = [one for one in network.parameters() if one.ndim == 2]
    assert len(matrices) == 3
    muon = torch.optim.Muon(
        matrices,
        lr=1e-3,
        weight_decay=0.0,
        momentum=0.0,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW(
        [one for one in network.parameters() if one.ndim != 2],
        lr=1e-3,
        weight_decay=0.0,
    )
    moved = _last_update(
        network, [muon, adamw], [(problem.inputs, problem.targets)] * GRADIENTS
    )
    assert _length(found, "muon_update") == pytest.approx(moved, rel=1e-9)


def _last_update(network, rules, batches):
    """Return |w' - w| of the last of several updates that are all made at w."""
    before = copies(network)
    for x, y in batches:
        with torch.no_grad():
            for one, held in zip(network.parameters(), before, strict=True):
                one.copy_(held)
        network.zero_grad()
        F.cross_entropy(network(x).flatten(0, -2), y.flatten()).backward()
        for rule in rules:
            rule.step()
    return float((flat(network.parameters()).detach() - flat(before)).norm())


def test_an_untrained_adamw_sees_the_batches_of_updates_1_to_20():
    config = Config(dtype=DType.float64, blocks=["all"], quantities=["along"])
    config.model.d_model = 8
    config.task.digits = 1
    config.task.batch_size = 4
    config.directions.named = [NamedDirection.update]
    config.directions.rules = [Optimiser.adamw]
    problem = drawn(config, sigma=0.3, seed=0)
    at = At(config, sigma=0.3, seed=0)
    row = quantity("along")
    found = row.measured(
        problem, asked_of(row, blocks_of(["all"], problem.layout, config.model), at)
    ).rows
    lengths = [
        one["value"] for one in found if one["quantity"] == "adamw_update_length"
    ]
    training = config.training
    problem.network.requires_grad_(True)
    options = {
        "lr": training.learning_rate,
        "betas": tuple(training.betas),
        "eps": training.eps,
        "weight_decay": 0.0,
    }
    rule = torch.optim.AdamW(problem.network.parameters(), **options)
    batches = [
        training_batch(config, seed=0, step=step) for step in range(1, GRADIENTS + 1)
    ]

    class Scored(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = problem.network

        def forward(self, x):
            return self.network(x)[:, batches[0].scored]

    pairs = [(one.inputs, one.targets) for one in batches]
    assert lengths == [pytest.approx(_last_update(Scored(), [rule], pairs), rel=1e-9)]


def test_exponents_are_fitted_over_what_the_page_says(problem):
    named = {"named": ["singular"]}
    found = hessfig.measure(
        problem,
        blocks=["inner.weight", "readout.weight"],
        quantities=["along"],
        directions=named,
    )
    network = Own().double()
    F.cross_entropy(network(problem.inputs), problem.targets).backward()
    for block, weight in (
        ("inner.weight", network.inner.weight),
        ("readout.weight", network.readout.weight),
    ):
        of_block = found[found["col"] == block]
        assert weight.grad is not None
        values = torch.linalg.svdvals(weight.grad)
        kept = values[values >= values[0] / 1000]
        rows = of_block[of_block["quantity"] == "singular_direction_value"].sort_values(
            "index"
        )
        assert rows["value"].to_numpy() == pytest.approx(
            values.numpy(), rel=1e-8, abs=1e-15
        )
        decay = of_block[of_block["quantity"] == "singular_decay"]
        assert list(decay["part"].fillna("")) == [""]
        if len(kept) < 3:
            assert math.isnan(float(decay["value"].iloc[0]))
        else:
            slope = np.polyfit(
                np.log(np.arange(1, len(kept) + 1)), np.log(kept.numpy()), 1
            )[0]
            assert float(decay["value"].iloc[0]) == pytest.approx(-slope, rel=1e-8)
    assert len(kept) < 3  # of the read-out: a mean over classes has rank 2


def test_the_page_says_so():
    page = (
        Path(__file__).parents[3] / "docs" / "studies" / "directions.md"
    ).read_text()
    for word in (
        "match_rms_adamw",
        "0.2 sqrt(max(m, n))",
        "singular_direction_value",
        "fewer than three points",
    ):
        assert word in page
