"""The attention Hessian, contracted and literal, against automatic differentiation on random shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.errors import UserError
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Matrix, Part
from hessfig.theory import autodiff
from hessfig.theory.attention_formulas import AttentionPoint, attention_hessian
from hessfig.theory.autodiff import dense_hessian, hessian_blocks, square_loss
from hessfig.theory.statement import Dims, attention_point

TIGHT = {"rtol": 1e-9, "atol": 1e-12}


def oracle(point, part):
    return hessian_blocks(
        lambda weights: autodiff.attention(point.X, weights, point.temperature),
        square_loss(point.Y),
        point.weights,
        part,
    )


@settings(derandomize=True, deadline=None, max_examples=5)
@given(
    st.integers(2, 6),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_contracted_hessian_equals_autodiff(L, d_V, d_K, temperature):
    drawn = attention_point(Dims(L, d_V, d_K), stream(0, "attention", L, d_V, d_K))
    point = AttentionPoint(drawn.X, drawn.Y, drawn.weights, temperature)
    for part in PARTS:
        for (row, col), truth in oracle(point, part).items():
            block = Block(1, row, col)
            found = attention_hessian(
                point.X,
                point.Y,
                point.weights,
                part=part,
                block=block,
                temperature=temperature,
            )
            torch.testing.assert_close(found, truth, **TIGHT)


def test_gauss_newton_parts_add_up():
    point = attention_point(Dims(), stream(0, "split"))

    def network(weights):
        return autodiff.attention(point.X, weights)

    parts = [
        dense_hessian(network, square_loss(point.Y), point.weights, part)
        for part in PARTS
    ]
    outer, functional, full = parts
    torch.testing.assert_close(outer + functional, full, **TIGHT)
    assert torch.linalg.eigvalsh(outer).min() > -1e-12


def test_value_block_of_functional_hessian_is_exactly_zero():
    point = attention_point(Dims(), stream(0, "zero"))
    assert not point.hessian(Part.H_f, Matrix.W_V, Matrix.W_V).any()
    assert not oracle(point, Part.H_f)[Matrix.W_V, Matrix.W_V].any()


def test_large_sizes_stay_cheap():
    """d_V = 24 would need a Z_2 of 32 * 24^3 rows in literal form."""
    point = attention_point(Dims(32, 24, 8), stream(0, "large"))
    block = point.hessian(Part.H_f, Matrix.W_Q, Matrix.W_K)
    assert block.shape == (24 * 8, 24 * 8)


def test_other_weights_are_refused():
    point = attention_point(Dims(), stream(0, "bad"))
    with pytest.raises(UserError, match="no such block"):
        attention_hessian(
            point.X,
            point.Y,
            point.weights,
            part=Part.H,
            block=Block(1, Matrix.W_in, Matrix.W_in),
        )


def test_float32_is_refused():
    point = attention_point(Dims(), stream(0, "bad"))
    with pytest.raises(UserError, match="float64 is needed"):
        attention_hessian(
            point.X.float(),
            point.Y.float(),
            point.weights,
            part=Part.H,
            block=Block(1, Matrix.W_V, Matrix.W_V),
        )
