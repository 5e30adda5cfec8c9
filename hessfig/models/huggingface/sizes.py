"""A network's numbers from its config.json, without making the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hessfig.errors import UserError, did_you_mean
from hessfig.models.huggingface.architecture import ARCHITECTURES, Architecture, Names

Settings = Mapping[str, Any]


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
    biases = {place: bool(settings.get(*switch)) for place, switch in known.biases.items()}
    is_tied = bool(found["is_tied"])
    return Sizes(str(settings["model_type"]), known.names, **numbers, is_tied=is_tied, biases=biases)


def count_of(value: Any, name: str, where: str) -> int:
    """Return a size of a config.json. Raises UserError for what is no whole number >= 1."""
    if type(value) is not int or value < 1:
        raise UserError(f"{where}: {name}", got=value, allowed="a whole number >= 1", remedy="mend the file")
    return value
