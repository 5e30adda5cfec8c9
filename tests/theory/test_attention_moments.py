"""Attention moments and softmax derivatives on random shapes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.rng import stream
from hessfig.theory import matrix_formulas
from hessfig.theory.autodiff import jacobian, second_derivative
from hessfig.theory.statement import Dims, attention_point


@settings(derandomize=True, deadline=None, max_examples=8)
@given(st.integers(1, 4), st.integers(1, 4))
def test_both_forms_of_z_agree(L, d_V):
    point = attention_point(Dims(L, d_V, 2), stream(0, "moments", L, d_V))
    A = point.A
    X = point.X
    torch.testing.assert_close(
        matrix_formulas.z1_by_moments(A, X),
        matrix_formulas.z1_by_definition(A, X),
        rtol=0,
        atol=1e-12,
    )
    torch.testing.assert_close(
        matrix_formulas.z2_by_moments(A, X),
        matrix_formulas.z2_by_definition(A, X),
        rtol=0,
        atol=1e-12,
    )


def test_softmax_derivatives_are_those_of_autodiff():
    T = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)
    A = torch.softmax(T, -1)
    torch.testing.assert_close(
        matrix_formulas.softmax_jacobian(A), jacobian(lambda t: torch.softmax(t, -1), T)
    )
    found = second_derivative(lambda t: torch.softmax(t, -1), T)
    torch.testing.assert_close(matrix_formulas.softmax_second_derivative(A), found)


def test_second_moments_are_covariances_and_third_vanish_for_two_equal_tokens():
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    A = torch.full((2, 2), 0.5, dtype=torch.float64)
    expected = torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=torch.float64).expand(
        2, 2, 2
    )
    torch.testing.assert_close(matrix_formulas.second_moment(A, X), expected)
    assert not matrix_formulas.third_moment(A, X).any()
