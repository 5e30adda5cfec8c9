"""The weights of a model of transformers under the names of the paper, from a model without storage."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from hessfig.errors import UserError
from hessfig.models.blocks import TIED
from hessfig.models.naming import views
from hessfig.models.naming.suggested import GATED, OTHER, QKV, Held, Places
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, every_parameter

# The ends of the paths of modules below the layers, of the norms of a layer, and of
# modules above the layers.
_EMBEDDINGS = {
    Matrix.W_E.value: r"wte|embed_in|embed_tokens|word_embeddings",
    Matrix.W_pos.value: r"wpe|position_embeddings",
    "W_type": r"token_type_embeddings",
}
_BELOW = {
    **_EMBEDDINGS,
    "ln_embed": r"embeddings\.LayerNorm",
    "W_map": r"embedding_hidden_mapping_in",
}
_NORMS = {
    "ln1": r"ln_1|input_layernorm|attention(\.output)?\.LayerNorm",
    "ln2": r"ln_2|post_attention_layernorm|output\.LayerNorm|full_layer_layer_norm",
}
_ABOVE = {
    "W_head": r"(transform|lm_head|predictions)\.dense",
    "ln_out": r"ln_f|final_layer_norm|model\.norm|(transform|predictions)\.LayerNorm|lm_head\.layer_norm",
    Matrix.W_U.value: r"lm_head|embed_out|decoder|predictions",
}
_ORDER = [*_BELOW, *_NORMS, *QKV, Matrix.W_O, *GATED, Matrix.W_out, *_ABOVE]


def layout_of(model: nn.Module, where: str) -> Layout:
    """Return all weights, layer by layer; `parameters` contains each parameter once, for the group all.

    Raises UserError for a parameter that the supported architectures do not have.
    """
    named = [
        entry for held in Places(model, {}, {}).held for entry in _named(held, where)
    ]
    is_tied = not any(weight.name == Matrix.W_U for _, weight in named)
    weights = tuple(
        replace(weight, name=TIED) if is_tied and weight.name == Matrix.W_E else weight
        for _, weight in sorted(named, key=_place)
    )
    paths = dict.fromkeys(weight.parameter for weight in weights)
    sizes = ((path, model.get_parameter(path).numel()) for path in paths)
    return Layout(weights, every_parameter(sizes).weights)


def _named(held: Held, where: str) -> Iterator[tuple[str, Weight]]:
    """Yield the weights in a parameter, each with the name by which weights are ordered."""
    if held.role not in ("", OTHER) and not held.suffix:
        for weight in views.named(held):
            yield f"W{weight.name[1:].partition('.')[0]}", weight
        return
    ends = _NORMS if held.layer else {**_BELOW, **_ABOVE}
    stem = next(
        (
            stem
            for stem, end in ends.items()
            if re.search(rf"(^|\.)({end})$", held.where)
        ),
        "",
    )
    if not stem:
        raise UserError(
            f"{where}: the parameters of the model are not those of its architecture",
            got=held.path,
            allowed="the weights of attention and MLP of this architecture, their biases, and norms",
            remedy="check config.json for further modules; or model=python model.factory=FILE.py:FUNCTION",
        )
    if stem in _EMBEDDINGS:
        group = (Group.embeddings.value,)
        yield stem, Weight(stem, held.path, held.size, groups=group)
    elif held.is_bias and not held.is_of_norm:
        yield stem, bias_of(stem, held.path, held.size)
    else:
        yield stem, views.own(replace(held, where=stem))


def _place(entry: tuple[str, Weight]) -> tuple[float, int, bool, bool]:
    """Return the place of a weight: by layer and name, then the matrix, its bias and its heads."""
    stem, weight = entry
    layer = math.inf if stem in _ABOVE else weight.layer
    return layer, _ORDER.index(stem), weight.is_finer, not weight.is_main
