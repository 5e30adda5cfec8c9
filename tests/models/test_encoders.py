"""Encoders for masked tokens: every block is dense double backward's, with masks, padding and shared layers."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from hessfig.config.enums import Data, Products
from hessfig.curvature.gradients import loss_of
from hessfig.curvature.losses import IGNORED
from hessfig.models.kinds.huggingface import STORED
from hessfig.models.protocol import kind
from hessfig.models.stored.loaded_model import drawn
from hessfig.terms import Block, Part
from tests.daily import daily, thinned
from tests.models.tiny_models import (
    ENCODERS,
    config_of,
    dense_masked,
    model_of,
    off,
    places,
    save,
)

KIND = kind("huggingface")
PADDING = 1
EACH = {"least": 1.0, "singly": True}
# Two sequences with padding, one of a single word; 4 is the mask.
ROWS = [[0, 2, 3, 2], [3, 0, 2, PADDING], [2, PADDING, PADDING, PADDING], [2, 3, 3, 0]]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@cache
def saved(name, home):
    """Return the settings that measure a saved encoder on padded rows, half of whose words are masked."""
    np.save(home / "rows.npy", np.array(ROWS))
    task = {"data": Data.masked_tokens, "masked_share": 0.5}
    return config_of(
        save(name, home / name.replace(" ", "_")), home / "rows.npy", task=task
    )


def problem_of(config, at_once=4):
    return drawn(
        config,
        0,
        STORED.sizes(config),
        KIND.layout(config),
        STORED.ids(config),
        at_once,
    )


@cache
def truth(name, home):
    problem = problem_of(saved(name, home))
    batch = problem.batch
    return problem, dense_masked(
        model_of(problem.network), batch.inputs, batch.targets, PADDING
    )


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.long
def test_every_weight_is_dense_double_backward(name, home):
    problem, parts = truth(name, home)
    whole = Block(0, "all", "all")
    assert off(problem, parts, whole, **EACH) < 1e-10
    top = problem.layout.num_layers
    for layer, col in sorted(
        {(weight.layer, weight.name) for weight in problem.layout.weights}
    ):
        assert off(problem, parts, Block(layer, col, col), least=1.0) < 1e-10, (
            layer,
            col,
        )
    embedding = problem.layout.names[0]
    for block in [
        Block(0, "b_U", embedding),
        Block(0, embedding, "b_U"),
        Block(0, "W_head", "b_U"),
        Block(0, "W_Q", "b_U", 1),
        Block(top, "W_V", "W_in", 1),
        Block(0, "ln_embed_gain", "ln_out_gain"),
        Block(1, "attention", "attention"),
        Block(top, "layer", "layer"),
    ]:
        assert off(problem, parts, block, **EACH) < 1e-10, block


def test_a_tied_embedding_counts_in_both_roles(home):
    problem, parts = truth("bert", home)
    assert problem.layout.names[0] == "W_E+W_U"
    untied = {
        name for name, _ in truth("bert untied", home)[0].network.named_parameters()
    }
    assert {name for name, _ in problem.network.named_parameters()} == untied - {
        "cls.predictions.decoder.weight"
    }
    rows = places(model_of(problem.network), problem.layout.side(0, "W_E+W_U"))
    # Mixed terms: none in W_U alone.
    assert float(parts[Part.H_f][rows][:, rows].abs().max()) > 1e-3


@pytest.mark.long
def test_a_layer_of_several_passes_is_one_weight(home):
    layout = truth("albert", home)[0].layout
    assert layout.num_layers == 1
    assert layout.layers_of("W_Q") == [1]
    assert truth("albert groups", home)[0].layout.layers_of("W_Q") == [1, 2]


@pytest.mark.parametrize("at_once", daily([1, 3], 3))
@pytest.mark.parametrize("name", thinned(["albert", "roberta"], 2))
def test_micro_batches_weigh_the_tokens_that_they_mask(name, at_once, home):
    problem, parts = truth(name, home)
    split = problem_of(saved(name, home), at_once)
    assert [batch.size for batch in split.batches] == (
        [2, 2, 1, 2] if at_once == 1 else [5, 2]
    )
    assert float(loss_of(split)) == pytest.approx(float(loss_of(problem)), rel=1e-12)
    for col in ("W_E+W_U", "b_U", "W_Q"):
        layer = split.layout.layers_of(col)[0]
        assert off(split, parts, Block(layer, col, col), **EACH) < 1e-10, col


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*curvlinops:RuntimeWarning")
@pytest.mark.parametrize("at_once", thinned([4, 3], 2))
def test_curvlinops_and_double_backward_give_the_same_blocks(at_once, home):
    _, parts = truth("bert", home)
    split = problem_of(saved("bert", home), at_once)
    for block in (Block(1, "W_Q", "W_Q"), Block(0, "W_E+W_U", "b_U")):
        assert off(split, parts, block, products=Products.curvlinops, **EACH) < 1e-9


@pytest.mark.parametrize("name", thinned(ENCODERS, 2))
def test_padding_changes_nothing_and_the_loss_is_the_models_own(name, home, tmp_path):
    problem, _ = truth(name, home)
    batch = problem.batch
    model = model_of(problem.network)
    attended = (batch.inputs != PADDING).long()
    own = model(
        input_ids=batch.inputs, attention_mask=attended, labels=batch.targets
    ).loss
    assert float(loss_of(problem)) == pytest.approx(float(own), rel=1e-12)
    logits = problem.network(batch.inputs[1:2])
    alone = problem.network(batch.inputs[1:2, :3])
    torch.testing.assert_close(logits[:, :3], alone, rtol=1e-12, atol=1e-12)


def test_masks_are_of_the_stated_share_and_of_a_stream_of_their_own(home):
    config = saved("bert", home)
    batch = problem_of(config).batch
    is_masked = batch.targets != IGNORED
    assert is_masked.sum(dim=1).tolist() == [2, 2, 1, 2]
    assert set(batch.inputs[is_masked].tolist()) == {4}
    restored = torch.where(is_masked, batch.targets, batch.inputs)
    assert restored.tolist() == ROWS
    fewer = problem_of(
        replace(config, task=replace(config.task, batch_size=2)), 2
    ).batch
    assert torch.equal(fewer.inputs, batch.inputs[:2])
    other = problem_of(replace(config, task=replace(config.task, seed=1))).batch
    assert not torch.equal(other.inputs, batch.inputs)


@pytest.mark.long
def test_mixed_masks_keep_some_words_and_change_others(home, tmp_path):
    np.save(tmp_path / "long.npy", np.tile([0, 2, 3, 2], (600, 1)))
    config = saved("bert", home)
    task = replace(
        config.task, path=str(tmp_path / "long.npy"), batch_size=600, masked_as="mixed"
    )
    batch = problem_of(replace(config, task=task), 600).batch
    chosen = batch.targets != IGNORED
    was = batch.targets[chosen]
    now = batch.inputs[chosen]
    drawn_words = (now != 4) & (now != was)
    assert abs(float((now == 4).double().mean()) - 0.8) < 0.04
    # A drawn word is the one that was there in 1 of 3 draws, since three words are no
    # special ones.
    assert abs(float(drawn_words.double().mean()) - 0.1 * 2 / 3) < 0.03
    assert PADDING not in now.tolist()


def test_keys_know_masks_and_special_words(home):
    config = saved("bert", home)
    key = KIND.source(config)
    assert KIND.source(replace(config, task=replace(config.task, mask_id=3))) != key
    assert KIND.source(replace(config, task=replace(config.task))) == key


def names(found):
    return [weight.name for weight in found]


def test_names_of_an_encoder(home):
    layout = truth("albert", home)[0].layout
    assert layout.names == [
        *[
            "W_E+W_U",
            "W_pos",
            "W_type",
            "W_map",
            "W_Q",
            "W_K",
            "W_V",
            "W_O",
            "W_in",
            "W_out",
            "W_head",
        ]
    ]
    assert names(layout.members(0, "norms")) == [
        "ln_embed_gain",
        "ln_embed_shift",
        "ln_out_gain",
        "ln_out_shift",
    ]
    assert names(layout.members(0, "embeddings")) == ["W_E+W_U", "W_pos", "W_type"]
    assert "W_U" in truth("bert untied", home)[0].layout.names
