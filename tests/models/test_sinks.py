"""Attention sinks: what they do to the network, that every engine knows them, and that beta = 0 changes no bit."""

from dataclasses import replace

import pytest
import torch

from hessfig.config.enums import MLP, DType, Norm, QueryKey, Sink
from hessfig.config.science import ModelConfig
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.blocks import matrices_of
from hessfig.models.exact.support import Level, exactness
from hessfig.models.networks import Transformer
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Part
from tests.toys import build_model, exact_norms, toy_problem

PLAIN = ModelConfig(d_model=4, d_mlp=6, n_heads=2, n_layers=2)
SUNK = [
    replace(PLAIN, sink=sink, sink_beta=1.5)
    for sink in (Sink.scores, Sink.embedding, Sink.both)
]


def network_of(model):
    network = build_model(model, sigma=0.7, seed=1, length=9, dtype=DType.float64)
    assert isinstance(network, Transformer)
    return network


def tokens():
    return torch.randint(0, 12, (3, 9), generator=stream(0, "tokens"))


def test_a_sink_draws_attention_to_the_first_key_and_leaves_the_odds_of_the_others():
    attention = network_of(SUNK[0]).layers[0].attn
    plain = network_of(PLAIN).layers[0].attn
    hidden = torch.randn(2, 5, 4, dtype=torch.float64, generator=stream(0, "hidden"))
    queries = slice(0, 5)
    sunk, bare = (
        one.pattern(one.scores(hidden, queries), queries, one.causal_mask)
        for one in (attention, plain)
    )
    odds = sunk[..., 1:, 0] / sunk[..., 1:, 1]
    were = bare[..., 1:, 0] / bare[..., 1:, 1]
    assert torch.allclose(
        odds, were * torch.exp(torch.tensor(1.5, dtype=torch.float64)), rtol=1e-12
    )
    assert torch.allclose(
        sunk[..., 4, 2] / sunk[..., 4, 3], bare[..., 4, 2] / bare[..., 4, 3], rtol=1e-12
    )


def test_an_embedding_sink_scales_the_first_position_alone():
    sunk, plain = (network_of(model).hidden(tokens(), 0) for model in (SUNK[1], PLAIN))
    assert torch.equal(sunk[:, 1:], plain[:, 1:])
    assert torch.allclose(sunk[:, 0], 2.5 * plain[:, 0], rtol=1e-15)


@pytest.mark.parametrize("sink", Sink)
def test_a_sink_of_no_size_changes_no_bit(sink):
    model = replace(PLAIN, sink=sink)
    assert torch.equal(network_of(model)(tokens()), network_of(PLAIN)(tokens()))
    problems = toy_problem(model), toy_problem(PLAIN)
    tapes = [
        LinearisedNetwork(p, m).tape
        for p, m in zip(problems, (model, PLAIN), strict=True)
    ]
    assert [node.output for node in tapes[0].nodes] == [
        node.output for node in tapes[1].nodes
    ]
    assert torch.equal(tapes[0].output, tapes[1].output)


def test_each_kind_of_sink_is_a_network_of_its_own():
    logits = [network_of(model)(tokens()) for model in (PLAIN, *SUNK)]
    assert all(
        not torch.allclose(a, b) for i, a in enumerate(logits) for b in logits[:i]
    )


@pytest.mark.parametrize("model", SUNK, ids=lambda model: model.sink)
@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 1},
        {},
        {"norm": Norm.pre, "mlp": MLP.gelu},
        {"query_key": QueryKey.single, "n_layers": 1},
    ],
    ids=["one layer", "two layers", "pre-LN", "single matrix"],
)
@pytest.mark.long
def test_exact_norms_are_those_of_dense_blocks(model, changes):
    model = replace(model, **changes)
    problem = toy_problem(model)
    layer = model.n_layers
    tape = LinearisedNetwork(problem, model)
    parts = list(PARTS)
    for col in matrices_of(model):
        dense = dense_blocks(tape.column(layer, col, [col]))
        block = Block(layer, col, col)
        assert all(
            exactness(model, block, part).level != Level.unsupported for part in parts
        )
        found = exact_norms(problem, layer, col, [col], parts, model=model)
        truth = {part: dense[col, part].norm() for part in (Part.H_o, Part.H_f)}
        truth[Part.H] = (dense[col, Part.H_o] + dense[col, Part.H_f]).norm()
        for part in parts:
            assert found[col, part] == pytest.approx(
                float(truth[part]), rel=1e-9, abs=1e-10
            )


@pytest.mark.parametrize("model", SUNK, ids=lambda model: model.sink)
@pytest.mark.parametrize("col", ["W_Q", "W_K"])
def test_scores_below_the_last_layer_know_the_sink(model, col):
    problem = toy_problem(model)
    dense = dense_blocks(LinearisedNetwork(problem, model).column(1, col, [col]))
    found = exact_norms(problem, 1, col, [col], [Part.H], model=model)
    truth = (dense[col, Part.H_o] + dense[col, Part.H_f]).norm()
    assert found[col, Part.H] == pytest.approx(float(truth), rel=1e-9)
