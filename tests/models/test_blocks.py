"""The setting `blocks`."""

import re

import pytest

from hessfig.config.enums import MLP, Kind, QueryKey
from hessfig.config.science import ModelConfig
from hessfig.errors import UserError
from hessfig.models.blocks import blocks_of, matrices_of
from hessfig.terms import Block, Matrix
from tests.toys import ARCHITECTURES, layout_of

MODEL = ModelConfig()


def weight_pairs(blocks, model):
    """Return (row, col) of every block of a one-layer model."""
    found = []
    for block in blocks_of(blocks, layout_of(model), model):
        found.append((block.row, block.col))
    return found


def test_names_are_diagonal_blocks_and_lists_are_pairs():
    assert weight_pairs(["W_V", ["W_Q", "W_K"]], MODEL) == [
        ("W_V", "W_V"),
        ("W_Q", "W_K"),
    ]
    assert weight_pairs("W_V", MODEL) == [("W_V", "W_V")]


def test_repeats_count_once():
    assert weight_pairs(["W_V", "W_V", ["W_V", "W_V"]], MODEL) == [("W_V", "W_V")]


def test_all_is_every_unordered_pair_once():
    pairs = weight_pairs("all", MODEL)
    assert len(pairs) == len(set(map(frozenset, pairs))) == 9 * 10 // 2


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (MODEL, "W_E W_pos W_Q W_K W_V W_O W_in W_out W_U"),
        (ModelConfig(mlp=MLP.none), "W_E W_pos W_Q W_K W_V W_O W_U"),
        (
            ModelConfig(query_key=QueryKey.single),
            "W_E W_pos W_QK W_V W_O W_in W_out W_U",
        ),
        (ModelConfig(kind=Kind.self_attention), "W_Q W_K W_V"),
        (ModelConfig(kind=Kind.linear_mlp), "W"),
    ],
)
def test_each_architecture_has_its_own_weights(model, expected):
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
def test_what_the_model_has_not_is_named(blocks, message):
    with pytest.raises(UserError, match=message) as caught:
        weight_pairs(blocks, MODEL)
    assert "W_pos" in caught.value.allowed


def test_a_misspelt_weight_gets_a_suggestion():
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
        (
            ModelConfig(query_key=QueryKey.single),
            ["W_K"],
            r"no weight W_K \(model.query_key=single\)$",
            "=separate",
        ),
        (
            ModelConfig(mlp=MLP.none),
            ["W_in"],
            r"no weight W_in \(model.mlp=none\)$",
            "model.mlp=relu",
        ),
        (
            ModelConfig(kind=Kind.linear_mlp),
            ["W_V"],
            r"no weight W_V \(model.kind=linear_mlp\)$",
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
def test_the_setting_that_leaves_a_weight_out_is_named(model, blocks, message, remedy):
    with pytest.raises(UserError) as caught:
        weight_pairs(blocks, model)
    assert re.search(message, caught.value.what)
    assert remedy in caught.value.remedy


def test_groups_are_one_side_of_a_block():
    layout = layout_of(MODEL)
    assert weight_pairs(
        ["attention", ["mlp", "attention"], "layer", "embeddings"], MODEL
    ) == [
        ("embeddings", "embeddings"),
        ("attention", "attention"),
        ("mlp", "attention"),
        ("layer", "layer"),
    ]
    names = [weight.name for weight in layout.side(1, "attention")]
    assert names == ["W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O", "b_O"]
    assert layout.size(0, "all") == sum(weight.size for weight in layout.weights)


def test_a_group_the_network_has_not_is_refused():
    with pytest.raises(UserError, match="no weight named 'norms'"):
        weight_pairs(["norms"], MODEL)


def test_each_and_all_mean_every_weight_and_every_pair():
    assert set(weight_pairs("each", MODEL)) == {
        (name, name) for name in matrices_of(MODEL)
    }
    assert weight_pairs(["all"], MODEL) == [("all", "all")]


def test_pinned_names_reach_across_layers():
    model = ARCHITECTURES["two layers"]

    def found(setting):
        return blocks_of(setting, layout_of(model), model)

    assert found(["W_V@2"]) == [Block(2, "W_V", "W_V")]
    assert found([["W_V@1", "W_Q@2"]]) == [Block(2, "W_V", "W_Q", row_layer=1)]
    assert found([["W_V@2", "W_V@1"]]) == [Block(1, "W_V", "W_V", row_layer=2)]
    assert [(b.row_layer, b.layer) for b in found([["W_V@*", "W_V@*"]])] == [
        (1, 1),
        (1, 2),
        (2, 2),
    ]
    assert found(["W_V@*"]) == found(["W_V"])
    assert found([["W_E", "W_V@2"]]) == [Block(2, "W_E", "W_V")]


@pytest.mark.parametrize("name", ["W_V@3", "W_V@0", "W_V@", "W_V@x", "W_U@1"])
def test_a_layer_that_the_weight_is_not_in_is_refused(name):
    model = ARCHITECTURES["two layers"]
    with pytest.raises(UserError, match="is not in layer"):
        blocks_of([name], layout_of(model), model)
