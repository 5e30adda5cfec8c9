"""Attention moments and softmax derivatives on random shapes."""

import torch

from hessfig.theory import matrix_formulas


def test_second_moments_are_covariances_and_third_vanish_for_two_equal_tokens():
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    A = torch.full((2, 2), 0.5, dtype=torch.float64)
    expected = torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=torch.float64).expand(
        2, 2, 2
    )
    torch.testing.assert_close(matrix_formulas.second_moment(A, X), expected)
    assert not matrix_formulas.third_moment(A, X).any()
