"""Losses of single samples and their derivatives against loops of plain autograd."""

from dataclasses import replace

import pytest
import torch

from hessfig.config.enums import Attention, Kind, Loss, Norm
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.gradients import AT_ONCE, LossGradient, Samples, loss_of
from hessfig.curvature.losses import LOSSES, per_sample
from hessfig.curvature.problem import Batch
from hessfig.errors import UserError
from hessfig.studies.landscape.losses_of_samples import largest_curvature
from tests.toys import toy_problem

COUNT = 5
MODELS = {
    "pre-LN": ModelConfig(d_model=4, d_mlp=6, n_heads=2, norm=Norm.pre),
    "post-LN": ModelConfig(d_model=4, d_mlp=6, norm=Norm.post),
    "linear": ModelConfig(d_model=4, d_mlp=6, attention=Attention.linear),
    "bare": ModelConfig(kind=Kind.self_attention, d_model=4),
}


def problem_of(name):
    model = MODELS[name]
    if name == "bare":
        return toy_problem(model)
    return toy_problem(model, TaskConfig(digits=1, batch_size=COUNT, seed=1))


def alone(objective, sample):
    rows = slice(sample, sample + 1)
    batch = objective.batch
    return replace(
        objective, batch=Batch(batch.inputs[rows], batch.targets[rows], batch.scored)
    )


def direction(samples):
    return torch.randn(
        samples.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )


@pytest.mark.parametrize("name", MODELS)
def test_losses_slopes_and_curvatures_are_those_of_every_sample_alone(name):
    problem = problem_of(name)
    samples = Samples(problem, len(problem.batch.inputs))
    flat = direction(samples)
    found = samples.along(samples.shaped(flat))
    slopes = [LossGradient(alone(problem, sample)) for sample in range(samples.count)]
    expected = torch.tensor(
        [[s.loss, float(flat @ s.flat), float(flat @ s.product(flat))] for s in slopes],
        dtype=torch.float64,
    )
    measured = torch.stack([found.losses, found.slopes, found.curvatures], dim=1)
    torch.testing.assert_close(measured, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(samples.losses(), found.losses)
    assert float(found.losses.mean()) == pytest.approx(
        float(loss_of(problem)), rel=1e-13
    )
    lengths = torch.stack([s.flat.square().sum() for s in slopes])
    torch.testing.assert_close(
        samples.gradient_lengths(), lengths, rtol=1e-10, atol=1e-14
    )
    summed = samples.summed_gradient(torch.tensor([2, 0]))
    torch.testing.assert_close(
        summed, slopes[2].flat + slopes[0].flat, rtol=1e-10, atol=1e-13
    )


def test_samples_come_in_the_order_of_the_batch_across_evaluations():
    count = AT_ONCE + 3
    problem = toy_problem(
        MODELS["pre-LN"], TaskConfig(digits=1, batch_size=count, seed=1)
    )
    samples = Samples(problem, count)
    for sample in (0, AT_ONCE - 1, AT_ONCE, count - 1):
        assert float(samples.losses()[sample]) == pytest.approx(
            LossGradient(alone(problem, sample)).loss, rel=1e-12
        )
    assert (
        Samples(problem, AT_ONCE + 1).losses().tolist()
        == samples.losses()[:-2].tolist()
    )


def test_the_second_order_prediction_is_true_up_to_the_third_order():
    problem = problem_of("pre-LN")
    samples = Samples(problem, COUNT)
    unit = samples.shaped(direction(samples) / direction(samples).norm())
    found = samples.along(unit)
    left = []
    for distance in (1e-2, 5e-3):
        change = samples.losses(samples.moved(unit, distance)) - found.losses
        predicted = distance * found.slopes + distance**2 / 2 * found.curvatures
        left.append((change - predicted).abs().max())
        assert float(left[-1]) < 0.02 * float(
            (distance**2 / 2 * found.curvatures).abs().max()
        )
    assert float(left[0] / left[1]) == pytest.approx(8, rel=0.1)


@pytest.mark.long
def test_the_largest_curvature_is_that_of_the_dense_hessians():
    problem = problem_of("pre-LN")
    norms = []
    for sample in range(COUNT):
        slope = LossGradient(alone(problem, sample))
        dense = torch.stack(
            [
                slope.product(one)
                for one in torch.eye(len(slope.flat), dtype=torch.float64)
            ]
        )
        norms.append(float(torch.linalg.eigvalsh(dense).abs().max()))
    found = largest_curvature(problem, list(range(COUNT)))
    assert 0.97 * max(norms) < found <= max(norms) * (1 + 1e-9)


def test_a_sum_over_everything_has_no_losses_of_single_samples():
    outputs = torch.zeros(3, 2, 4)
    with pytest.raises(UserError, match="not a mean over samples"):
        per_sample(LOSSES["mse_sum"](), outputs, outputs)
    problem = toy_problem(
        MODELS["pre-LN"],
        TaskConfig(digits=1, batch_size=3, loss=Loss.mse_sum_unshifted),
    )
    with pytest.raises(UserError, match="mean over samples"):
        Samples(problem, 3).losses()
