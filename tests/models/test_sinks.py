"""Attention sinks: what they do to the network, that every engine knows them, and that beta = 0 changes no bit."""

from dataclasses import replace

import pytest
import torch

from hessfig.config.enums import DType, Sink
from hessfig.config.science import ModelConfig
from hessfig.models.networks import Transformer
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.rng import stream
from tests.toys import build_model, toy_problem

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
    tapes = []
    for p, m in zip(problems, (model, PLAIN), strict=True):
        tapes.append(LinearisedNetwork(p, m).tape)
    assert [node.output for node in tapes[0].nodes] == [
        node.output for node in tapes[1].nodes
    ]
    assert torch.equal(tapes[0].output, tapes[1].output)
