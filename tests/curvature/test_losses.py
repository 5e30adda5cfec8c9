"""Losses, their second derivatives, and the linearised loss."""

import pytest
import torch
from torch.func import hessian
from torch.testing import assert_close

from hessfig.config.enums import Loss
from hessfig.config.science import TaskConfig
from hessfig.curvature.losses import Linearised, output_gradient, per_sample
from hessfig.rng import stream
from hessfig.tasks.batch import loss_module

SHAPE = (2, 3, 5)


def outputs():
    return torch.randn(SHAPE, dtype=torch.float64, generator=stream(0, "outputs"))


def targets(loss):
    if loss == Loss.cross_entropy:
        return torch.randint(0, 5, SHAPE[:2], generator=stream(0, "targets"))
    return torch.randn(SHAPE, dtype=torch.float64, generator=stream(0, "targets"))


def test_cross_entropy_by_hand():
    logits = outputs()
    tokens = targets(Loss.cross_entropy)
    by_hand = []
    for b in range(2):
        for p in range(3):
            by_hand.append(-logits[b, p].log_softmax(0)[tokens[b, p]])
    assert loss_module(TaskConfig())(logits, tokens).item() == pytest.approx(
        sum(by_hand).item() / 6
    )


def test_smoothed_labels_by_hand_and_sample_by_sample():
    logits = outputs()
    tokens = targets(Loss.cross_entropy)
    loss = loss_module(TaskConfig(label_smoothing=0.3))
    logs = -outputs().log_softmax(-1)
    each = 0.7 * logs.gather(-1, tokens[..., None]).squeeze(-1) + 0.3 * logs.mean(-1)
    assert loss(logits, tokens).item() == pytest.approx(each.mean().item())
    assert_close(per_sample(loss, logits, tokens), each.mean(-1))
    plain = loss_module(TaskConfig())
    df = outputs().unsqueeze(2)
    assert torch.equal(
        loss.hessian_product(logits, df), plain.hessian_product(logits, df)
    )
    first, second = (
        hessian(lambda f, one=one: one(f, tokens))(logits) for one in (loss, plain)
    )
    assert_close(first, second)


@pytest.mark.parametrize(
    ("loss", "factor"), [(Loss.mse, 1 / 30), (Loss.mse_sum_unshifted, 1.0)]
)
def test_square_losses_by_hand(loss, factor):
    by_hand = factor * (outputs() - targets(loss)).square().sum()
    assert loss_module(TaskConfig(loss=loss))(
        outputs(), targets(loss)
    ).item() == pytest.approx(by_hand.item())


@pytest.mark.parametrize("loss", Loss)
def test_the_hessian_product_is_the_second_derivative(loss):
    module = loss_module(TaskConfig(loss=loss))
    f = outputs()
    target = targets(loss)
    df = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=stream(1, "df"))
    matrix = hessian(lambda f: module(f, target))(f).reshape(30, 30)
    expected = (matrix @ df.transpose(1, 2).transpose(0, 1).reshape(4, 30).T).T.reshape(
        4, *SHAPE
    )
    assert_close(module.hessian_product(f, df), expected.permute(1, 2, 0, 3))


@pytest.mark.parametrize("loss", Loss)
def test_the_linearised_loss_has_the_losses_gradient_and_no_curvature(loss):
    module = loss_module(TaskConfig(loss=loss))
    f = outputs()
    target = targets(loss)
    gradient = output_gradient(module, f, target)
    assert not gradient.requires_grad
    assert_close(output_gradient(Linearised(), f, gradient), gradient)
    assert not hessian(lambda f: Linearised()(f, gradient))(f).any()
