"""The one batch of a sweep."""

import pytest
import torch

from hessfig.config.enums import Data, DType, Loss
from hessfig.config.science import TaskConfig
from hessfig.tasks.batch import draw_batch


def drawn(dtype=DType.float64, **settings):
    return draw_batch(TaskConfig(**settings), width=4, dtype=dtype)


def test_cross_entropy_scores_the_answer_tokens():
    batch = drawn()
    assert batch.inputs.shape == (64, 18)
    assert batch.length == 18
    assert torch.equal(batch.targets, batch.inputs[:, 12:18])


def test_the_published_square_loss_compares_with_unshifted_tokens():
    batch = drawn(loss=Loss.mse_sum_unshifted)
    assert torch.equal(batch.targets.argmax(-1), batch.inputs[:, 11:17])
    assert batch.targets.sum(-1).eq(1).all()


def test_the_textbook_square_loss_predicts_the_next_token():
    assert torch.equal(
        drawn(loss=Loss.mse).targets.argmax(-1), drawn().inputs[:, 12:18]
    )


@pytest.mark.parametrize("loss", Loss)
def test_the_loss_does_not_change_the_tokens(loss):
    assert torch.equal(drawn(loss=loss).inputs, drawn().inputs)


def test_gaussian_rows_are_fixed_by_the_seed_and_close_in_both_types():
    double, single = (
        drawn(dtype, data=Data.gaussian, digits=2, loss=Loss.mse) for dtype in DType
    )
    assert double.inputs.shape == double.targets.shape == (64, 9, 4)
    assert double.scored == slice(0, 9)
    assert torch.equal(double.inputs.float(), single.inputs)
    assert not torch.equal(double.inputs, double.targets)


def test_the_task_seed_draws_another_batch():
    assert not torch.equal(drawn(seed=0).inputs, drawn(seed=1).inputs)
