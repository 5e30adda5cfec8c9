"""Bridges of TransformerLens: named blocks, patterns and norms against plain PyTorch; architectures by name."""

import re
from functools import cache

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hessfig
from hessfig.config.enums import Products
from hessfig.config.science import ModelConfig
from hessfig.errors import UserError
from hessfig.models.found_weights import find_weights
from hessfig.models.lens_bridge import wrapped
from hessfig.models.protocol import kind
from hessfig.models.routes import Engines
from hessfig.terms import Block, Part
from tests.config.composing import configs
from tests.daily import daily
from tests.double_backward import hessian
from tests.draws import labels
from tests.models.test_found_weights import view
from tests.models.tiny_models import places

WORDS = 5
LENGTH = 4
_HF = {
    **{
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": 4,
        "intermediate_size": 6,
    },
    **{"vocab_size": WORDS, "max_position_embeddings": LENGTH},
}
_IDS = {"pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0}


def native(**further):
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import boot

    sizes = {
        "n_layers": 1,
        "n_heads": 2,
        "d_model": 4,
        "d_head": 2,
        "d_mlp": 6,
        "n_ctx": LENGTH,
        "d_vocab": WORDS,
    }
    return boot(
        TransformerBridgeConfig(
            **sizes, act_fn="gelu", normalization_type="LN", **further
        )
    )


def around(name, **sizes):
    import transformers
    from transformer_lens.model_bridge.sources._bridge_builder import (
        build_bridge_from_module,
    )

    made = getattr(transformers, name)
    config = made.config_class(**sizes, attn_implementation="eager")
    return build_bridge_from_module(made(config), architecture=name, hf_config=config)


BRIDGES = {
    "native": native,
    "gpt2": lambda: around(
        "GPT2LMHeadModel",
        n_layer=1,
        n_head=2,
        n_embd=4,
        vocab_size=WORDS,
        n_positions=LENGTH,
    ),
    "neox": lambda: around("GPTNeoXForCausalLM", **_HF, **_IDS),
}


@cache
def bridge(name):
    torch.manual_seed(2)
    found = BRIDGES[name]().eval()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return found


def tokens():
    return labels(2, LENGTH, classes=WORDS, seed=1)


@cache
def dense(name):
    """Return the Hessian of the loss of next tokens by all parameters, by double backward."""
    network = wrapped(bridge(name)).double()

    def loss():
        found = network(tokens())
        logits = getattr(found, "logits", found)
        return nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten()
        )

    at = [one.requires_grad_() for one in network.parameters()]
    return network, hessian(loss, at)


def dense_block(name, row, col):
    network, whole = dense(name)
    return whole[places(network, (row,))][:, places(network, (col,))]


@pytest.mark.parametrize("name", daily(BRIDGES, "gpt2"))
def test_every_named_block_is_that_of_double_backward(name):
    objective = hessfig.Problem(bridge(name), tokens()).objective("float64")
    layout = objective.layout
    matrices = {"W_Q", "W_K", "W_V", "W_O", "W_in", "W_out"}
    assert matrices | {"W_E", "W_U"} <= {
        one for name in layout.names for one in (name, *name.split("+"))
    }
    engines = Engines(objective, ModelConfig(), Products.linearised)
    for weight in layout.weights:
        block = Block(weight.layer, weight.name, weight.name)
        truth = dense_block(name, weight, weight)
        column = engines.column(weight.layer, weight.name, [block])
        found = column.split_matmat(
            torch.eye(weight.size, dtype=torch.float64), [Part.H]
        )[block, Part.H]
        assert_close(found, truth, rtol=0, atol=1e-10)
    assert len(layout.weights) > 25


@pytest.mark.parametrize("name", daily(BRIDGES, "gpt2"))
def test_pairs_and_heads_by_their_short_name(name):
    problem = hessfig.Problem(bridge(name), tokens())
    layout = problem.objective("float64").layout
    (head,) = layout.members(1, "W_Q.head2")
    (value,) = layout.members(1, "W_V")
    truth = dense_block(name, head, value)
    assert truth.abs().max() > 1e-4
    found = problem.operator(("W_Q.h2@1", "W_V@1")).dense()
    assert_close(found, truth, rtol=0, atol=1e-10)


def test_the_fused_map_that_a_bridge_has_split_is_no_weight():
    layout = find_weights(bridge("gpt2"))
    assert not [weight for weight in layout.parameters if ".qkv." in weight.parameter]
    assert [".qkv." in path for path, _ in bridge("gpt2").named_parameters()].count(
        True
    ) == 2


def test_the_bridge_stays_as_it_was():
    held = bridge("gpt2")
    before = {name: (one.dtype, one.clone()) for name, one in held.named_parameters()}
    hessfig.measure(hessfig.Problem(held, tokens()), blocks=["W_V"])
    for name, one in held.named_parameters():
        assert one.dtype == before[name][0]
        assert one.equal(before[name][1])


@pytest.mark.long
def test_next_tokens_of_several_batches_count():
    every = tokens()
    whole, parts = (
        hessfig.measure(
            hessfig.Problem(bridge("native"), given), blocks=["W_V"], estimator="dense"
        )
        for given in (every, [*every.split(1)])
    )
    assert parts["value"].tolist() == pytest.approx(whole["value"].tolist(), rel=1e-10)


def test_an_encoder_needs_targets():
    held = around("BertForMaskedLM", **_HF, **{**_IDS, "pad_token_id": 0}).eval()
    with pytest.raises(UserError, match="attend to later tokens"):
        hessfig.measure(hessfig.Problem(held, tokens()), blocks=["W_V"])
    targets = torch.where(torch.arange(LENGTH) == 1, tokens(), -100)
    assert (
        hessfig.measure(hessfig.Problem(held, tokens(), targets), blocks=["W_V@1"])[
            "value"
        ].iloc[0]
        > 0
    )


def pattern_by_hand(name, layer, stream):
    """Return scores and mixing weights of a layer from its residual stream, by elementary operations."""
    layout = find_weights(bridge(name))
    held = dict(wrapped(bridge(name)).named_parameters())

    def one(what):
        (weight,) = layout.members(layer, what)
        return view(weight, held[weight.parameter])

    norm = "ln_1" if name == "gpt2" else "ln1"
    normed = (stream - stream.mean(-1, keepdim=True)) / (
        stream.var(-1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    normed = normed * one(f"{norm}_gain") + one(f"{norm}_shift")
    q, k = (
        (normed @ one(f"W_{x}").T + one(f"b_{x}")).unflatten(-1, (2, 2)).transpose(1, 2)
        for x in "QK"
    )
    scores = q @ k.transpose(-1, -2) / 2**0.5
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return scores * seen, scores.masked_fill(~seen, float("-inf")).softmax(-1)


@pytest.mark.parametrize("name", ["native", "gpt2"])
def test_patterns_scores_and_norms_are_those_by_hand(name):
    problem = hessfig.Problem(bridge(name), [*tokens().split(1)])
    patterns = hessfig.lens.attention_patterns(problem)
    scores = hessfig.lens.attention_scores(problem)
    norms = hessfig.lens.residual_norms(problem)
    # One sequence at a time, as the problem has them: both at once are rounded
    # differently on some processors.
    outputs = [
        bridge(name).run_with_cache(one)[1]["blocks.0.hook_out"]
        for one in tokens().split(1)
    ]
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    assert patterns.shape == scores.shape == (1, 2, 2, LENGTH, LENGTH)
    assert norms.shape == (2, 2, LENGTH)
    held = dict(wrapped(bridge(name)).named_parameters())
    word, place = (
        held[one.parameter] for one in find_weights(bridge(name)).weights[:2]
    )
    stream = word[tokens()] + place[:LENGTH]
    by_hand, mixed = pattern_by_hand(name, 1, stream)
    assert_close(patterns[0], mixed, rtol=1e-4, atol=1e-6)
    assert_close(scores[0] * seen, by_hand, rtol=1e-4, atol=1e-5)
    assert_close(norms[0], stream.norm(dim=-1), rtol=1e-5, atol=0)
    assert norms[1].tolist() == torch.cat(outputs).norm(dim=-1).tolist()


@pytest.mark.parametrize("name", ["native", "gpt2"])
def test_allowed_scores_whose_softmax_underflows_are_not_masked(name):
    """Queries 300 times as large: weights of allowed entries are zero in float32, and their scores are numbers."""
    held = BRIDGES[name]().eval()
    held.load_state_dict(bridge(name).state_dict())
    with torch.no_grad():
        for path, parameter in held.named_parameters():
            parameter *= (
                300
                if re.search(r"\.q(\._original_component)?\.(weight|bias)$", path)
                else 1
            )
    problem = hessfig.Problem(held, tokens())
    patterns = hessfig.lens.attention_patterns(problem)
    scores = hessfig.lens.attention_scores(problem)
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().expand_as(patterns)
    assert (patterns[seen] == 0).any()
    assert_close(scores > -1e30, seen)


def test_scores_that_a_hook_has_not_and_that_are_not_those_of_queries_and_keys_are_refused():
    held = native(positional_embedding_type="rotary", rotary_dim=2).eval()
    with torch.no_grad():
        for parameter in held.parameters():
            parameter += 0.5 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
    with pytest.raises(UserError, match="not the softmax of q k"):
        hessfig.lens.attention_scores(hessfig.Problem(held, tokens()))


def test_lens_asks_for_a_bridge():
    with pytest.raises(UserError, match="not a bridge"):
        hessfig.lens.attention_patterns(
            hessfig.Problem(nn.Linear(2, 2), torch.zeros(1, 2), torch.zeros(1, 2))
        )


def named(*overrides):
    sizes = (
        "model.n_layers=1",
        "model.n_heads=2",
        "model.d_model=8",
        "model.vocabulary=11",
    )
    data = (
        "task=tokens",
        "task.length=6",
        "task.batch_size=2",
        "sweep.name=mine",
        "seeds=2",
        "blocks=[W_V]",
    )
    ((_, config),) = configs("model=transformer_lens", *sizes, *data, *overrides)
    return config


@pytest.mark.parametrize("name", ["native", "GPT2LMHeadModel", "LlamaForCausalLM"])
@pytest.mark.long
def test_an_architecture_of_the_registry_by_name(name):
    config = named(f"model.name={name}")
    shipped = kind("transformer_lens")
    shipped.check(config)
    assert {"W_Q", "W_V.head2", "W_out"} <= {
        weight.name for weight in shipped.layout(config).weights
    }
    assert shipped.axes(config) == {"seed"}
    assert shipped.draw is not None
    one, again, other = (shipped.draw(config, None, seed) for seed in (0, 0, 1))
    (path,) = [weight.parameter for weight in one.layout.members(1, "W_V")]
    held = [drawn.network.get_parameter(path) for drawn in (one, again, other)]
    assert held[0].equal(held[1])
    assert not held[0].equal(held[2])
    assert held[0].dtype == torch.float64


@pytest.mark.parametrize("asked", daily(["gemma2", "qwen3", "mixtral"], "qwen3"))
def test_the_remedy_for_an_architecture_that_huggingface_does_not_know(asked):
    """The class of gemma2 is the remedy's example; the class of any other is the one that transformers names."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES,
    )

    with pytest.raises(UserError, match="not known here") as caught:
        configs(
            "model=huggingface",
            f"model.architecture={asked}",
            "task=tokens",
            "sweep.name=mine",
        )
    assert "model=transformer_lens model.name=CLASS" in caught.value.remedy
    assert f"({CLASSES['gemma2']} for gemma2)" in caught.value.remedy
    kind("transformer_lens").check(named(f"model.name={CLASSES[asked]}"))


def test_sizes_that_do_not_fit_when_the_network_runs_are_refused():
    shipped = kind("transformer_lens")
    gpt_j = "model.name=GPTJForCausalLM"
    with pytest.raises(
        UserError, match=r"does not run[\s\S]*size of tensor[\s\S]*rotary_dim=4"
    ):
        shipped.check(named(gpt_j))
    shipped.check(named(gpt_j, "model.options={rotary_dim: 4}"))


def test_unknown_names_and_two_sources_are_refused():
    shipped = kind("transformer_lens")
    with pytest.raises(UserError, match="not in TransformerLens's registry"):
        shipped.check(named("model.name=GPT9"))
    with pytest.raises(UserError, match="attend to later tokens"):
        shipped.check(named("model.name=BertForMaskedLM"))
    with pytest.raises(UserError, match="read, or drawn at random"):
        shipped.check(named("model.name=native", "model.path=somewhere"))
