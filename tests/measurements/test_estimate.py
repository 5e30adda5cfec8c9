"""The estimators by their configured names."""

import math

import pytest

from hessfig.config.enums import Method, Products
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.measurements.block_norms import Estimator
from hessfig.measurements.quantity import Estimate
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Matrix, Part
from tests.toys import ARCHITECTURES, toy_problem, toy_task

MODEL = ARCHITECTURES["softmax"]


def norms(settings, model=MODEL, col=Matrix.W_Q, **task):
    problem = toy_problem(model, toy_task(model, **task))
    estimator = Estimator(problem, model, settings)
    found = estimator.column_norms(
        1, col, [Block(1, col, col)], list(PARTS), generator=stream(1, "probes")
    )
    return {(Matrix(block.row), part): norm for (block, part), norm in found.items()}


def test_hutchinson_covers_the_dense_norm():
    exact = norms(EstimatorConfig(method=Method.dense))
    for key, norm in norms(EstimatorConfig(Method.hutchinson, num_probes=400)).items():
        assert abs(norm.value - exact[key].value) < 4 * norm.error
        assert norm.num_probes == 400


def test_both_engines_give_the_same_estimate():
    ours = norms(EstimatorConfig(Method.hutchinson, products=Products.linearised))
    reference = norms(EstimatorConfig(Method.hutchinson, products=Products.curvlinops))
    for key, norm in ours.items():
        assert norm.value == pytest.approx(reference[key].value, rel=1e-12)
        assert norm.error == pytest.approx(reference[key].error, rel=1e-9)


@pytest.mark.parametrize("col", [Matrix.W_Q, Matrix.W_V])
def test_xtrace_is_exact_once_half_its_products_exceed_the_rank(col):
    """Two scored positions of d_head 4 bound the rank by 8; ten leave-one-out sketches reach it."""
    model = ModelConfig(d_model=8, d_head=4)
    exact = norms(EstimatorConfig(method=Method.dense), model, col, batch_size=1)
    for key, norm in norms(
        EstimatorConfig(method=Method.xtrace, num_probes=20), model, col, batch_size=1
    ).items():
        assert norm.value == pytest.approx(exact[key].value, rel=1e-7)
        assert norm.value == 0.0 or (math.isnan(norm.error) and norm.num_probes == 20)


def test_xtrace_keeps_a_structural_zero_at_zero():
    found = norms(EstimatorConfig(method=Method.xtrace, num_probes=6), col=Matrix.W_V)
    assert found[Matrix.W_V, Part.H_f] == Estimate(0.0, 0.0, 0)


@pytest.mark.parametrize("method", [Method.hutchinson, Method.xtrace])
def test_the_same_generator_repeats_every_bit(method):
    settings = EstimatorConfig(method=method, num_probes=6)
    first, second = (norms(settings) for _ in range(2))
    assert {key: norm.value for key, norm in first.items()} == {
        key: norm.value for key, norm in second.items()
    }
