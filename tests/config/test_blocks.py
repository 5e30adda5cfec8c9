"""The setting `blocks`."""

from __future__ import annotations

import re

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


@pytest.mark.parametrize(
    ("model", "blocks", "message", "remedy"),
    [
        (
            MODEL,
            [["W_Q", "W_QK"]],
            r"\(model.query_key=separate\): \[W_Q, W_QK\] is not a pair",
            "query_key=single",
        ),
        (MODEL, [["W_V", "W"]], r"\(model.kind=transformer\): \[W_V, W\] is not a pair", "model=linear_mlp"),
        (
            ModelConfig(query_key=QueryKey.single),
            ["W_K"],
            r"no weight W_K \(model.query_key=single\)$",
            "=separate",
        ),
        (ModelConfig(mlp=MLP.none), ["W_in"], r"no weight W_in \(model.mlp=none\)$", "model.mlp=relu"),
        (
            ModelConfig(kind=Kind.linear_mlp),
            ["W_V"],
            r"no weight W_V \(model.kind=linear_mlp\)$",
            "model=gpt2",
        ),
        (
            ModelConfig(kind=Kind.self_attention),
            ["W_O"],
            r"no weight W_O \(model.kind=self_att",
            "model=gpt2",
        ),
        (
            ModelConfig(kind=Kind.self_attention),
            ["W_QK"],
            r"\(model.query_key=separate\)$",
            "query_key=single",
        ),
    ],
)
def test_the_setting_that_leaves_a_weight_out_is_named(
    model: ModelConfig, blocks: object, message: str, remedy: str
) -> None:
    with pytest.raises(UserError) as caught:
        weight_pairs(blocks, model)
    assert re.search(message, caught.value.what)
    assert remedy in caught.value.remedy
