"""The supported architectures: names of their sizes in config.json, and paths of their weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Encoder:
    """Paths in an encoder for masked tokens, in addition to those of a causal model, relative to the model.

    `embeddings`: tokens, positions and segment types, followed by a norm; `transform`:
    the map of the head before its norm and the unembedding; `head`: the unembedding,
    with the bias `bias`. For ALBERT, `mapping` is the map from the width of the
    embedding to that of the layers, and `inner` leads from a group of passes to the
    layer that they share. With `counts_words`, positions count the tokens other than
    padding, starting after the index of the padding token.
    """

    embeddings: str
    transform: str
    head: str
    bias: str
    mapping: str = ""
    inner: str = ""
    counts_words: bool = False


@dataclass(frozen=True)
class Names:
    """Paths of the pieces relative to the language model, and of the pieces of a layer relative to the layer.

    `fused`: queries, keys and values are one map, in "columns" Q | K | V, or in
    "heads", each with its q, k, v rows. `by_inputs`: maps are stored (inputs, outputs),
    like Conv1D in GPT-2, instead of (outputs, inputs).
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
    encoder: Encoder | None = None


@dataclass(frozen=True)
class StoredArchitecture:
    """`sizes`: {our name: (its name in config.json, its default)}; `padding`: the padding token."""

    names: Names
    sizes: Mapping[str, tuple[str, Any]]
    # Of attention, of its output, of the MLP: the switch, its default.
    biases: Mapping[str, tuple[str, Any]]
    padding: int | None = None


# Our names of sizes, and their names in config.json; GPT-2 has other names.
_IN_CONFIG = {
    **{
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
    },
    **{"d_model": "hidden_size", "d_head": "head_dim", "d_mlp": "intermediate_size"},
    **{
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
        "is_tied": "tie_word_embeddings",
    },
    **{"types": "type_vocab_size", "d_embedding": "embedding_size"},
    **{"groups": "num_hidden_groups", "inner": "inner_group_num"},
}


def _sizes(**defaults: Any) -> dict[str, tuple[str, Any]]:
    """Return the names of sizes in config.json, each with its default."""
    return {word: (_IN_CONFIG[word], default) for word, default in defaults.items()}


_ALWAYS, _NEVER = ("", True), ("", False)
_EVERY_BIAS = {"attention": _ALWAYS, "output": _ALWAYS, "mlp": _ALWAYS}
_GPT2 = StoredArchitecture(
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
    _EVERY_BIAS,
)
_NEOX = StoredArchitecture(
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
    _sizes(
        n_layers=44,
        n_heads=64,
        d_model=6144,
        d_mlp=24576,
        vocabulary=50432,
        context=2048,
        is_tied=False,
    ),
    {
        "attention": ("attention_bias", True),
        "output": ("attention_bias", True),
        "mlp": _ALWAYS,
    },
)
_LLAMA_NAMES = Names(
    embedding="model.embed_tokens",
    layers="model.layers",
    norm="model.norm",
    norms=(("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")),
    query_key_value=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    mlp=(
        ("W_gate", "mlp.gate_proj"),
        ("W_in", "mlp.up_proj"),
        ("W_out", "mlp.down_proj"),
    ),
    norm_has_shift=False,
)
_LLAMA_SIZES: dict[str, Any] = {
    **{
        "n_layers": 32,
        "n_heads": 32,
        "kv_heads": None,
        "d_model": 4096,
        "d_head": None,
        "d_mlp": 11008,
    },
    **{"vocabulary": 32000, "context": 2048, "is_tied": False},
}
_LLAMA = StoredArchitecture(
    _LLAMA_NAMES,
    _sizes(**_LLAMA_SIZES),
    {
        "attention": ("attention_bias", False),
        "output": ("attention_bias", False),
        "mlp": ("mlp_bias", False),
    },
)
_MISTRAL = StoredArchitecture(
    _LLAMA_NAMES,
    _sizes(**{**_LLAMA_SIZES, "kv_heads": 8, "d_mlp": 14336, "context": 131072}),
    {"attention": _NEVER, "output": _NEVER, "mlp": _NEVER},
)
_QWEN2 = StoredArchitecture(
    _LLAMA_NAMES,
    _sizes(
        **{
            **_LLAMA_SIZES,
            "kv_heads": 32,
            "d_mlp": 22016,
            "vocabulary": 151936,
            "context": 32768,
        }
    ),
    {"attention": _ALWAYS, "output": _NEVER, "mlp": _NEVER},
)


def _encoder(place: str, head: str, transform: str, **more: Any) -> Encoder:
    """Return the paths of an encoder at `place`, with its map, the unembedding and the bias relative to its `head`."""
    return Encoder(
        f"{place}.embeddings",
        f"{head}.{transform}",
        f"{head}.decoder",
        f"{head}.bias",
        **more,
    )


def _bert(place: str, encoder: Encoder, norm: str) -> Names:
    """Return the names of BERT and RoBERTa, which differ in their heads."""
    return Names(
        embedding=f"{place}.embeddings.word_embeddings",
        positions=f"{place}.embeddings.position_embeddings",
        layers=f"{place}.encoder.layer",
        norm=norm,
        norms=(("ln1", "attention.output.LayerNorm"), ("ln2", "output.LayerNorm")),
        query_key_value=tuple(
            f"attention.self.{name}" for name in ("query", "key", "value")
        ),
        output="attention.output.dense",
        mlp=(("W_in", "intermediate.dense"), ("W_out", "output.dense")),
        encoder=encoder,
    )


_BERT_SIZES: dict[str, Any] = {
    **{
        "n_layers": 12,
        "n_heads": 12,
        "d_model": 768,
        "d_mlp": 3072,
        "context": 512,
        "types": 2,
        "is_tied": True,
    }
}
_BERT = StoredArchitecture(
    _bert(
        "bert",
        _encoder("bert", "cls.predictions", "transform.dense"),
        "cls.predictions.transform.LayerNorm",
    ),
    _sizes(**_BERT_SIZES, vocabulary=30522),
    _EVERY_BIAS,
    padding=0,
)
_ROBERTA = StoredArchitecture(
    _bert(
        "roberta",
        _encoder("roberta", "lm_head", "dense", counts_words=True),
        "lm_head.layer_norm",
    ),
    _sizes(**_BERT_SIZES, vocabulary=50265),
    _EVERY_BIAS,
    padding=1,
)
_ALBERT = StoredArchitecture(
    Names(
        embedding="albert.embeddings.word_embeddings",
        positions="albert.embeddings.position_embeddings",
        layers="albert.encoder.albert_layer_groups",
        norm="predictions.LayerNorm",
        norms=(("ln1", "attention.LayerNorm"), ("ln2", "full_layer_layer_norm")),
        query_key_value=tuple(
            f"attention.{name}" for name in ("query", "key", "value")
        ),
        output="attention.dense",
        mlp=(("W_in", "ffn"), ("W_out", "ffn_output")),
        encoder=_encoder(
            *("albert", "predictions", "dense"),
            mapping="albert.encoder.embedding_hidden_mapping_in",
            inner="albert_layers.0",
        ),
    ),
    _sizes(
        **{**_BERT_SIZES, "n_heads": 64, "d_model": 4096, "d_mlp": 16384},
        **{"vocabulary": 30000, "d_embedding": 128, "groups": 1, "inner": 1},
    ),
    _EVERY_BIAS,
    padding=0,
)
ARCHITECTURES = {
    **{
        "gpt2": _GPT2,
        "gpt_neox": _NEOX,
        "llama": _LLAMA,
        "mistral": _MISTRAL,
        "qwen2": _QWEN2,
    },
    **{"albert": _ALBERT, "bert": _BERT, "roberta": _ROBERTA},
}
