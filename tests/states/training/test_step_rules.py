"""Rows of step rules say what is true: what a rule reads changes its steps and its key, nothing else does."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hessfig.config.enums import TrainingData
from hessfig.config.schema import Config
from hessfig.config.training_settings import TrainingConfig
from hessfig.curvature.problem import Batch
from hessfig.states.training.second_order import BatchLoss
from hessfig.states.training.step_rules import StepRule
from hessfig.states.training.trajectory import science
from hessfig.terms import RULE_SETTINGS, Optimiser
from tests.daily import thinned

OTHER = {
    "betas": [0.5, 0.6],
    "eps": 0.1,
    "momentum": 0.7,
    "batch_size": 5,
    "damping": 0.5,
    "refresh": 2,
}


def training(kind, **changes):
    given = {
        "data": TrainingData.fixed,
        "momentum": 0.3,
        "warmup": 0,
        "refresh": 4,
        **changes,
    }
    return TrainingConfig(optimiser=kind, **given)


def weights(one):
    """Return the weights of a toy network after seven updates."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = Batch(
        torch.randn(6, 3).double(), torch.tensor([0, 1, 1, 0, 1, 0]), slice(None)
    )
    rule = StepRule(network, one)
    loss = BatchLoss(network, nn.CrossEntropyLoss(), batch)
    for step in range(1, 8):
        network.zero_grad(set_to_none=True)
        loss().backward()
        rule.refresh_curvature(step, loss, seed=0)
        rule.update(step)
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.parametrize("kind", thinned(Optimiser, 2))
def test_a_rule_steps_by_the_settings_that_its_row_names(kind):
    plain = weights(training(kind))
    for name in set(RULE_SETTINGS) - {"batch_size"}:  # a batch is drawn elsewhere
        same = torch.equal(weights(training(kind, **{name: OTHER[name]})), plain)
        assert same == (name not in kind.facts.reads), name


@pytest.mark.parametrize("kind", Optimiser)
def test_a_key_holds_the_settings_that_the_row_names(kind):
    plain = Config(training=training(kind))
    for name in RULE_SETTINGS:
        other = replace(plain, training=training(kind, **{name: OTHER[name]}))
        assert (science(other) != science(plain)) == (name in kind.facts.reads), name


def test_rules_that_divide_by_curvature_are_full_batch_and_labels_differ():
    assert all(one.facts.is_full_batch for one in Optimiser if one.facts.divides)
    assert [one for one in Optimiser if one.facts.divides] == [
        "newton",
        "gauss_newton",
        "block_gauss_newton",
        "kfac",
    ]
    assert len({one.facts.label for one in Optimiser}) == len(Optimiser)
