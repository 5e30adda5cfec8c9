"""The architectures by their names in transformers: where sizes stand in config.json, weights in the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hessfig.errors import UserError, did_you_mean

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Names:
    """Paths of the pieces below the causal language model, and of the pieces of a layer below the layer.

    `fused`: queries, keys and values are one map; "columns" Q | K | V, or "heads", each head its own q, k, v rows.
    `by_inputs`: maps are stored (inputs, outputs), as GPT-2's Conv1D, instead of (outputs, inputs).
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
    norm_has_shift: bool = True


@dataclass(frozen=True)
class Architecture:
    """`sizes`: {our word: (its name in config.json, its value where the file leaves it out)}."""

    names: Names
    sizes: Mapping[str, tuple[str, Any]]
    biases: Mapping[str, tuple[str, Any]]  # of attention, of its output, of the MLP: the switch, its default


@dataclass(frozen=True)
class Sizes:
    """A network's numbers: `kv_heads` heads share keys and values, `context` is its longest sequence."""

    model_type: str
    names: Names
    n_layers: int
    n_heads: int
    kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    vocabulary: int
    context: int
    is_tied: bool
    biases: Mapping[str, bool]


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


def architecture(model_type: str, key: str) -> Architecture:
    """Return the architecture called `model_type`; `key` names the setting or file that asks for it.

    Raises UserError when there is no such architecture here.
    """
    if model_type not in ARCHITECTURES:
        raise UserError(
            f"{key}: this architecture is not known here",
            got=model_type,
            allowed=", ".join(ARCHITECTURES),
            remedy=did_you_mean(model_type, ARCHITECTURES) or "model=python model.factory=FILE.py:FUNCTION",
        )
    return ARCHITECTURES[model_type]


def sizes_of(settings: Settings, where: str) -> Sizes:
    """Return the sizes that a config.json (or settings like it) means. Raises UserError for what is no size."""
    known = architecture(str(settings.get("model_type", "")), where)
    found = {word: settings.get(*place) for word, place in known.sizes.items()}
    heads, width = (_count(found[word], known.sizes[word][0], where) for word in ("n_heads", "d_model"))
    whole = {
        **found,
        "kv_heads": found.get("kv_heads") or heads,
        "d_head": found.get("d_head") or width // heads,
        "d_mlp": found["d_mlp"] or 4 * width,
    }
    numbers = {word: _count(value, word, where) for word, value in whole.items() if word != "is_tied"}
    if not found.get("d_head") and width % heads:
        raise UserError(
            f"{where}: the heads do not divide the width",
            got=f"{heads} heads, width {width}",
            allowed="heads that divide the width",
            remedy="for random weights: model.n_heads and model.d_model",
        )
    biases = {place: bool(settings.get(*switch)) for place, switch in known.biases.items()}
    is_tied = bool(found["is_tied"])
    return Sizes(str(settings["model_type"]), known.names, **numbers, is_tied=is_tied, biases=biases)


def _count(value: Any, name: str, where: str) -> int:
    if type(value) is not int or value < 1:
        raise UserError(f"{where}: {name}", got=value, allowed="a whole number >= 1", remedy="mend the file")
    return value
