"""The architectures by their names in transformers: where sizes stand in config.json, weights in the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Names:
    """Paths of the pieces below the causal language model, and of the pieces of a layer below the layer.

    `fused`: queries, keys and values are one map; "columns" Q | K | V, or "heads", each head its own q, k, v rows.
    `by_inputs`: maps are stored (inputs, outputs), as GPT-2's Conv1D, instead of (outputs, inputs).
    `withholds_padding`: the embedding of transformers has no derivatives for the word of pad_token_id.
    """

    embedding: str
    layers: str
    norm: str
    norms: tuple[tuple[str, str], ...]  # (our name, path in a layer)
    query_key_value: tuple[str, ...]
    output: str
    mlp: tuple[tuple[str, str], ...]
    positions: str = ""
    fused: str = ""
    by_inputs: bool = False
    withholds_padding: bool = False
    norm_has_shift: bool = True


@dataclass(frozen=True)
class Architecture:
    """`sizes`: {our word: (its name in config.json, its value where the file leaves it out)}."""

    names: Names
    sizes: Mapping[str, tuple[str, Any]]
    biases: Mapping[str, tuple[str, Any]]  # of attention, of its output, of the MLP: the switch, its default


_ALWAYS, _NEVER = ("", True), ("", False)
_GPT2 = Architecture(
    Names(
        embedding="transformer.wte",
        positions="transformer.wpe",
        layers="transformer.h",
        norm="transformer.ln_f",
        norms=(("ln1", "ln_1"), ("ln2", "ln_2")),
        query_key_value=("attn.c_attn",),
        output="attn.c_proj",
        mlp=(("W_in", "mlp.c_fc"), ("W_out", "mlp.c_proj")),
        fused="columns",
        by_inputs=True,
    ),
    {
        "n_layers": ("n_layer", 12),
        "n_heads": ("n_head", 12),
        "d_model": ("n_embd", 768),
        "d_mlp": ("n_inner", None),
        "vocabulary": ("vocab_size", 50257),
        "context": ("n_positions", 1024),
        "is_tied": ("tie_word_embeddings", True),
    },
    {"attention": _ALWAYS, "output": _ALWAYS, "mlp": _ALWAYS},
)
_NEOX = Architecture(
    Names(
        embedding="gpt_neox.embed_in",
        layers="gpt_neox.layers",
        norm="gpt_neox.final_layer_norm",
        norms=(("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")),
        query_key_value=("attention.query_key_value",),
        output="attention.dense",
        mlp=(("W_in", "mlp.dense_h_to_4h"), ("W_out", "mlp.dense_4h_to_h")),
        fused="heads",
    ),
    {
        "n_layers": ("num_hidden_layers", 44),
        "n_heads": ("num_attention_heads", 64),
        "d_model": ("hidden_size", 6144),
        "d_mlp": ("intermediate_size", 24576),
        "vocabulary": ("vocab_size", 50432),
        "context": ("max_position_embeddings", 2048),
        "is_tied": ("tie_word_embeddings", False),
    },
    {"attention": ("attention_bias", True), "output": ("attention_bias", True), "mlp": _ALWAYS},
)
_LLAMA_NAMES = Names(
    embedding="model.embed_tokens",
    layers="model.layers",
    norm="model.norm",
    norms=(("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")),
    query_key_value=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    mlp=(("W_gate", "mlp.gate_proj"), ("W_in", "mlp.up_proj"), ("W_out", "mlp.down_proj")),
    withholds_padding=True,
    norm_has_shift=False,
)
_LLAMA_SIZES: dict[str, tuple[str, Any]] = {
    "n_layers": ("num_hidden_layers", 32),
    "n_heads": ("num_attention_heads", 32),
    "kv_heads": ("num_key_value_heads", None),
    "d_model": ("hidden_size", 4096),
    "d_head": ("head_dim", None),
    "d_mlp": ("intermediate_size", 11008),
    "vocabulary": ("vocab_size", 32000),
    "context": ("max_position_embeddings", 2048),
    "is_tied": ("tie_word_embeddings", False),
}
_LLAMA = Architecture(
    _LLAMA_NAMES,
    _LLAMA_SIZES,
    {
        "attention": ("attention_bias", False),
        "output": ("attention_bias", False),
        "mlp": ("mlp_bias", False),
    },
)
_MISTRAL = Architecture(
    _LLAMA_NAMES,
    {
        **_LLAMA_SIZES,
        "kv_heads": ("num_key_value_heads", 8),
        "d_mlp": ("intermediate_size", 14336),
        "context": ("max_position_embeddings", 131072),
    },
    {"attention": _NEVER, "output": _NEVER, "mlp": _NEVER},
)
_QWEN2 = Architecture(
    _LLAMA_NAMES,
    {
        **_LLAMA_SIZES,
        "kv_heads": ("num_key_value_heads", 32),
        "d_mlp": ("intermediate_size", 22016),
        "vocabulary": ("vocab_size", 151936),
        "context": ("max_position_embeddings", 32768),
    },
    {"attention": _ALWAYS, "output": _NEVER, "mlp": _NEVER},
)
ARCHITECTURES = {"gpt2": _GPT2, "gpt_neox": _NEOX, "llama": _LLAMA, "mistral": _MISTRAL, "qwen2": _QWEN2}
