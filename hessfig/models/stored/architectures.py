"""What a config.json may say: architectures, the settings that transformers is given, and sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from hessfig.errors import UserError, did_you_mean, plain

Settings = Mapping[str, Any]
CAUSAL = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2")
ENCODERS = ("albert", "bert", "roberta")
# Positions of these count the tokens other than padding, from the row behind that of
# the padding token.
_COUNTING = ("roberta",)
# Names of sizes in configurations of transformers; other names are found by their
# attribute map.
SIZES = {
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_size": "d_model",
    "intermediate_size": "d_mlp",
    "n_inner": "d_mlp",
    "ffn_dim": "d_mlp",
    "head_dim": "d_head",
    "num_key_value_heads": "n_kv_heads",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context",
}
_OPTIONAL = ("d_mlp", "d_head", "n_kv_heads")  # by default they follow from the others
# Keys of config.json that are not passed to transformers: code, kernels, allocations,
# and settings chosen by hessfig.
_PRIVATE = (
    "auto_map",
    "attn_implementation",
    "experts_implementation",
    "fusion_config",
    "custom_pipelines",
    "num_labels",
    "id2label",
    "label2id",
    "problem_type",
    "architectures",
    "name_or_path",
    "model_type",
    "dtype",
    "torch_dtype",
    "torchscript",
    "return_dict",
    "use_return_dict",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "transformers_version",
)
_REFUSED = (
    "quantization_config",
    "compression_config",
    "transformers_weights",
    "per_layer_config",
)
_LARGEST = 2**31  # limit of every size
_MOST_PIECES = (
    50_000  # limit of heads and maps in all layers, each of which is a named weight
)


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a network, `d_mlp` 0 without MLPs; `context` is the longest sequence."""

    n_layers: int
    n_heads: int
    d_model: int
    d_mlp: int
    vocabulary: int
    context: int


@dataclass(frozen=True)
class LoadedSizes(ModelSizes):
    """Sizes of a network of transformers, and the `padding` token of an encoder (-1: none)."""

    padding: int = -1

    @property
    def is_encoder(self) -> bool:
        return self.padding >= 0


def public(settings: Settings, where: str) -> dict[str, Any]:
    """Return the settings that are passed to transformers: none that run code, choose kernels or allocate memory.

    Raises UserError for settings that would change the meaning or the location of
    weights.
    """
    for key in _REFUSED:
        if settings.get(key) is not None:
            raise UserError(
                f"{where}: {key} is not served",
                got=plain(settings[key]),
                allowed="weights in floating point, in the files that model.save_pretrained writes",
                remedy="save the model without it",
            )
    return {key: value for key, value in settings.items() if not is_private(key)}


def is_private(key: str) -> bool:
    """Whether a key of config.json is not passed to transformers."""
    return key.startswith("_") or key in _PRIVATE


def check_known(model_type: str, where: str) -> None:
    """Raise UserError if an architecture is not supported; `where` names what asks for it."""
    known = (*CAUSAL, *ENCODERS)
    if model_type not in known:
        drawn = "model=transformer_lens model.name=CLASS draws many others at random (Gemma2ForCausalLM for gemma2)"
        remedies = (
            did_you_mean(model_type, known),
            f"{drawn}; for stored weights model=python model.factory=FILE.py:FUNCTION",
        )
        raise UserError(
            f"{where}: this architecture is not known here",
            got=model_type,
            allowed=", ".join(known),
            remedy=" ".join(filter(None, remedies)),
        )


@cache
def default_of(model_type: str, where: str) -> Any:
    """Return transformers' configuration of an architecture in its default sizes.

    Raises UserError as `check_known` does.
    """
    check_known(model_type, where)
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type)


def given_sizes(model_type: str, given: Settings, where: str) -> dict[str, int]:
    """Return sizes under their names in config.json, those that the architecture has; vocabulary and context always."""
    default = default_of(model_type, where)
    words = {
        "vocabulary": default.vocab_size,
        "context": default.max_position_embeddings,
        **{word: size for word, size in given.items() if size is not None},
    }
    words["context"] += unused_rows(model_type, default.pad_token_id)
    return {
        default.attribute_map.get(key, key): words[word]
        for key, word in SIZES.items()
        if word in words and has_size(default, key)
    }


def has_size(default: Any, key: str) -> bool:
    """Whether an architecture has a size; Qwen2 reads a width of heads that it does not declare."""
    return hasattr(default, key) or (
        key == "head_dim" and hasattr(default, "num_key_value_heads")
    )


def unused_rows(model_type: str, padding: int) -> int:
    """Return the number of rows of W_pos up to the padding token, if positions count tokens (RoBERTa)."""
    if model_type in _COUNTING:
        return padding + 1
    return 0


def sizes_of(settings: Settings, where: str) -> LoadedSizes:
    """Return the sizes in a config.json (or in similar settings). Raises UserError for invalid sizes."""
    model_type = str(settings.get("model_type", ""))
    default = default_of(model_type, where)
    sizes: dict[str, int] = {}
    for key, word in SIZES.items():
        name = default.attribute_map.get(key, key)
        value = settings.get(name, settings.get(key, getattr(default, key, None)))
        if settings.get(key, value) != value:
            raise UserError(
                f"{where}: {name} has two values",
                got=plain(f"{value} and {settings[key]}"),
                allowed="one of them",
                remedy="fix the file",
            )
        if hasattr(default, key) and (value is not None or word not in _OPTIONAL):
            sizes[word] = count_of(value, name, where)
    heads, width = sizes["n_heads"], sizes["d_model"]
    if not settings.get("head_dim") and width % heads:
        raise UserError(
            f"{where}: the heads do not divide the width",
            got=f"{heads} heads, width {width}",
            allowed="heads that divide the width",
            remedy="for random weights: model.n_heads and model.d_model",
        )
    check_pieces(sizes["n_layers"], max(heads, sizes.get("n_kv_heads", 0)), where)
    sizes.setdefault("d_mlp", 4 * width)
    if model_type in ENCODERS:
        sizes["padding"] = _padding(settings, default, sizes, where)
        sizes["context"] -= unused_rows(model_type, sizes["padding"])
    names = [field.name for field in fields(LoadedSizes)]
    return LoadedSizes(**{name: sizes[name] for name in names if name in sizes})


def _padding(
    settings: Settings, default: Any, sizes: Mapping[str, int], where: str
) -> int:
    """Return the padding token of an encoder.

    Raises UserError for layers that are not shared group by group, and for a padding
    token outside the vocabulary.
    """
    groups = settings.get("num_hidden_groups", 1)
    is_shared = type(groups) is int and 1 <= groups <= sizes["n_layers"]
    if settings.get("inner_group_num", 1) != 1 or not is_shared:
        raise UserError(
            f"{where}: this way of sharing layers is not supported",
            got="inner_group_num > 1, or more groups than layers",
            allowed="inner_group_num=1, num_hidden_groups from 1 to num_hidden_layers",
            remedy="model=python model.factory=FILE.py:FUNCTION",
        )
    padding = settings.get("pad_token_id", default.pad_token_id)
    if type(padding) is not int or not 0 <= padding < sizes["vocabulary"]:
        raise UserError(
            f"{where}: pad_token_id",
            got=plain(padding),
            allowed=f"a word from 0 to {sizes['vocabulary'] - 1}",
            remedy="fix the file",
        )
    return padding


def count_of(value: Any, name: str, where: str) -> int:
    """Return a size in a config.json. Raises UserError unless it is a whole number from 1 to 2**31."""
    if type(value) is not int or not 1 <= value <= _LARGEST:
        allowed = f"a whole number from 1 to {_LARGEST}"
        raise UserError(
            f"{where}: {name}", got=plain(value), allowed=allowed, remedy="fix the file"
        )
    return value


def check_pieces(layers: int, heads: int, where: str) -> None:
    """Raise UserError for more layers and heads than can be named, before naming them."""
    if layers * (heads + 10) > _MOST_PIECES:
        raise UserError(
            f"{where}: more layers and heads than are served",
            got=f"{layers} layers of {heads} heads",
            allowed=f"layers x (heads + 10) up to {_MOST_PIECES}",
            remedy="fix the file, or model=python model.factory=FILE.py:FUNCTION",
        )
