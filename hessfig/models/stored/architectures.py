"""Sizes of language models from config.json, and the layout of their weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hessfig.errors import UserError, did_you_mean, plain
from hessfig.models.blocks import TIED
from hessfig.models.stored.families import (
    ARCHITECTURES,
    Encoder,
    Names,
    StoredArchitecture,
)
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, norm_of

Settings = Mapping[str, Any]
# Keys of config.json that are not passed to transformers: code, kernels, allocations,
# and settings chosen by hessfig.
_PRIVATE = (
    *(
        "auto_map",
        "attn_implementation",
        "experts_implementation",
        "fusion_config",
        "custom_pipelines",
    ),
    *(
        "num_labels",
        "id2label",
        "label2id",
        "problem_type",
        "architectures",
        "name_or_path",
        "model_type",
    ),
    *(
        "dtype",
        "torch_dtype",
        "torchscript",
        "return_dict",
        "use_return_dict",
        "use_cache",
    ),
    *("output_attentions", "output_hidden_states", "transformers_version"),
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
    """The sizes of a network; `kv_heads` is the number of heads of keys and values, `context` the longest sequence.

    For an encoder: the number of segment `types`; the width of the embedding if it
    differs from that of the layers (ALBERT); the number of `groups` of `n_layers`
    passes that share one layer (0: no sharing); the `padding` token (-1: none); and
    `first_position`, the row of W_pos for the first token.
    """

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
    types: int = 0
    d_embedding: int = 0
    groups: int = 0
    padding: int = -1
    first_position: int = 0

    @property
    def width_of_words(self) -> int:
        """Width of the embedding of a token, which is also the width that the unembedding reads."""
        return self.d_embedding or self.d_model

    @property
    def stored_layers(self) -> int:
        """Number of layers with separate weights."""
        return self.groups or self.n_layers


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


def architecture(model_type: str, key: str) -> StoredArchitecture:
    """Return the architecture called `model_type`; `key` names the setting or file in which it is given.

    Raises UserError if the architecture is not supported.
    """
    if model_type not in ARCHITECTURES:
        drawn = "model=transformer_lens model.name=CLASS draws many others at random (Gemma2ForCausalLM for gemma2)"
        remedies = (
            did_you_mean(model_type, ARCHITECTURES),
            f"{drawn}; for stored weights model=python model.factory=FILE.py:FUNCTION",
        )
        raise UserError(
            f"{key}: this architecture is not known here",
            got=model_type,
            allowed=", ".join(ARCHITECTURES),
            remedy=" ".join(filter(None, remedies)),
        )
    return ARCHITECTURES[model_type]


def sizes_of(settings: Settings, where: str) -> ModelSizes:
    """Return the sizes in a config.json (or in similar settings). Raises UserError for invalid sizes."""
    known = architecture(str(settings.get("model_type", "")), where)
    sizes = {word: settings.get(*place) for word, place in known.sizes.items()}
    heads, width = (
        count_of(sizes[word], known.sizes[word][0], where)
        for word in ("n_heads", "d_model")
    )
    whole = {
        **sizes,
        "kv_heads": sizes.get("kv_heads") or heads,
        "d_head": sizes.get("d_head") or width // heads,
        "d_mlp": sizes["d_mlp"] or 4 * width,
    }
    numbers = {
        word: count_of(value, word, where)
        for word, value in whole.items()
        if word != "is_tied"
    }
    if not sizes.get("d_head") and width % heads:
        raise UserError(
            f"{where}: the heads do not divide the width",
            got=f"{heads} heads, width {width}",
            allowed="heads that divide the width",
            remedy="for random weights: model.n_heads and model.d_model",
        )
    check_pieces(
        numbers["n_layers"], max(numbers["n_heads"], numbers["kv_heads"]), where
    )
    biases = {
        place: bool(settings.get(*switch)) for place, switch in known.biases.items()
    }
    if known.names.encoder:
        numbers |= _of_encoder(
            known.names.encoder,
            settings.get("pad_token_id", known.padding),
            numbers,
            where,
        )
    is_tied = bool(sizes["is_tied"])
    return ModelSizes(
        str(settings["model_type"]),
        known.names,
        **numbers,
        is_tied=is_tied,
        biases=biases,
    )


def _of_encoder(
    encoder: Encoder, padding: Any, numbers: dict[str, int], where: str
) -> dict[str, Any]:
    """Return the longest sequence, the first position and the padding token of an encoder.

    Raises UserError for layers that are not shared group by group, and for a padding
    token outside the vocabulary.
    """
    if numbers.pop("inner", 1) != 1 or numbers.get("groups", 0) > numbers["n_layers"]:
        raise UserError(
            f"{where}: this way of sharing layers is not supported",
            got="inner_group_num > 1, or more groups than layers",
            allowed="inner_group_num=1, num_hidden_groups from 1 to num_hidden_layers",
            remedy="model=python model.factory=FILE.py:FUNCTION",
        )
    if type(padding) is not int or not 0 <= padding < numbers["vocabulary"]:
        allowed = f"a word from 0 to {numbers['vocabulary'] - 1}"
        raise UserError(
            f"{where}: pad_token_id",
            got=plain(padding),
            allowed=allowed,
            remedy="fix the file",
        )
    first = padding + 1 if encoder.counts_words else 0
    return {
        "padding": padding,
        "first_position": first,
        "context": numbers["context"] - first,
    }


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


_ALL = slice(None)
_QKV = (Matrix.W_Q.value, Matrix.W_K.value, Matrix.W_V.value)


def layout_of(sizes: ModelSizes) -> Layout:
    """Return all weights in the order of layers; `parameters` contains each parameter once, for the group all."""
    weights = tuple(_weights(sizes))
    return Layout(weights, tuple(_whole(weights)))


def _weights(sizes: ModelSizes) -> Iterator[Weight]:
    names, table = sizes.names, sizes.vocabulary * sizes.width_of_words
    embeddings, encoder = (Group.embeddings.value,), names.encoder
    yield Weight(
        TIED if sizes.is_tied else Matrix.W_E.value,
        _path(names.embedding, "weight"),
        table,
        0,
        embeddings,
    )
    if names.positions:
        entries = (sizes.first_position + sizes.context) * sizes.width_of_words
        yield Weight(
            Matrix.W_pos.value, _path(names.positions, "weight"), entries, 0, embeddings
        )
    if encoder:
        yield from _below_layers(sizes, encoder)
    inner = f".{encoder.inner}" if encoder and encoder.inner else ""
    for layer in range(1, sizes.stored_layers + 1):
        yield from _layer(sizes, layer, f"{names.layers}.{layer - 1}{inner}")
    if encoder:
        yield from _map(
            "W_head", encoder.transform, sizes.d_model, sizes.width_of_words
        )
    yield from _norm("ln_out", names.norm, sizes, 0, sizes.width_of_words)
    if not sizes.is_tied:
        yield Weight(
            Matrix.W_U.value,
            _path(encoder.head if encoder else "lm_head", "weight"),
            table,
        )
    if encoder:
        yield bias_of(Matrix.W_U.value, encoder.bias, sizes.vocabulary)


def _below_layers(sizes: ModelSizes, encoder: Encoder) -> Iterator[Weight]:
    """Yield the weights of an encoder before its layers, other than those of tokens and positions."""
    width, place = sizes.width_of_words, encoder.embeddings
    path = _path(f"{place}.token_type_embeddings", "weight")
    yield Weight("W_type", path, sizes.types * width, 0, (Group.embeddings.value,))
    yield from _norm("ln_embed", f"{place}.LayerNorm", sizes, 0, width)
    if encoder.mapping:
        yield from _map("W_map", encoder.mapping, width, sizes.d_model)


def _map(name: str, place: str, inputs: int, outputs: int) -> list[Weight]:
    """Return a map outside the layers, and its bias."""
    return [
        Weight(name, _path(place, "weight"), inputs * outputs),
        bias_of(name, _path(place, "bias"), outputs),
    ]


def _layer(sizes: ModelSizes, layer: int, place: str) -> Iterator[Weight]:
    names = sizes.names
    for name, path in names.norms:
        yield from _norm(name, f"{place}.{path}", sizes, layer)
    for position, name in enumerate(_QKV):
        heads = sizes.n_heads if name == Matrix.W_Q else sizes.kv_heads
        path = names.query_key_value[0 if names.fused else position]
        yield from _projection(name, f"{place}.{path}", sizes, layer, heads, position)
    yield from _output(f"{place}.{names.output}", sizes, layer)
    for name, path in names.mlp:
        yield Weight(
            name,
            _path(f"{place}.{path}", "weight"),
            sizes.d_model * sizes.d_mlp,
            layer,
            (Group.mlp.value,),
        )
        if sizes.biases["mlp"]:
            entries = sizes.d_model if name == Matrix.W_out else sizes.d_mlp
            yield _bias(name, f"{place}.{path}", entries, layer, Group.mlp)


def _projection(
    name: str, place: str, sizes: ModelSizes, layer: int, heads: int, position: int
) -> Iterator[Weight]:
    """Yield W_Q, W_K or W_V, its bias, and its heads (counted from 1)."""
    width, group = heads * sizes.d_head, (Group.attention.value,)
    path, axes = _path(place, "weight"), _axes(sizes)
    whole = _outputs(sizes, position, 0, width) if sizes.names.fused else None
    index = None if whole is None else _by(sizes, whole)
    yield Weight(
        name, path, width * sizes.d_model, layer, group, index=index, axes=axes
    )
    if sizes.biases["attention"]:
        yield replace(
            _bias(name, place, width, layer, Group.attention), index=whole, axes=axes
        )
    for head in range(heads):
        index = _by(
            sizes,
            _outputs(sizes, position, head * sizes.d_head, (head + 1) * sizes.d_head),
        )
        yield _head(name, head, path, sizes, layer, index, axes)


def _output(place: str, sizes: ModelSizes, layer: int) -> Iterator[Weight]:
    """Yield W_O, its bias, and the columns of each head."""
    name = Matrix.W_O.value
    path = _path(place, "weight")
    inner = sizes.n_heads * sizes.d_head
    yield Weight(name, path, inner * sizes.d_model, layer, (Group.attention.value,))
    if sizes.biases["output"]:
        yield _bias(name, place, sizes.d_model, layer, Group.attention)
    for head in range(sizes.n_heads):
        inputs = slice(head * sizes.d_head, (head + 1) * sizes.d_head)
        yield _head(
            name,
            head,
            path,
            sizes,
            layer,
            inputs if sizes.names.by_inputs else (_ALL, inputs),
            (),
        )


def _outputs(sizes: ModelSizes, position: int, start: int, stop: int) -> Any:
    """Return the indices of outputs start to stop of Q, K or V among the outputs of the map that contains them."""
    if sizes.names.fused == "heads":
        first, last = start // sizes.d_head, stop // sizes.d_head
        return (first if last == first + 1 else slice(first, last), position)
    shift = position * sizes.d_model if sizes.names.fused else 0
    return slice(shift + start, shift + stop)


def _by(sizes: ModelSizes, outputs: Any) -> Any:
    return (_ALL, outputs) if sizes.names.by_inputs else outputs


def _axes(sizes: ModelSizes) -> tuple[int, ...]:
    """Return the axes of the outputs of a map fused head by head: heads, then q, k, v, then entries of a head."""
    return (sizes.n_heads, 3, sizes.d_head) if sizes.names.fused == "heads" else ()


def _head(
    name: str,
    head: int,
    path: str,
    sizes: ModelSizes,
    layer: int,
    index: Any,
    axes: tuple[int, ...],
) -> Weight:
    size = sizes.d_head * sizes.d_model
    return Weight(
        f"{name}.head{head + 1}",
        path,
        size,
        layer,
        index=index,
        is_main=False,
        axes=axes,
        is_finer=True,
    )


def _norm(
    name: str, place: str, sizes: ModelSizes, layer: int, width: int | None = None
) -> list[Weight]:
    paths = ("weight", "bias")[: 1 + sizes.names.norm_has_shift]
    return norm_of(name, place, width or sizes.d_model, layer, paths)


def _bias(name: str, place: str, size: int, layer: int, group: Group) -> Weight:
    return bias_of(name, _path(place, "bias"), size, layer, group)


def _whole(weights: tuple[Weight, ...]) -> Iterator[Weight]:
    """Yield every parameter once under its own path, in the position of its views."""
    sizes: dict[str, int] = {}
    for weight in weights:
        if not weight.is_finer:
            sizes[weight.parameter] = sizes.get(weight.parameter, 0) + weight.size
    first = {weight.parameter: weight for weight in reversed(weights)}
    for path, size in sizes.items():
        yield replace(
            first[path],
            name=path,
            size=size,
            index=None,
            is_main=True,
            axes=(),
            is_finer=False,
        )


def _path(place: str, kind: str) -> str:
    return f"{place}.{kind}"
