"""Names of weights found in models of transformers: of each type a tiny random one, checked by its own derivatives."""

import copy
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import hessfig
from hessfig.errors import UserError
from hessfig.models.found_weights import find_weights
from tests.daily import daily, thinned
from tests.draws import labels

WORDS = 11
LENGTH = 6
_LLAMA = {
    **{
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 16,
        "head_dim": 4,
    },
    **{"intermediate_size": 24, "max_position_embeddings": 8},
}
_EXPERTS = {
    **_LLAMA,
    **{
        "num_local_experts": 3,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
    },
    **{"shared_expert_intermediate_size": 10, "moe_num_experts": 3},
}
_LATENT = {
    **{name: value for name, value in _EXPERTS.items() if name != "head_dim"},
    **{
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 8,
    },
    **{"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4},
}
_BERT = {
    name: value
    for name, value in _LLAMA.items()
    if name not in ("num_key_value_heads", "head_dim")
}
_GPT = {"n_layer": 2, "n_head": 4, "n_embd": 16, "n_positions": 8}
_VIT = {**_BERT, "image_size": 8, "patch_size": 4}
_QKVO = ("W_Q", "W_K", "W_V", "W_O")
_GATED = ("W_gate", "W_in", "W_out")
_PLAIN = (*_QKVO, "W_in", "W_out")
_ALL = (*_QKVO, *_GATED)
# Type: (its sizes, the names of a layer).
TYPES = {
    **dict.fromkeys(("gpt2", "openai-gpt", "gpt_bigcode"), (_GPT, _PLAIN)),
    **dict.fromkeys(("gptj", "codegen"), ({**_GPT, "rotary_dim": 4}, _PLAIN)),
    "ctrl": ({**_GPT, "dff": 24}, _PLAIN),
    "gpt_neo": (
        {
            "num_layers": 2,
            "num_heads": 4,
            "hidden_size": 16,
            "attention_types": [[["global", "local"], 1]],
        },
        _PLAIN,
    ),
    "bloom": ({"n_layer": 2, "n_head": 4, "hidden_size": 16}, _PLAIN),
    "falcon": ({**_BERT, "num_kv_heads": 2, "new_decoder_architecture": True}, _PLAIN),
    "mpt": ({"n_layers": 2, "n_heads": 4, "d_model": 16, "max_seq_len": 8}, _PLAIN),
    "opt": ({**_BERT, "ffn_dim": 24, "word_embed_proj_dim": 16}, _PLAIN),
    "gpt_neox": (_BERT, _PLAIN),
    "persimmon": ({**_BERT, "qk_layernorm": False}, _PLAIN),
    **dict.fromkeys(("phi", "starcoder2", "nemotron", "arcee"), (_LLAMA, _PLAIN)),
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "phi3",
        ),
        (_LLAMA, _ALL),
    ),
    **dict.fromkeys(
        ("stablelm", "olmo", "olmo2", "cohere", "granite", "glm", "smollm3"),
        (_LLAMA, _ALL),
    ),
    **dict.fromkeys(("helium", "exaone4", "ernie4_5"), (_LLAMA, _ALL)),
    **dict.fromkeys(
        ("mixtral", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss"),
        (_EXPERTS, (*_ALL, "W_router")),
    ),
    "qwen2_moe": (
        _EXPERTS,
        (*_ALL, "W_router", "W_router.shared", *(f"{name}.shared" for name in _GATED)),
    ),
    "llama4_text": (
        _EXPERTS,
        (*_ALL, "W_router", *(f"{name}.shared" for name in _GATED)),
    ),
    **dict.fromkeys(
        (
            "bert",
            "roberta",
            "electra",
            "deberta-v2",
            "roformer",
            "mpnet",
            "esm",
            "albert",
        ),
        (_BERT, _PLAIN),
    ),
    "modernbert": (_BERT, _ALL),
    "gemma4_unified": (
        {"text_config": {**_LLAMA, "vocab_size": WORDS, "pad_token_id": 0}},
        _ALL,
    ),
    "distilbert": (
        {
            "n_layers": 2,
            "n_heads": 4,
            "dim": 16,
            "hidden_dim": 24,
            "max_position_embeddings": 8,
        },
        _PLAIN,
    ),
    "xlm": ({"n_layers": 2, "n_heads": 4, "emb_dim": 16, "n_words": WORDS}, _PLAIN),
    "t5": (
        {"num_layers": 2, "num_heads": 4, "d_model": 16, "d_kv": 4, "d_ff": 24},
        (*_PLAIN, "W_rel", *(f"{name}.cross" for name in _QKVO)),
    ),
    "bart": (
        {
            **{
                "encoder_layers": 2,
                "decoder_layers": 2,
                "d_model": 16,
                "encoder_ffn_dim": 24,
                "decoder_ffn_dim": 24,
            },
            **{
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "max_position_embeddings": 8,
            },
        },
        (*_PLAIN, *(f"{name}.cross" for name in _QKVO)),
    ),
    **dict.fromkeys(("vit", "dinov2", "beit"), (_VIT, _PLAIN)),
}
ASKED = {  # and what is asked for
    "xlnet": (
        {"n_layer": 2, "n_head": 4, "d_model": 16, "d_inner": 24},
        "rel_attn.seg_embed",
    ),
    "convbert": ({**_BERT, "embedding_size": 16}, "attention.self.conv_kernel_layer"),
    "jamba": ({**_EXPERTS, "num_hidden_layers": 6}, "mamba.in_proj"),
    "qwen3_next": (
        {**_EXPERTS, "layer_types": ["full_attention"] * 2},
        "self_attn.q_proj",
    ),
    "qwen3_5_text": (
        {**_LLAMA, "layer_types": ["full_attention"] * 2},
        "self_attn.q_proj",
    ),
    "deepseek_v3": ({**_LATENT, "q_lora_rank": 6}, "self_attn.q_b_proj"),
}
REFUSED = {
    "mamba": {"num_hidden_layers": 2, "hidden_size": 16},
    "rwkv": {"num_hidden_layers": 2, "hidden_size": 16, "context_length": 8},
}


@cache
def model_of(name, **further):
    """Return a tiny model of a type, its weights random and none of them zero."""
    import transformers as hf

    sizes = {**TYPES, **ASKED}[name][0] if name not in REFUSED else REFUSED[name]
    config = hf.AutoConfig.for_model(name, **{"vocab_size": WORDS, **sizes, **further})
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, token, 0)
    kinds = (hf.AutoModelForCausalLM, hf.AutoModelForMaskedLM, hf.AutoModelForSeq2SeqLM)
    made = next(
        one
        for one in (*kinds, hf.AutoModelForImageClassification)
        if type(config) in one._model_mapping
    )
    torch.manual_seed(3)
    network = made.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return network


@cache
def layout_of(name):
    """Return the weights that are found in the model of a type."""
    return find_weights(model_of(name))


def view(weight, tensor):
    shaped = tensor.view(*weight.axes, *tensor.shape[1:]) if weight.axes else tensor
    return shaped if weight.index is None else shaped[weight.index]


def weight_of(layout, name, layer):
    (found,) = layout.members(layer, name)
    return found


@pytest.mark.parametrize("name", daily(TYPES, *[*TYPES][::20]))
def test_names_of_a_layer_are_all_there(name):
    layout = layout_of(name)
    expected = TYPES[name][1]
    last = {
        weight.name
        for weight in layout.weights
        if weight.layer == layout.num_layers and weight.is_main
    }
    assert last - {"W_rel"} == {*expected} - {"W_rel"}
    assert {"W_E", "W_E+W_U", "W_patch"} & {*layout.names}
    assert {f"{one}.head1" for one in _QKVO} <= {
        weight.name for weight in layout.weights
    }


@pytest.mark.parametrize("name", daily(TYPES, *[*TYPES][::5]))
def test_every_entry_has_one_name_and_heads_and_experts_divide_their_weight(name):
    network = model_of(name)
    layout = layout_of(name)
    counts = {
        path: torch.zeros(one.shape, dtype=torch.int)
        for path, one in network.named_parameters()
    }
    parts = {
        path: torch.zeros(one.shape, dtype=torch.int)
        for path, one in network.named_parameters()
    }
    finer = {
        weight.name.rpartition(".")[0] for weight in layout.weights if weight.is_finer
    }
    for weight in layout.weights:
        where = view(weight, (parts if weight.is_finer else counts)[weight.parameter])
        assert where.numel() == weight.size
        where += 1
    for one in counts.values():
        assert bool((one == 1).all())
    divided = {
        weight.parameter
        for weight in layout.weights
        if weight.name in finer and weight.layer
    }
    for path in divided:
        assert bool((parts[path] == 1).all())


def outputs_of(network):
    generator = torch.Generator().manual_seed(1)
    config = network.config
    if config.model_type in ("vit", "dinov2", "beit"):
        return network(torch.randn(1, 3, 8, 8, generator=generator)).logits
    tokens = torch.randint(1, WORDS, (1, LENGTH), generator=generator)
    words = {"decoder_input_ids": tokens} if config.is_encoder_decoder else {}
    return network(tokens, **words).logits[:, -1]


def slopes(network, output, weights):
    """Return the gradient of one output by weights, as matrices, relative to the largest entry of all."""
    found = torch.autograd.grad(
        output, [network.get_parameter(weight.parameter) for weight in weights]
    )
    views = [view(weight, one) for weight, one in zip(weights, found, strict=True)]
    return [one.reshape(-1, one.shape[-1]) for one in views]


def rank(matrix):
    values = torch.linalg.svdvals(matrix.double())
    return int((values > 1e-4 * values[0]).sum())


# Models whose outputs at a position are a function of the last layer's stream there
# alone (no pooling, no experts).
_BY_POSITION = [
    name
    for name in TYPES
    if name not in ("vit", "dinov2", "beit", "albert", "bart", "t5")
]


@pytest.mark.parametrize("name", daily(_BY_POSITION, *_BY_POSITION[::12]))
def test_queries_are_those_of_one_position_and_keys_and_values_of_all(name):
    """In the last layer the output at one position reads one query, hence a gradient of rank one, but every key."""
    network = model_of(name)
    layout = layout_of(name)
    weights = [
        weight_of(layout, one, layout.num_layers) for one in ("W_Q", "W_K", "W_V")
    ]
    query, key, value = (
        rank(one) for one in slopes(network, outputs_of(network)[0, 3], weights)
    )
    assert query == 1
    assert key > 1
    assert value > 1


_WITHOUT_QUERIES = [name for name in TYPES if name not in ("albert", "t5")]


@pytest.mark.parametrize("name", daily(_WITHOUT_QUERIES, *_WITHOUT_QUERIES[1::20]))
def test_without_queries_keys_do_nothing_and_values_do(name):
    network = model_of(name)
    layout = layout_of(name)
    last = layout.num_layers
    network = copy.deepcopy(network)
    with torch.no_grad():
        for weight in (*layout.members(last, "W_Q"), *layout.members(last, "b_Q")):
            view(weight, network.get_parameter(weight.parameter)).zero_()
    weights = [weight_of(layout, one, last) for one in ("W_K", "W_V")]
    key, value = (
        float(one.abs().max())
        for one in slopes(network, outputs_of(network)[0, 1], weights)
    )
    assert key <= 1e-4 * value
    assert value > 0


@pytest.mark.parametrize("name", thinned(ASKED, 2))
def test_what_cannot_be_told_is_asked_for_and_an_answer_is_taken(name):
    network = model_of(name)
    where = ASKED[name][1]
    with pytest.raises(UserError, match="do not tell what they do") as caught:
        find_weights(network)
    assert where in str(caught.value)
    roles = dict(re.findall(r"'([^']+)': '(other)'", caught.value.remedy))
    layout = find_weights(network, roles)
    assert {where} <= {*layout.names}
    assert name != "jamba" or {*_QKVO} <= {*layout.names}


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text"])
def test_output_gates_among_queries_are_named_apart_by_an_answer(name):
    roles = {
        "self_attn.q_proj": "W_Q+W_G by heads",
        "mlp.experts.gate_up_proj": "W_gate+W_in",
    }
    layout = find_weights(model_of(name), roles)
    weights = torch.arange(32)[:, None].expand(32, 16)
    assert view(weight_of(layout, "W_Q.head2", 1), weights)[
        ..., 0
    ].flatten().tolist() == [8, 9, 10, 11]
    assert {"W_G", "W_K.head2", "W_O.head4", "W_gate", "W_out"} <= {
        one.name for one in layout.weights
    }


def test_norms_in_lists_of_their_own_have_their_lists_name():
    found = {one.name for one in find_weights(model_of("xlm")).members(1, "norms")}
    assert found == {
        f"layer_norm{at}_{word}" for at in (1, 2) for word in ("gain", "shift")
    }


def test_latent_attention_without_a_map_of_queries_is_asked_for_too():
    with pytest.raises(UserError, match="do not tell what they do") as caught:
        find_weights(model_of("deepseek_v3", q_lora_rank=None))
    assert "self_attn.kv_b_proj" in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_networks_without_attention_are_refused(name):
    with pytest.raises(UserError, match="no layers with attention"):
        find_weights(model_of(name))


def test_answers_are_roles():
    with pytest.raises(UserError, match="not known"):
        find_weights(model_of("gpt2"), {"attn.c_attn": "queries"})


class Packed(nn.Module):
    """Attention of a make that nobody knows: queries, keys and values of each head beside each other."""

    def __init__(self):
        super().__init__()
        self.num_heads = 2
        self.pack = nn.Linear(6, 18)
        self.out_proj = nn.Linear(6, 6)

    def forward(self, hidden):
        query, key, value = (
            self.pack(hidden).unflatten(-1, (2, 3, 3)).transpose(1, 2).unbind(3)
        )
        return self.out_proj(
            ((query @ key.mT).softmax(-1) @ value).transpose(1, 2).flatten(2)
        )


def test_a_given_role_says_how_a_map_is_fused():
    network = nn.Module()
    network.layers = nn.ModuleList([nn.ModuleDict({"attn": Packed()})])
    network.forward = lambda hidden: network.layers[0]["attn"](hidden)
    layout = find_weights(network, {"attn.pack": "W_Q+W_K+W_V by heads"})
    weights = torch.arange(18)[:, None].expand(18, 6)
    assert view(weight_of(layout, "W_K", 1), weights)[..., 0].flatten().tolist() == [
        3,
        4,
        5,
        12,
        13,
        14,
    ]
    assert view(weight_of(layout, "W_K.head2", 1), weights)[
        ..., 0
    ].flatten().tolist() == [12, 13, 14]
    with pytest.raises(UserError, match="do not tell what they do"):
        find_weights(network)


@pytest.mark.long
def test_measured_under_names_that_were_found():
    network = model_of("gpt_neox")
    tokens = labels(2, LENGTH, classes=WORDS)
    batch = {"input_ids": tokens, "labels": tokens}
    problem = hessfig.Problem(network, batch, weights="found")
    own = "gpt_neox.layers.1.attention.query_key_value.weight"
    whole = (
        hessfig.Problem(network, batch, weights={"whole": own})
        .operator("whole")
        .dense()
    )
    rows = torch.arange(48).view(4, 3, 4)[:, 1].flatten()
    at = torch.arange(48 * 16).view(48, 16)[rows].flatten()
    torch.testing.assert_close(
        problem.operator("W_K@2").dense(), whole[at][:, at], rtol=0, atol=1e-10
    )
    table = hessfig.measure(problem, blocks=["W_K.head2@2", "attention@2"])
    assert list(table["row"].unique()) == ["W_K.head2", "attention"]


def documented(heading):
    text = (Path(__file__).parents[2] / "docs" / "real-models.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| {heading}"))
    return iter(re.findall(r"`([a-z0-9_-]+)`", row.split("|")[2]))


@pytest.mark.parametrize(
    ("heading", "types"), [("found", TYPES), ("asked", ASKED), ("refused", REFUSED)]
)
def test_the_page_lists_these_types(heading, types):
    assert sorted(documented(heading)) == sorted(types)
