"""Cells of networks that differ only away from their weights: quantities that walk there are measured again."""

import hashlib
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import hessfig
from hessfig.config.enums import Data, Reuse
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.measurements.catalogue import CATALOGUE, quantity
from hessfig.models.fingerprint import fingerprint
from hessfig.models.identity import content_of
from hessfig.sweep.measure import draw_problem
from hessfig.sweep.plan import Sweep
from hessfig.sweep.variant import note_contents
from hessfig.terms import Kind
from tests.daily import thinned

# The rule and its radius are read when the network is called: neither code nor
# attributes show them.
FACTORY = """
import os
import torch
from torch import nn

RULES = {
    "clamp": lambda w, r: w.clamp(-r, r),
    "above": lambda w, r: w.clamp(max=r),
    "where": lambda w, r: torch.where(w.abs() > r, 2 * w, w),
    "dead": lambda w, r: torch.where(w.abs() < 1e-6 * (r > 1), w + 1, w),
    "norm": lambda w, r: w * (1 + (w.detach().norm() > 4 * r)),
}


class Limited(nn.Linear):
    def forward(self, x):
        rule, _, radius = os.environ["HESSFIG_TEST_RULE"].partition(" ")
        return nn.functional.linear(x, RULES[rule](self.weight, float(radius)), self.bias)


def make(seed=0):
    torch.manual_seed(seed)
    network = nn.Sequential(Limited(4, 4), nn.Tanh(), nn.Linear(4, 2))
    return network, torch.randn(6, 4), torch.randint(0, 2, (6,)), "cross_entropy"
"""
RULES = ["clamp", "above", "where", "dead", "norm"]
FAR = (
    "slices",
    "descent",
    "critical_points",
    "pruning",
    "quantisation",
    "rounding",
    "landscape_integrals",
)
NEAR = (
    "frobenius",
    "trace",
    "largest_eigenvalue",
    "loss",
    "gradient_norm",
    "along",
    "norm_sharpness",
)
OWN = """
from hessfig.measurements.quantity import Measured, Quantity, state_row


def measure(problem, request):
    return Measured([state_row("mine", request, 1.0)])


QUANTITY = Quantity("mine", measure)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "limited.py").write_text(FACTORY)
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path


def _cells(monkeypatch, rule, quantities):
    monkeypatch.setenv("HESSFIG_TEST_RULE", rule)
    config = Config(
        task=TaskConfig(data=Data.python),
        model=ModelConfig(kind=Kind.python, factory="limited.py:make"),
        blocks=["all"],
        quantities=list(quantities),
        seeds=1,
    )
    cells = {cell.quantity: cell for cell in Sweep([("", config)]).cells}
    assert all(cell.key for cell in cells.values())  # planned now, under this rule
    return cells


@pytest.mark.parametrize("rule", thinned(RULES, 4))
def test_what_walks_is_measured_again_and_nothing_else(monkeypatch, rule):
    quantities = (*NEAR, *FAR, "landscape_difference", "mine.py:QUANTITY")
    first, again, other = (
        _cells(monkeypatch, f"{rule} {radius}", quantities)
        for radius in (1.0, 1.0, 1.5)
    )
    assert {name: cell.key for name, cell in first.items()} == {
        name: cell.key for name, cell in again.items()
    }
    changed = {name for name in quantities if first[name].key != other[name].key}
    assert changed == {*FAR, "mine.py:QUANTITY"}


def test_without_quantities_that_walk_no_key_depends_on_them(monkeypatch):
    """What 0.3.0 has measured at the weights is reused."""
    alone = _cells(monkeypatch, "clamp 1.0", ("loss",))["loss"]
    assert alone.key == _cells(monkeypatch, "clamp 1.0", ("loss", "slices"))["loss"].key
    drawn = draw_problem(alone)
    shown = content_of(drawn)
    expected = hashlib.sha256(
        f"{shown} {fingerprint(drawn, shown).digest}".encode()
    ).hexdigest()
    assert alone.variant.networks() == {f"seed={alone.seed}": expected}
    assert alone.science["content"] == expected


def test_a_worker_refuses_a_network_that_is_another_far_away(monkeypatch):
    cells = _cells(monkeypatch, "clamp 1.0", ("loss", "slices"))
    monkeypatch.setenv("HESSFIG_TEST_RULE", "clamp 1.5")
    draw_problem(cells["loss"])
    with pytest.raises(
        UserError, match="returned something else than when this run was planned"
    ):
        draw_problem(cells["slices"])


def test_a_distance_of_landscape_difference_is_one():
    config = Config()
    assert not quantity("landscape_difference").walks(config)
    config.landscape.distance = 0.5
    assert quantity("landscape_difference").walks(config)


def test_every_quantity_that_takes_the_loss_elsewhere_says_so():
    walkers = {name for name, row in CATALOGUE.items() if row.walks(Config())}
    assert {
        *FAR,
        "critical_step",
        "predicted_decrease",
        "influence",
        "landscape_subspace",
    } == walkers


# What a network of the user's own has, at or beside its weights.
AT_WEIGHTS = [
    "frobenius",
    "hessian",
    "trace",
    "density",
    "largest_eigenvalue",
    "smallest_eigenvalue",
    "spectrum",
    "gradient_covariance",
    "gradient_norm",
    "loss",
    "adaptive_sharpness",
    "jacobian_norm",
    "zero_share",
    "noise_scale",
    "num_parameters",
    "weight_norm",
    "hessian_distance",
    "landscape_difference",
    "approximations",
    "stationarity",
    "along",
    "norm_sharpness",
]


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [*AT_WEIGHTS, "slices", "descent", "pruning", "quantisation"]
)
def test_the_record_is_right_on_what_walks(name, folder, monkeypatch):
    """A limit just beyond the largest weight, and what happens at zero, move the numbers of what walks alone."""
    monkeypatch.syspath_prepend(str(folder))
    make = importlib.import_module("limited").make

    def numbers(rule):
        monkeypatch.setenv("HESSFIG_TEST_RULE", rule)
        network, x, y, _ = make()
        problem = hessfig.Problem(network, x, y)
        return hessfig.measure(problem, blocks=["all"], quantities=[name], seed=0)[
            ["value", "error"]
        ]

    plain = numbers("clamp 1000")
    moved = not all(plain.equals(numbers(rule)) for rule in ("clamp 0.51", "dead 1.5"))
    assert moved == CATALOGUE[name].walks(Config())


class Beyond(nn.Module):
    """A network whose function beyond a radius is no attribute that is seen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x) * (
            1 + float(self.inner.weight.detach().norm()) // _limit()
        )


def _limit():
    return float(os.environ["HESSFIG_TEST_LIMIT"])


@pytest.mark.long
def test_a_monitor_measures_again_what_walks(monkeypatch, folder):
    batch = (torch.eye(3), torch.tensor([0, 1, 1]))
    options = {
        "every": 1,
        "max_fraction": None,
        "blocks": ["all"],
        "parts": "H",
        "quantities": ["loss", "slices"],
    }

    def measured(limit):
        monkeypatch.setenv("HESSFIG_TEST_LIMIT", str(limit))
        monitor = hessfig.Monitor(
            Beyond(), "cross_entropy", batch, folder=folder / "watched", **options
        )
        seen = []
        took = monitor._quantity
        monkeypatch.setattr(
            monitor,
            "_quantity",
            lambda name, step: (seen.append(name), took(name, step))[1],
        )
        monitor(0)
        monitor.close()
        return seen

    assert [measured(4.0), measured(4.0), measured(6.0)] == [
        ["loss", "slices"],
        [],
        ["slices"],
    ]


def test_trusted_sources_need_no_call(monkeypatch):
    """What was computed away from the weights is kept between runs, too."""
    cells = _cells(monkeypatch, "clamp 1.0", ("loss", "slices"))
    variant = cells["loss"].variant
    folder = Path(variant.config.output_dir) / variant.config.sweep.name
    folder.mkdir(parents=True)
    note_contents(folder, [variant])
    monkeypatch.setattr("hessfig.sweep.own_content.planned_contents", None)
    trusting = replace(variant.config, reuse=Reuse.sources)
    later = {cell.quantity: cell.key for cell in Sweep([("", trusting)]).cells}
    assert later == {name: cell.key for name, cell in cells.items()}
