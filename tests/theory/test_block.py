"""LayerNorm, feed-forward sublayer and whole blocks against automatic differentiation."""

import pytest
import torch

from hessfig.rng import stream
from hessfig.terms import PARTS, Part
from hessfig.theory import autodiff, sublayer_formulas
from hessfig.theory.autodiff import (
    hessian_blocks,
    jacobian,
    square_loss,
    weight_jacobian,
)
from hessfig.theory.network_claims import draw_block
from hessfig.theory.statement import Dims
from hessfig.theory.sublayer_formulas import GELU, IN, OUT, RELU, Placement

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
DIMS = Dims(L=3, d_V=4, d_K=2, d_ff=5)


def test_activations_have_the_derivatives_they_say():
    h = torch.linspace(-3, 3, 14, dtype=torch.float64)
    for activation in (RELU, GELU):
        slope = torch.diag(jacobian(activation.function, h))
        bend = torch.diag(jacobian(activation.slope, h))
        torch.testing.assert_close(activation.slope(h), slope, **TIGHT)
        torch.testing.assert_close(activation.curvature(h), bend, **TIGHT)


def test_freezing_the_scale_is_far_off():
    X = draw_block(DIMS, stream(0, "norm")).X
    true = jacobian(autodiff.layer_norm, X)
    assert (
        sublayer_formulas.jacobian_with_frozen_scale(X) - true
    ).abs().max() > 0.2 * true.abs().max()


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("activation", [RELU, GELU], ids=lambda a: a.name)
def test_block_derivatives_and_hessian(placement, activation):
    problem = draw_block(DIMS, stream(0, "block", placement, activation.name))
    point = problem.point(placement, activation)
    network = problem.network(placement, activation)
    for matrix in problem.weights:
        torch.testing.assert_close(
            point.jacobian(matrix),
            weight_jacobian(network, problem.weights, matrix),
            **TIGHT,
        )
    for part in PARTS:
        truth = hessian_blocks(
            network, square_loss(problem.target), problem.weights, part
        )
        for pair, block in point.feed_forward_hessian(part).items():
            torch.testing.assert_close(block, truth[pair], **TIGHT)


@pytest.mark.parametrize("placement", Placement)
def test_relu_leaves_no_functional_hessian_before_but_not_after_the_norm(placement):
    problem = draw_block(DIMS, stream(0, "relu"))
    blocks = hessian_blocks(
        problem.network(placement, RELU),
        square_loss(problem.target),
        problem.weights,
        Part.H_f,
    )
    assert bool(blocks[IN, IN].any()) == (placement == Placement.post)
    assert blocks[IN, OUT].any()
