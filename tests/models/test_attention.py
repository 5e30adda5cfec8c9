"""Attention by hand: softmax and linear patterns, temperature, and the single query-key matrix."""

import math

import pytest
import torch
from torch.testing import assert_close

from hessfig.config.enums import Attention, DType, QueryKey
from hessfig.config.science import ModelConfig
from hessfig.rng import stream
from tests.toys import build_model

LENGTH = 6
WIDTH = 4


def attention(**settings):
    model = ModelConfig(d_model=WIDTH, **settings)
    network = build_model(model, sigma=1.0, seed=1, length=LENGTH, dtype=DType.float64)
    return network.layers[0].attn


def rows():
    return torch.randn(
        2, LENGTH, WIDTH, dtype=torch.float64, generator=stream(0, "rows")
    )


def by_hand(layer, *, linear, temperature=1.0):
    x = rows()
    q = x @ layer.q.weight.T
    k = x @ layer.k.weight.T
    v = x @ layer.v.weight.T
    scores = q @ k.transpose(1, 2) / (math.sqrt(WIDTH) * temperature)
    causal = torch.ones(LENGTH, LENGTH).tril().bool()
    pattern = (
        scores * causal
        if linear
        else scores.masked_fill(~causal, -math.inf).softmax(-1)
    )
    return pattern @ v @ layer.o.weight.T


@pytest.mark.parametrize("kind", [Attention.softmax, Attention.linear])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_one_head_by_hand(kind, temperature):
    layer = attention(attention=kind, temperature=temperature)
    expected = by_hand(layer, linear=kind == Attention.linear, temperature=temperature)
    assert_close(layer(rows()), expected)


@pytest.mark.parametrize("kind", Attention)
def test_chosen_queries_are_rows_of_the_whole(kind):
    layer = attention(attention=kind, n_heads=2)
    assert_close(layer(rows(), slice(2, 4)), layer(rows())[:, 2:4])


def test_the_single_matrix_is_the_product_of_the_two():
    pair = attention()
    single = attention(query_key=QueryKey.single)
    for name in ("v", "o"):
        getattr(single, name).load_state_dict(getattr(pair, name).state_dict())
    single.q.weight.copy_(pair.k.weight.T @ pair.q.weight)
    assert_close(single(rows()), pair(rows()))
