"""The setting `blocks`."""

from __future__ import annotations

import pytest

from hessfig.config import MLP, Kind, ModelConfig, QueryKey
from hessfig.config.blocks import matrices_of, weight_pairs
from hessfig.errors import UserError
from hessfig.terms import Matrix

MODEL = ModelConfig()


def test_names_are_diagonal_blocks_and_lists_are_pairs() -> None:
    assert weight_pairs(["W_V", ["W_Q", "W_K"]], MODEL) == [("W_V", "W_V"), ("W_Q", "W_K")]
    assert weight_pairs("W_V", MODEL) == [("W_V", "W_V")]


def test_repeats_count_once() -> None:
    assert weight_pairs(["W_V", "W_V", ["W_V", "W_V"]], MODEL) == [("W_V", "W_V")]


def test_all_is_every_unordered_pair_once() -> None:
    pairs = weight_pairs("all", MODEL)
    assert len(pairs) == len(set(map(frozenset, pairs))) == 9 * 10 // 2


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (MODEL, "W_E W_pos W_Q W_K W_V W_O W_in W_out W_U"),
        (ModelConfig(mlp=MLP.none), "W_E W_pos W_Q W_K W_V W_O W_U"),
        (ModelConfig(query_key=QueryKey.single), "W_E W_pos W_QK W_V W_O W_in W_out W_U"),
        (ModelConfig(kind=Kind.self_attention), "W_Q W_K W_V"),
        (ModelConfig(kind=Kind.linear_mlp), "W"),
    ],
)
def test_each_architecture_has_its_own_weights(model: ModelConfig, expected: str) -> None:
    assert matrices_of(model) == [Matrix(name) for name in expected.split()]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (["W_X"], "no weight named 'W_X'"),
        (["W_QK"], "this model has no weight W_QK"),
        ([["W_Q", "W_QK"]], "this model has no weight W_QK"),
        ([], "empty"),
        (None, "empty"),
        ([["W_Q"]], "a pair has two weights"),
        ([["W_Q", "W_K", "W_V"]], "a pair has two weights"),
        ([3], "no weight named 3"),
    ],
)
def test_what_the_model_has_not_is_named(blocks: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        weight_pairs(blocks, MODEL)
    assert "W_pos" in caught.value.allowed


def test_a_misspelt_weight_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'W_out'"):
        weight_pairs(["W_ot"], MODEL)
