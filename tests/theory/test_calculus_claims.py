"""Vectorisation, commutation and Kronecker products on random shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.rng import stream
from hessfig.theory import matrix_formulas as mc
from hessfig.theory.statement import normal

sizes = st.integers(1, 5)


@settings(derandomize=True, deadline=None, max_examples=10)
@given(sizes, sizes)
def test_vec_by_identity_is_exact(n, m):
    A = normal(n, m, generator=stream(0, "A"))
    assert torch.equal(mc.vec_by_identity(A), mc.vec(A))


def test_khatri_rao_refuses_blocks_that_do_not_match():
    X = normal(3, 4, generator=stream(0, "X"))
    with pytest.raises(ValueError, match=r"block layouts \(3, 1\) and \(1, 3\)"):
        mc.khatri_rao(X[:, None, None, :], X[None, :, :, None])


def test_khatri_rao_of_single_blocks_is_kronecker():
    A = normal(2, 3, generator=stream(0, "A"))
    B = normal(4, 5, generator=stream(0, "B"))
    assert torch.equal(mc.khatri_rao(A[None, None], B[None, None]), torch.kron(A, B))
