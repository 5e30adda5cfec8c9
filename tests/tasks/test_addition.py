"""The addition task: tokens, sums, and how often nines are planted."""

import math

import pytest
import torch

from hessfig.config.enums import DType, Scored
from hessfig.config.science import TaskConfig
from hessfig.rng import stream
from hessfig.tasks.addition import addition_batch
from hessfig.tasks.batch import draw_batch


def batch(size=500, digits=5, *, seed=0):
    return addition_batch(size, digits, generator=stream(seed, "task"))


def numbers(tokens):
    return [int("".join(map(str, row))) for row in tokens.tolist()]


def test_five_digits_take_eighteen_tokens():
    assert TaskConfig(digits=5).num_tokens == 18
    assert batch().shape == (500, 18)


@pytest.mark.parametrize("digits", [1, 2, 5, 9])
@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_the_sum(digits, seed):
    """Eight seeds hold enriched batches too, as the next test of frequency shows."""
    tokens = batch(200, digits, seed=seed)
    x = tokens[:, :digits]
    y = tokens[:, digits + 1 : 2 * digits + 1]
    answer = tokens[:, 2 * digits + 2 :]
    assert (tokens[:, digits] == 10).all()
    assert (tokens[:, 2 * digits + 1] == 11).all()
    assert [a + b for a, b in zip(numbers(x), numbers(y), strict=True)] == numbers(
        answer
    )


def test_the_scored_positions_predict_the_answer_and_nothing_else():
    scored = draw_batch(TaskConfig(), width=128, dtype=DType.float64).scored
    assert (scored.start, scored.stop) == (11, 17)
    following = batch()[:, scored.start + 1 : scored.stop + 1]
    assert torch.equal(following, batch()[:, 12:18])
    assert batch()[0, scored.start] == 11


def test_all_scored_positions_are_those_with_a_next_token():
    every = draw_batch(TaskConfig(scored=Scored.all), width=128, dtype=DType.float64)
    assert every.scored == slice(0, 17)
    assert torch.equal(every.targets, every.inputs[:, 1:])


def test_digits_are_uniform_in_a_plain_batch():
    seed = next(seed for seed in range(20) if not is_enriched(batch(seed=seed)))
    tokens = batch(seed=seed)
    digits = torch.cat([tokens[:, :5], tokens[:, 6:11]], dim=1).flatten()
    shares = torch.bincount(digits, minlength=10) / len(digits)
    assert ((shares - 0.1).abs() < 4 * math.sqrt(0.1 * 0.9 / len(digits))).all()


def nines(tokens):
    return int((tokens[:, :5] + tokens[:, 6:11] == 9).sum())


def is_enriched(tokens):
    """A tenth of plain digit pairs sum to 9, 28 % of enriched ones: 2500 pairs tell them apart without doubt."""
    return nines(tokens) > 0.19 * 2500


def test_one_batch_in_five_is_enriched():
    count = 600
    share = sum(is_enriched(batch(seed=seed)) for seed in range(count)) / count
    assert abs(share - 0.2) < 3 * math.sqrt(0.2 * 0.8 / count)


def test_enrichment_plants_a_fifth_of_all_places():
    enriched = [
        nines(batch(seed=seed)) for seed in range(60) if is_enriched(batch(seed=seed))
    ]
    chosen = 500
    others = 2000
    expected = chosen + 0.1 * others
    error = math.sqrt(0.1 * 0.9 * others / len(enriched))
    assert abs(sum(enriched) / len(enriched) - expected) < 4 * error


def test_enrichment_spares_places_it_did_not_choose():
    """A tiny batch has int(0.2 * batch * digits) = 0 places to change; it must still be a batch."""
    assert batch(2, 1).shape == (2, 6)


def test_the_same_generator_draws_the_same_batch():
    assert torch.equal(batch(seed=3), batch(seed=3))
    assert not torch.equal(batch(seed=3), batch(seed=4))
