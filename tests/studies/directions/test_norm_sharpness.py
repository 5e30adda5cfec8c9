"""Generalised sharpness against dense Hessians and exhaustive search; steepest descent against formulas."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import hessfig
from hessfig.config.training_settings import TrainingConfig
from hessfig.states.training.norm_descent import length, steepest
from hessfig.states.training.step_rules import StepRule
from hessfig.terms import Optimiser, StepNorm
from tests.double_backward import hessian
from tests.tensors import copies, flat, inner


def problem(inputs=3):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(inputs, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    return hessfig.Problem(
        network, torch.randn(9, inputs).double(), torch.randint(0, 2, (9,))
    )


def dense(of):
    """Return the Hessian in all parameters by torch alone, and the gradient by parameter."""
    held = list(of.network.parameters())

    def loss():
        return nn.functional.cross_entropy(of.network(of.inputs), of.targets)

    return hessian(loss, held), torch.autograd.grad(loss(), held)


def measured(of):
    table = hessfig.measure(
        of, blocks=["all"], quantities=["norm_sharpness"], spectrum={"tolerance": 1e-10}
    )
    return {row.quantity: row for row in table.itertuples()}


def test_sharpness_of_small_networks():
    """Largest entry: the best corner of all 2^14. Blockwise and spectral: no better in 30 climbs of plain gradients."""
    of = problem()
    matrix, slopes = dense(of)
    found = measured(of)
    assert found["euclidean_sharpness"].value == pytest.approx(
        float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-8
    )
    corners = torch.tensor(
        list(itertools.product([-1.0, 1.0], repeat=len(matrix))), dtype=torch.float64
    )
    best = float((corners @ matrix * corners).sum(dim=1).max())
    assert found["largest_entry_sharpness"].value <= best * (1 + 1e-9)
    assert found["largest_entry_sharpness"].value >= 0.95 * best
    for norm in StepNorm:
        direction = flat(steepest(slopes, norm)[0])
        value = found[f"{norm}_steepest_curvature"].value
        assert value == pytest.approx(
            float(direction @ matrix @ direction), rel=1e-8, abs=1e-10
        )
        assert found[f"{norm}_sharpness"].value >= value - 1e-9
    for norm in (StepNorm.spectral, StepNorm.blockwise):
        reached = climbed(matrix, [one.shape for one in slopes], norm)
        assert found[f"{norm}_sharpness"].value == pytest.approx(reached, rel=1e-6)
        assert np.isnan(found[f"{norm}_sharpness"].error)
        assert found[f"{norm}_sharpness"].status == "ok"
    assert "sharpness_edge" not in found  # there is no training


def climbed(matrix, shapes, norm):
    """Return the best of 30 starts of d -> the point of the ball farthest along (H + c) d, then along H d."""
    shifted = matrix - torch.linalg.eigvalsh(matrix)[0] * torch.eye(
        len(matrix), dtype=torch.float64
    )
    generator = torch.Generator().manual_seed(0)
    best = -np.inf
    for _ in range(30):
        at = torch.randn(len(matrix), generator=generator, dtype=torch.float64)
        for _ in range(20):
            for towards in (shifted, matrix):
                pieces = (towards @ at).split([shape.numel() for shape in shapes])
                moved = steepest(
                    [
                        one.view(shape)
                        for one, shape in zip(pieces, shapes, strict=True)
                    ],
                    norm,
                )[0]
                at = flat(moved)
                best = max(best, float(at @ matrix @ at))
    return best


@pytest.mark.parametrize("norm", StepNorm)
def test_the_steepest_direction_is_in_the_ball_and_attains_the_dual_norm(norm):
    generator = torch.Generator().manual_seed(0)
    slopes = [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in [(4, 3), (5,), (2, 3, 2), (3, 3)]
    ]
    slopes[-1] = torch.outer(slopes[-1][0], slopes[-1][1])  # of rank one
    direction, dual = steepest(slopes, norm)
    assert length(direction, norm) == pytest.approx(1)
    assert inner(direction, slopes) == pytest.approx(dual)
    for _ in range(50):
        other = [
            torch.randn(one.shape, generator=generator, dtype=torch.float64)
            for one in slopes
        ]
        size = length(other, norm)
        assert inner(other, slopes) / size <= dual + 1e-12
    zero, nothing = steepest([torch.zeros(2, 2), torch.zeros(3)], norm)
    assert nothing == 0
    assert not flat(zero).any()


@pytest.mark.parametrize("kind", [Optimiser.spectral_gd, Optimiser.sign])
def test_rules_step_by_the_dual_norm_times_the_steepest_direction(kind):
    of = problem()
    _, slopes = dense(of)
    before = copies(of.network)
    rule = StepRule(
        of.network,
        TrainingConfig(optimiser=kind, learning_rate=0.1, weight_decay=0.5, warmup=0),
    )
    nn.functional.cross_entropy(of.network(of.inputs), of.targets).backward()
    rule.update(1)
    decayed = [slope + 0.5 * one for slope, one in zip(slopes, before, strict=True)]
    steps = []
    size = 0.0
    for one in decayed:
        if kind == Optimiser.sign:
            steps.append(one.sign())
            size += float(one.abs().sum())
            continue
        matrix = one if one.ndim == 2 else one[:, None]
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        steps.append((u @ v).view_as(one))
        size += float(s.sum())
    found = flat(of.network.parameters())
    expected = flat(before) - 0.1 * size * flat(steps)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
