"""Bounds are never violated; the published one is, by a rescaling that leaves the network as it is."""

import csv

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.rng import stream
from hessfig.terms import PARTS, Matrix
from hessfig.theory import further_formulas
from hessfig.theory import studies as bounds_study
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.bound_claims import scaled
from hessfig.theory.matrix_formulas import identity
from hessfig.theory.statement import Dims, attention_point

scales = st.sampled_from([0.1, 1.0, 5.0])


@settings(derandomize=True, deadline=None, max_examples=10)
@given(st.integers(2, 7), st.integers(1, 5), st.integers(1, 5), scales, scales, scales)
def test_no_block_and_no_whole_exceeds_its_bound(
    L, d_V, d_K, tokens, query_key, targets
):
    drawn = attention_point(Dims(L, d_V, d_K), stream(0, "bounds", L, d_V, d_K))
    point = scaled(drawn, tokens, query_key, targets)
    for part in PARTS:
        blocks, whole = further_formulas.true_norms(point, part)
        for spread in (
            further_formulas.spread_from_norm(point),
            further_formulas.spread_from_diameter(point),
        ):
            claimed = further_formulas.block_bounds(point, spread, part)
            assert all(
                norm <= claimed[pair] * (1 + 1e-9) for pair, norm in blocks.items()
            )
            assert whole <= further_formulas.whole_bound(claimed) * (1 + 1e-9)


def test_the_diameter_refines_the_norm():
    point = attention_point(Dims(), stream(0, "refine"))
    wide = further_formulas.spread_from_norm(point)
    narrow = further_formulas.spread_from_diameter(point)
    assert narrow.mixed <= wide.mixed
    assert narrow.second <= wide.second
    assert narrow.third <= wide.third


def test_value_block_is_tight_with_the_mixed_tokens():
    point = attention_point(Dims(), stream(0, "tight"))
    claimed = further_formulas.block_bounds(
        point, further_formulas.spread_from_diameter(point)
    )
    assert claimed[Matrix.W_V, Matrix.W_V] == pytest.approx(
        further_formulas.true_norms(point)[0][Matrix.W_V, Matrix.W_V]
    )


def test_published_bound_breaks_when_keys_are_small_and_queries_large():
    point = attention_point(Dims(), stream(0, "published"))
    assert further_formulas.true_norms(point)[1] < further_formulas.published_bound(
        point
    )
    factors = {Matrix.W_Q: 1e4, Matrix.W_K: 1e-4, Matrix.W_V: 1.0}
    same = AttentionPoint(
        point.X, point.Y, {m: factors[m] * w for m, w in point.weights.items()}
    )
    torch.testing.assert_close(same.A, point.A)
    assert further_formulas.true_norms(same)[1] > further_formulas.published_bound(same)


def test_softmax_jacobian_is_larger_than_one_over_length():
    """Two tokens that share the attention equally have norm 1/2, whatever the length."""
    X = torch.zeros(4, 1, dtype=torch.float64)
    X[:2] = 10.0
    point = AttentionPoint(
        X, X, {m: identity(1) for m in (Matrix.W_Q, Matrix.W_K, Matrix.W_V)}
    )
    assert further_formulas.softmax_jacobian_excess(point) == pytest.approx(4 / 2)


def test_study_finds_no_violation(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds_study, "BOUNDS_PROBLEMS", 2)
    monkeypatch.setattr(bounds_study, "RANDOM_SCALES", 5)
    monkeypatch.setattr(bounds_study, "SIGMAS", (0.1, 1.0))
    looseness, table = bounds_study.run_bounds(tmp_path)
    assert looseness == tmp_path / "bounds" / "looseness.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 7 + 1
    assert all(row["violations"] == "0" for row in rows)
