"""Exponents measured at tiny sigma are those growth_rates.py predicts; structural zeros are exactly zero."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.predictions import network_series
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import Prediction, growth_rate
from hessfig.predictions.monomials import Function
from hessfig.rng import stream
from hessfig.terms import PARTS, Attention, Block, Kind, Matrix, Part, QueryKey
from hessfig.theory import autodiff
from hessfig.theory.autodiff import ScaledNetwork
from hessfig.theory.growth_claims import COMPONENTS, attention_nets, measured, predicted
from hessfig.theory.statement import FIRST_SEED, Dims, attention_point, check, normal
from hessfig.theory.verification import CATALOGUE

TINY = 1e-5


@settings(derandomize=True, deadline=None, max_examples=3)
@given(st.integers(3, 5), st.integers(2, 5), st.integers(1, 6))
def test_all_block_pairs_grow_as_predicted(L, d_V, d_K):
    nets = attention_nets(Dims(L, d_V, d_K), stream(0, "growth", L, d_V, d_K))
    exponents = measured(nets)
    rates = predicted(nets)
    assert set(exponents) == set(rates)
    for name, rate in rates.items():
        assert float(exponents[name]) == pytest.approx(float(rate), abs=0.05), name


def test_single_matrix_grows_as_predicted():
    generator = stream(0, "single")
    point = attention_point(Dims(), generator)
    weights = {
        Matrix.W_QK: normal(5, 5, generator=generator),
        Matrix.W_V: point.weights[Matrix.W_V],
    }
    net = ScaledNetwork(point.X, point.Y, weights, autodiff.single_matrix_attention)
    architecture = Architecture(
        kind=Kind.self_attention, query_key=QueryKey.single, square_loss=True
    )
    for part in PARTS:
        for (row, col), exponent in net.exponents(part, TINY).items():
            rate = growth_rate(Block(1, row, col), part, architecture)
            assert float(exponent) == pytest.approx(rate.exponent, abs=0.05)


@pytest.mark.parametrize("attention", [Attention.softmax, Attention.linear])
def test_structural_zeros_are_exactly_zero(attention):
    architecture = Architecture(
        kind=Kind.self_attention, attention=attention, square_loss=True
    )
    net = attention_nets(Dims(), stream(0, "zeros"))[attention]
    for (row, col), norm in net.norms(Part.H_f, 1.0).items():
        rate = growth_rate(Block(1, row, col), Part.H_f, architecture)
        assert (norm == 0) == (rate.prediction == Prediction.structural_zero)


def test_a_wrong_exponent_is_caught():
    """Of a component; that all grow as predicted is checked with the other statements (test_statement.py)."""
    name = next(iter(COMPONENTS))
    statement = CATALOGUE[name]
    drawn = statement.draw(Dims(), stream(FIRST_SEED, "verify", name, 4, 5, 3))
    found = statement.oracle(drawn)
    wrong = dict(statement.corrected(drawn))
    assert max(float((value - found[key]).abs()) for key, value in wrong.items()) < 0.1
    wrong[next(iter(wrong))] += 1
    assert max(float((value - found[key]).abs()) for key, value in wrong.items()) > 0.9


@pytest.mark.long
def test_a_rule_that_forgets_what_a_component_does_is_caught(monkeypatch):
    statement = CATALOGUE["components-mixing"]
    # As if it were not odd.
    monkeypatch.setattr(network_series, "SIGMOID", Function("sigmoid", (0, 1, 2, 3)))
    growth_rate.cache_clear()
    try:
        assert not check(statement, [Dims()], 1).correction_holds
    finally:
        growth_rate.cache_clear()
