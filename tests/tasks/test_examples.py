"""The sums that networks are trained and tested on."""

from dataclasses import replace

import pytest
import torch

from hessfig.config.enums import TrainingData
from hessfig.config.schema import Config
from hessfig.config.science import TaskConfig
from hessfig.config.training_settings import TrainingConfig
from hessfig.tasks.addition import has_cascade, sequences
from hessfig.tasks.batch import draw_batch
from hessfig.tasks.examples import (
    is_full_batch,
    training_batch,
    unseen_cascades,
    unseen_sums,
)
from hessfig.terms import Optimiser

FRESH = Config(
    task=TaskConfig(digits=5, batch_size=8), training=TrainingConfig(batch_size=16)
)
FIXED = replace(FRESH, training=TrainingConfig(batch_size=3, data=TrainingData.fixed))


def operands(tokens, digits):
    return tokens[:, :digits], tokens[:, digits + 1 : 2 * digits + 1]


@pytest.mark.parametrize("config", [FRESH, FIXED], ids=["fresh", "fixed"])
def test_a_batch_is_a_function_of_seed_and_step(config):
    batch = training_batch(config, seed=3, step=7)
    assert torch.equal(batch.inputs, training_batch(config, seed=3, step=7).inputs)
    others = [
        training_batch(config, seed=seed, step=step) for seed, step in ((3, 8), (4, 7))
    ]
    assert not any(torch.equal(batch.inputs, other.inputs) for other in others)
    assert len(batch.inputs) == config.training.batch_size
    assert torch.equal(
        batch.inputs[:, batch.scored.start + 1 : batch.scored.stop + 1], batch.targets
    )


def test_fresh_sums_are_sums():
    tokens = training_batch(FRESH, seed=0, step=1).inputs
    assert torch.equal(sequences(*operands(tokens, 5)), tokens)


def test_a_fixed_set_is_the_measuring_batch():
    whole = draw_batch(FIXED.task, width=1, dtype=FIXED.dtype)
    known = {tuple(row) for row in whole.inputs.tolist()}
    seen = [
        tuple(row)
        for step in range(20)
        for row in training_batch(FIXED, seed=0, step=step).inputs.tolist()
    ]
    assert set(seen) == known
    # Without replacement.
    assert all(len(set(seen[at : at + 3])) == 3 for at in range(0, len(seen), 3))


@pytest.mark.parametrize(
    ("training", "full"),
    [
        (
            TrainingConfig(
                optimiser=Optimiser.gd, data=TrainingData.fixed, batch_size=1
            ),
            True,
        ),
        (TrainingConfig(data=TrainingData.fixed, batch_size=8), True),
        (TrainingConfig(data=TrainingData.fixed, batch_size=7), False),
        (TrainingConfig(batch_size=8), False),
    ],
)
def test_full_batches_are_the_whole_set_in_its_order(training, full):
    config = replace(FRESH, training=training)
    assert is_full_batch(config) == full
    whole = draw_batch(config.task, width=1, dtype=config.dtype).inputs
    assert torch.equal(training_batch(config, seed=5, step=2).inputs, whole) == full


def test_unseen_sums_are_of_streams_of_their_own():
    unseen = unseen_sums(FRESH.task, 50)
    hard = unseen_cascades(FRESH.task, 50)
    assert torch.equal(unseen_sums(FRESH.task, 20), unseen_sums(FRESH.task, 20))
    assert has_cascade(*operands(hard, 5)).all()
    assert len(hard) == 50
    assert torch.equal(sequences(*operands(hard, 5)), hard)
    trained = {
        tuple(row)
        for step in range(20)
        for row in training_batch(FRESH, seed=0, step=step).inputs.tolist()
    }
    assert not trained & {tuple(row) for row in unseen.tolist()}
