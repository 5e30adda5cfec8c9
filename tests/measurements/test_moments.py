"""Jacobians, moments of attention and exact zeros, each against a computation of its own."""

import pytest
import torch
from torch.func import functional_call

import hessfig
from hessfig.config.enums import MLP, Attention, Kind, Method, Norm
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.curvature.problem import scored_outputs
from hessfig.errors import UserError
from hessfig.sweep.measure import compute_cell, draw_problem
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Part
from tests.foreign_networks import mlp
from tests.toys import toy_task

DENSE = EstimatorConfig(Method.dense)
DEEP = ModelConfig(
    d_model=4, d_mlp=6, n_layers=2, n_heads=2, norm=Norm.pre, temperature=0.4
)
BARE = ModelConfig(kind=Kind.self_attention, d_model=4, n_heads=2)


def cell(name, model, **settings):
    chosen = {
        "task": toy_task(model),
        "blocks": ["W_V", "W_Q"],
        "estimator": DENSE,
        "quantities": [name],
    }
    variant = Variant("", Config(model=model, **{**chosen, **settings}))
    variant.check()
    return Cell(variant, 0.7, 1234, name)


def rows(name, model, **settings):
    found = compute_cell(cell(name, model, **settings)).rows
    return {(row["layer"], row["col"], row["part"]): row for row in found}


@pytest.mark.parametrize("model", [DEEP, BARE])
def test_jacobian_norms_are_those_of_explicit_jacobians(model):
    problem = draw_problem(cell("jacobian_norm", model))
    found = rows("jacobian_norm", model)
    for (layer, name, _), row in found.items():
        path = problem.layout.side(layer, name)[0].parameter

        def outputs(weight, path=path):
            with torch.nn.utils.stateless._reparametrize_module(
                problem.network, {path: weight}
            ):
                return scored_outputs(
                    problem.network, problem.batch.inputs, problem.batch.scored
                )

        jacobian = torch.autograd.functional.jacobian(
            outputs, problem.network.get_parameter(path).detach()
        )
        assert row["value"] == pytest.approx(float(jacobian.norm()), rel=1e-11)
        assert (row["error"], row["num_probes"]) == (0.0, 0)
    assert len(found) == 2 * model.n_layers


def test_probed_jacobian_norms_know_their_error():
    exact = rows("jacobian_norm", DEEP)
    probed = rows(
        "jacobian_norm", DEEP, estimator=EstimatorConfig(Method.auto, num_probes=30)
    )
    for place, row in probed.items():
        assert row["num_probes"] == 30
        assert 0 < row["error"] < row["value"]
        assert abs(row["value"] - exact[place]["value"]) < 4 * row["error"]


def test_jacobian_norms_of_anybodys_network():
    problem, _ = mlp()
    table = hessfig.measure(
        problem, blocks=["top", "W_2"], quantities=["jacobian_norm"], estimator="dense"
    )
    network = problem.network
    inputs = problem.inputs
    held = {name: parameter.detach() for name, parameter in network.named_parameters()}

    def outputs(weight, name):
        return functional_call(network, {**held, name: weight}, (inputs,))

    first = torch.autograd.functional.jacobian(
        lambda w: outputs(w, "0.weight"), held["0.weight"]
    )[..., :2, :]
    last = torch.autograd.functional.jacobian(
        lambda w: outputs(w, "3.weight"), held["3.weight"]
    )
    assert table["value"].tolist() == pytest.approx(
        [float(first.norm()), float(last.norm())]
    )


@pytest.mark.parametrize("model", [DEEP, BARE])
def test_moments_are_those_of_explicit_tensors(model):
    found = []
    for order in (1, 2, 3):
        found.append(
            [row["value"] for row in compute_cell(cell(f"moment_{order}", model)).rows]
        )
    for values in found:
        assert len(values) == model.n_layers
    for layer, expected in enumerate(explicit_moments(model)):
        assert [values[layer] for values in found] == pytest.approx(expected, rel=1e-9)


def explicit_moments(model):
    """Return the norms of m_i, M2_i and M3_i by layer, each made entry by entry."""
    problem = draw_problem(cell("moment_1", model))
    network = problem.network
    scored = problem.batch.scored
    hidden = network.hidden(problem.batch.inputs, 0)
    moments = []
    for layer in range(model.n_layers):
        if model.kind == Kind.self_attention:
            x = hidden
            size = 2
            q, k = (
                one.unflatten(-1, (2, size)).transpose(1, 2)
                for one in (network.q(x), network.k(x))
            )
            pattern = (q @ k.mT / size**0.5).softmax(-1)
        else:
            block = network.layers[layer]
            x = block.ln1(hidden)
            hidden = block(hidden)
            q, k = (
                one(x).unflatten(-1, (2, 2)).transpose(1, 2)
                for one in (block.attn.q, block.attn.k)
            )
            later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
            pattern = (
                (q @ k.mT / (0.4 * 2**0.5)).masked_fill(later, -torch.inf).softmax(-1)
            )
            used = scored if layer == model.n_layers - 1 else slice(scored.stop)
            pattern = pattern[:, :, used]
        m = torch.einsum("bhij,bjd->bhid", pattern, x)
        z = x[:, None, None] - m[:, :, :, None]
        second = torch.einsum("bhij,bhijc,bhijd->bhicd", pattern, z, z)
        third = torch.einsum("bhij,bhijc,bhijd,bhije->bhicde", pattern, z, z, z)
        moments.append([float(tensor.norm()) for tensor in (m, second, third)])
    return moments


def test_one_head_attends_alone():
    one = rows(
        "zero_share",
        ModelConfig(kind=Kind.self_attention, d_model=4),
        blocks=["W_Q"],
        parts=[Part.H_f],
    )
    assert one[1, "W_Q", "H_f"]["value"] == 0.0


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("kind", [Kind.self_attention, Kind.transformer])
def test_blocks_between_heads_of_the_functional_part_are_zero(heads, kind):
    small = {"d_mlp": 6, "mlp": MLP.relu} if kind == Kind.transformer else {}
    model = ModelConfig(kind=kind, d_model=8, n_heads=heads, **small)
    found = rows(
        "zero_share", model, blocks=["W_Q", "W_K", "W_V"], parts=[Part.H_o, Part.H_f]
    )
    assert (
        found[1, "W_Q", "H_f"]["value"]
        == found[1, "W_K", "H_f"]["value"]
        == 1 - 1 / heads
    )
    assert found[1, "W_V", "H_f"]["value"] == 1.0
    assert kind == Kind.self_attention or found[1, "W_Q", "H_o"]["value"] == 0.0


@pytest.mark.parametrize(
    ("name", "model", "settings", "words"),
    [
        (
            "moment_2",
            ModelConfig(kind=Kind.mlp, d_model=4),
            {"blocks": ["W_in"]},
            "softmax attention.*transformer",
        ),
        (
            "moment_1",
            ModelConfig(d_model=4, attention=Attention.linear),
            {},
            "attention=linear",
        ),
        (
            "jacobian_norm",
            DEEP,
            {"estimator": EstimatorConfig(Method.exact)},
            "estimator=exact",
        ),
        ("zero_share", ModelConfig(d_model=256), {}, "GB of memory"),
    ],
)
def test_what_cannot_be_measured_is_refused(name, model, settings, words):
    with pytest.raises(UserError, match=f"(?s){words}"):
        cell(name, model, **settings)
