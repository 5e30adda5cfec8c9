"""Bounds are never violated; the published one is, by a rescaling that leaves the network as it is."""

import csv
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.rng import stream
from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff.draws import attention_point
from hessfig.theory.claims.attention.bounds import scaled
from hessfig.theory.formulas.attention import bounds
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.formulas.matrix_calculus import identity
from hessfig.theory.studies import bounds as bounds_study
from hessfig.theory.verify.statement import Dims

scales = st.sampled_from([0.1, 1.0, 5.0])


@settings(derandomize=True, deadline=None, max_examples=10)
@given(st.integers(2, 7), st.integers(1, 5), st.integers(1, 5), scales, scales, scales)
def test_no_block_and_no_whole_exceeds_its_bound(
    L: int, d_V: int, d_K: int, tokens: float, query_key: float, targets: float
) -> None:
    drawn = attention_point(Dims(L, d_V, d_K), stream(0, "bounds", L, d_V, d_K))
    point = scaled(drawn, tokens, query_key, targets)
    for part in Part:
        blocks, whole = bounds.true_norms(point, part)
        for spread in (bounds.spread_from_norm(point), bounds.spread_from_diameter(point)):
            claimed = bounds.block_bounds(point, spread, part)
            assert all(norm <= claimed[pair] * (1 + 1e-9) for pair, norm in blocks.items())
            assert whole <= bounds.whole_bound(claimed) * (1 + 1e-9)


def test_the_diameter_refines_the_norm() -> None:
    point = attention_point(Dims(), stream(0, "refine"))
    wide, narrow = bounds.spread_from_norm(point), bounds.spread_from_diameter(point)
    assert narrow.mixed <= wide.mixed
    assert narrow.second <= wide.second
    assert narrow.third <= wide.third


def test_value_block_is_tight_with_the_mixed_tokens() -> None:
    point = attention_point(Dims(), stream(0, "tight"))
    claimed = bounds.block_bounds(point, bounds.spread_from_diameter(point))
    assert claimed[Matrix.W_V, Matrix.W_V] == pytest.approx(
        bounds.true_norms(point)[0][Matrix.W_V, Matrix.W_V]
    )


def test_published_bound_breaks_when_keys_are_small_and_queries_large() -> None:
    point = attention_point(Dims(), stream(0, "published"))
    assert bounds.true_norms(point)[1] < bounds.published_bound(point)
    factors = {Matrix.W_Q: 1e4, Matrix.W_K: 1e-4, Matrix.W_V: 1.0}
    same = AttentionPoint(point.X, point.Y, {m: factors[m] * w for m, w in point.weights.items()})
    torch.testing.assert_close(same.A, point.A)
    assert bounds.true_norms(same)[1] > bounds.published_bound(same)


def test_softmax_jacobian_is_larger_than_one_over_length() -> None:
    """Two tokens that share the attention equally have norm 1/2, whatever the length."""
    X = torch.zeros(4, 1, dtype=torch.float64)
    X[:2] = 10.0
    point = AttentionPoint(X, X, {m: identity(1) for m in (Matrix.W_Q, Matrix.W_K, Matrix.W_V)})
    assert bounds.softmax_jacobian_excess(point) == pytest.approx(4 / 2)


def test_study_finds_no_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds_study, "PROBLEMS", 2)
    monkeypatch.setattr(bounds_study, "RANDOM_SCALES", 5)
    monkeypatch.setattr(bounds_study, "SIGMAS", (0.1, 1.0))
    looseness, table = bounds_study.run(tmp_path)
    assert looseness == tmp_path / "bounds" / "looseness.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 7 + 1
    assert all(row["violations"] == "0" for row in rows)
