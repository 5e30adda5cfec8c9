"""A network's numbers from its config.json, without making the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hessfig.errors import UserError, did_you_mean, plain
from hessfig.models.huggingface.architecture import ARCHITECTURES, Architecture, Names

Settings = Mapping[str, Any]
# Keys of config.json that never reach transformers: code, kernels, what is made in their size, what we choose.
_PRIVATE = (
    *("auto_map", "attn_implementation", "experts_implementation", "fusion_config", "custom_pipelines"),
    *("num_labels", "id2label", "label2id", "problem_type", "architectures", "name_or_path", "model_type"),
    *("dtype", "torch_dtype", "torchscript", "return_dict", "use_return_dict", "use_cache"),
    *("output_attentions", "output_hidden_states", "transformers_version"),
)
_REFUSED = ("quantization_config", "compression_config", "transformers_weights", "per_layer_config")
_LARGEST = 2**31  # of any number
_MOST_PIECES = 50_000  # heads and maps of all layers: weights with names, which are made one by one


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


def public(settings: Settings, where: str) -> dict[str, Any]:
    """Return the settings that transformers is given: without what runs code, chooses kernels or is no size of ours.

    Raises UserError for settings that would change what the weights mean, or where they are.
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
    """Whether a key of config.json is kept from transformers."""
    return key.startswith("_") or key in _PRIVATE


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
    heads, width = (count_of(found[word], known.sizes[word][0], where) for word in ("n_heads", "d_model"))
    whole = {
        **found,
        "kv_heads": found.get("kv_heads") or heads,
        "d_head": found.get("d_head") or width // heads,
        "d_mlp": found["d_mlp"] or 4 * width,
    }
    numbers = {word: count_of(value, word, where) for word, value in whole.items() if word != "is_tied"}
    if not found.get("d_head") and width % heads:
        raise UserError(
            f"{where}: the heads do not divide the width",
            got=f"{heads} heads, width {width}",
            allowed="heads that divide the width",
            remedy="for random weights: model.n_heads and model.d_model",
        )
    check_pieces(numbers["n_layers"], max(numbers["n_heads"], numbers["kv_heads"]), where)
    biases = {place: bool(settings.get(*switch)) for place, switch in known.biases.items()}
    is_tied = bool(found["is_tied"])
    return Sizes(str(settings["model_type"]), known.names, **numbers, is_tied=is_tied, biases=biases)


def count_of(value: Any, name: str, where: str) -> int:
    """Return a size of a config.json. Raises UserError for what is no whole number from 1 to 2**31."""
    if type(value) is not int or not 1 <= value <= _LARGEST:
        allowed = f"a whole number from 1 to {_LARGEST}"
        raise UserError(f"{where}: {name}", got=plain(value), allowed=allowed, remedy="mend the file")
    return value


def check_pieces(layers: int, heads: int, where: str) -> None:
    """Raise UserError for more layers and heads than can be named; before any of them is."""
    if layers * (heads + 10) > _MOST_PIECES:
        raise UserError(
            f"{where}: more layers and heads than are served",
            got=f"{layers} layers of {heads} heads",
            allowed=f"layers x (heads + 10) up to {_MOST_PIECES}",
            remedy="mend the file, or model=python model.factory=FILE.py:FUNCTION",
        )
