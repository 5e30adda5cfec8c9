"""A network whose forward pass was changed is never measured as the one the engines know."""

import warnings
from dataclasses import replace

import pytest
import torch

from hessfig.config.enums import Kind, Method, Norm, Products
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.curvature.problem import OtherNetwork
from hessfig.measurements.block_norms import Estimator
from hessfig.models.exact.exact_blocks import ExactEngine
from hessfig.models.networks import LinearMLP, SelfAttention
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Matrix, Part
from tests.daily import thinned
from tests.toys import ARCHITECTURES, toy_problem

MODEL = ModelConfig(d_model=8)


def sigmoid(self, scores, queries, masked):
    del self
    return torch.sigmoid(scores).masked_fill(masked[queries, : scores.shape[-1]], 0.0)


@pytest.fixture
def changed(monkeypatch):
    monkeypatch.setattr(SelfAttention, "pattern", sigmoid)
    return toy_problem(MODEL)


def norms(objective, settings, model=MODEL):
    block = Block(1, Matrix.W_Q, Matrix.W_Q)
    found = Estimator(objective, model, settings).column_norms(
        1, Matrix.W_Q, [block], list(PARTS), generator=stream(1, "probes")
    )
    return {part: norm.value for (_, part), norm in found.items()}


def test_the_engines_refuse_another_network(changed):
    with pytest.raises(
        OtherNetwork, match="differ from those of the linearised network"
    ):
        LinearisedNetwork(changed, MODEL)
    with pytest.raises(
        OtherNetwork,
        match=r"differ from those of the exact engine(.|\n)*products=curvlinops",
    ):
        ExactEngine(changed, MODEL).column(1, Matrix.W_Q, [Matrix.W_Q], [Part.H])


@pytest.mark.parametrize(
    "method", [Method.hutchinson, Method.aligned, Method.dense, Method.auto]
)
@pytest.mark.long
def test_estimators_fall_back_and_say_so(changed, method):
    truth = norms(changed, EstimatorConfig(Method.dense, Products.curvlinops))
    settings = EstimatorConfig(method, num_probes=200)
    with pytest.warns(RuntimeWarning, match="its forward pass is not the one"):
        found = norms(changed, settings)
    # Auto: fewer entries than probes.
    tolerance = 1e-12 if method in (Method.dense, Method.auto) else 0.2
    assert found == pytest.approx(truth, rel=tolerance)


def test_a_changed_linear_mlp_is_refused_too(monkeypatch):
    model = ARCHITECTURES["linear mlp"]
    plain = LinearMLP.from_hidden
    monkeypatch.setattr(
        LinearMLP, "from_hidden", lambda self, *rest: torch.tanh(plain(self, *rest))
    )
    with pytest.raises(OtherNetwork):
        ExactEngine(toy_problem(model), model).column(1, Matrix.W, [Matrix.W], [Part.H])


@pytest.mark.parametrize("name", thinned(ARCHITECTURES, 3))
def test_known_networks_pass_without_a_word(name):
    model = ARCHITECTURES[name]
    col = Matrix.W if model.kind == Kind.linear_mlp else Matrix.W_V
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        LinearisedNetwork(toy_problem(model), model).column(model.n_layers, col, [col])


def test_numbers_beyond_the_range_of_floats_cannot_tell():
    problem = toy_problem(replace(ARCHITECTURES["chain"], n_layers=3), sigma=1e80)
    assert (
        not LinearisedNetwork(problem, replace(ARCHITECTURES["chain"], n_layers=3))
        .tape.output.isfinite()
        .all()
    )


@pytest.mark.parametrize("norm", [Norm.none, Norm.pre, Norm.post])
def test_the_last_layers_check_sees_every_norm(norm, monkeypatch):
    monkeypatch.setattr(SelfAttention, "pattern", sigmoid)
    model = replace(MODEL, norm=norm)
    with pytest.raises(OtherNetwork):
        ExactEngine(toy_problem(model), model).column(
            1, Matrix.W_V, [Matrix.W_V], [Part.H_o]
        )
