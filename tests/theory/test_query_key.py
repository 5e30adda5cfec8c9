"""Ranks, pairs and multiplicities as whole numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.rng import stream
from hessfig.terms import Part
from hessfig.theory import attention_formulas as qk
from hessfig.theory.attention_claims import score_split
from hessfig.theory.statement import Dims, attention_point, normal
from tests.daily import thinned


@pytest.mark.parametrize("L", thinned(range(3, 9), 2))
@pytest.mark.parametrize("d_V", thinned(range(2, 5), 2))
@pytest.mark.parametrize("d_K", range(1, 4))
def test_rank_of_the_score_outer_product(L, d_V, d_K):
    """X (dQ W_K^T + W_Q dK^T) Xc^T over all dQ, dK, with the ranks of X, of centred tokens, and of both maps."""
    point = attention_point(Dims(L, d_V, d_K), stream(0, "rank", L, d_V, d_K))
    rank = qk.numerical_rank(score_split(point, Part.H_o))
    tokens = min(L, d_V)
    centred = min(L - 1, d_V)
    queries = min(d_K, tokens)
    keys = min(d_K, centred)
    assert rank == tokens * keys + centred * queries - queries * keys
    assert rank <= min(qk.rank_bound(d_V, d_K), qk.token_rank_bound(L, d_V))


@settings(derandomize=True, deadline=None, max_examples=6)
@given(st.integers(3, 6), st.integers(2, 4), st.integers(1, 4))
def test_eigenvalues_come_in_pairs_d_K_times(L, d_V, d_K):
    point = attention_point(Dims(L, d_V, d_K), stream(0, "pairs", L, d_V, d_K))
    eigenvalues = torch.linalg.eigvalsh(score_split(point, Part.H_f))
    rank = min(L - 1, d_V)
    zeros = [2 * d_K * (d_V - rank)] if rank < d_V else []
    assert qk.multiplicities(eigenvalues) == [d_K] * rank + zeros + [d_K] * rank
    torch.testing.assert_close(eigenvalues, -eigenvalues.flip(0), rtol=0, atol=1e-12)


def test_rank_of_stacked_kronecker_products():
    A = normal(3, 4, generator=stream(0, "A"))
    B = normal(2, 5, generator=stream(0, "B"))
    stacked = qk.stacked_kronecker(A, B)
    assert stacked.shape == (5 * 3 + 2 * 4, 5 * 4)
    assert (
        qk.numerical_rank(stacked)
        == qk.stacked_kronecker_rank(A, B)
        == 5 * 3 + 4 * 2 - 3 * 2
    )
