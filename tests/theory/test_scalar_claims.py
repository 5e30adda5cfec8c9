"""The scalar-token model: closed-form spectrum, condition number, GGN and sinks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.rng import stream
from hessfig.terms import Part
from hessfig.theory import studies as scalar_study
from hessfig.theory.scalar_formulas import (
    MIXINGS,
    AttentionSink,
    draw_scalar_problem,
    outer_product_gap,
    sink_effect,
    sink_mixing,
    sink_response,
    spectrum,
    top_of_outer_product,
)

TIGHT = {"rtol": 1e-9, "atol": 1e-11}


@settings(derandomize=True, deadline=None, max_examples=8)
@given(st.integers(2, 8), st.integers(1, 6), st.sampled_from(sorted(MIXINGS)))
def test_closed_form_spectrum(L, d_K, model):
    problem = draw_scalar_problem(L, d_K, stream(0, "scalar", L, d_K))
    response = problem.response(model)
    mixing = MIXINGS[model](problem.x)
    torch.testing.assert_close(
        problem.hessian(response).eigenvalues, spectrum(problem, mixing), **TIGHT
    )
    top = float(spectrum(problem, mixing, Part.H_o)[-1])
    assert top_of_outer_product(problem, response) == pytest.approx(top, rel=1e-9)


@pytest.mark.parametrize("sink", AttentionSink)
def test_closed_form_spectrum_with_sinks(sink):
    problem = draw_scalar_problem(6, 4, stream(0, "sink"))
    closed = problem.hessian(sink_response(sink, problem.x, problem.s, 1.5)).eigenvalues
    torch.testing.assert_close(
        closed, spectrum(problem, sink_mixing(sink, problem.x, 1.5)), **TIGHT
    )


def test_no_sink_is_plain_attention():
    problem = draw_scalar_problem(6, 4, stream(0, "sink"))
    plain = problem.hessian(problem.response("attention"))
    for sink in AttentionSink:
        effect = sink_effect(problem, sink, 0.0)
        assert effect.bulk == pytest.approx(abs(plain.b))


def test_a_score_sink_shrinks_the_bulk_exponentially():
    problem = draw_scalar_problem(6, 4, stream(0, "sink"))
    low, high = (
        sink_effect(problem, AttentionSink.score, beta).bulk for beta in (30.0, 31.0)
    )
    assert low / high == pytest.approx(torch.e, rel=1e-3)


@settings(derandomize=True, deadline=None, max_examples=5)
@given(st.integers(3, 8), st.integers(2, 5))
def test_condition_number_tends_to_its_limit(L, d_K):
    problem = draw_scalar_problem(L, d_K, stream(0, "condition", L, d_K)).unbalanced(
        1000.0
    )
    hessian = problem.hessian(problem.response("attention"))
    N = float(problem.w_Q @ problem.w_Q + problem.w_K @ problem.w_K)
    assert hessian.condition_number == pytest.approx(
        hessian.condition_growth * N**2, rel=0.05
    )


def test_outer_product_is_exact_at_critical_points_of_the_mlp_only():
    problem = draw_scalar_problem(8, 4, stream(0, "critical"))
    noise = torch.linspace(-1, 1, 8, dtype=torch.float64)
    gaps = {}
    for model in ("linear MLP", "attention"):
        response = problem.response(model)
        gaps[model] = outer_product_gap(
            problem.at_critical_point(response, noise), response
        )
    assert gaps["linear MLP"] < 1e-12
    assert gaps["attention"] > 1e-7


def test_study_writes_its_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(scalar_study, "PROBLEMS", 4)
    monkeypatch.setattr(scalar_study, "CONDITION_PROBLEMS", 2)
    paths = scalar_study.run_scalar(tmp_path)
    assert [path.name for path in paths] == [
        "spectrum.csv",
        "condition.csv",
        "ggn.csv",
        "sinks.csv",
    ]
    assert all(path.parent == tmp_path / "scalar" for path in paths)
    header = (tmp_path / "scalar" / "sinks.csv").read_text().splitlines()[0]
    assert header == "sink,beta,quantity,q25,median,q75,count"
