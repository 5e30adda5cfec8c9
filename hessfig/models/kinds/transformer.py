"""GPT-2-style transformers: the layout of their weights."""

from __future__ import annotations

from collections.abc import Iterator

from hessfig.config.enums import (
    MLP,
    Attention,
    Data,
    Norm,
    NormKind,
    Positions,
    QueryKey,
    Scores,
)
from hessfig.config.schema import Config, ModelConfig, with_defaults
from hessfig.models import blocks
from hessfig.models.blocks import TIED, attention_groups, weight_size
from hessfig.models.protocol import NetworkKind, Structure, built
from hessfig.tasks import text
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, norm_of

_ATTENTION = {
    Matrix.W_Q: "q",
    Matrix.W_QK: "q",
    Matrix.W_K: "k",
    Matrix.W_V: "v",
    Matrix.W_O: "o",
}
_MLP = {Matrix.W_gate: "gate", Matrix.W_in: "fc_in", Matrix.W_out: "fc_out"}


def layout(config: Config) -> Layout:
    """Return all parameters of the network in the order of its modules: weights, biases and norms."""
    return Layout(tuple(_weights(config)))


def _weights(config: Config) -> Iterator[Weight]:
    model = with_defaults(config.model)
    task = config.task
    tokens = TIED if model.tied else Matrix.W_E.value
    for name, path in (
        (tokens, "tok_embed"),
        *((Matrix.W_pos.value, "pos"),) * (model.positions == Positions.learned),
    ):
        yield Weight(
            name,
            f"{path}.weight",
            weight_size(name, model, task),
            0,
            (Group.embeddings.value,),
        )
    for layer in range(1, model.n_layers + 1):
        yield from layer_weights(config, model, layer)
    if model.norm in (Norm.pre, Norm.sandwich):
        yield from _norm(model, "ln_out", "ln_out")
    if not model.tied:
        yield Weight(
            Matrix.W_U.value, "head.weight", weight_size(Matrix.W_U, model, task)
        )
    yield bias_of("W_U", "head.bias", task.vocabulary)


def layer_weights(config: Config, model: ModelConfig, layer: int) -> Iterator[Weight]:
    """Yield the weights of one layer; `model` has its defaults resolved."""
    matrices = blocks.layer_matrices(model)
    place = f"layers.{layer - 1}"
    is_sandwich = model.norm == Norm.sandwich
    if model.norm != Norm.none:
        yield from _norm(model, "ln1", f"{place}.ln1", layer)
    for matrix, path in _ATTENTION.items():
        if matrix in matrices:
            yield from _linear(
                config, matrix, f"attn.{path}", layer, attention_groups(matrix)
            )
    yield from attention_gains(model, f"{place}.attn.", layer, model.d_head or 0)
    if Matrix.W_G in matrices:
        yield from _linear(
            config, Matrix.W_G, "attn.g", layer, attention_groups(Matrix.W_G)
        )
    if model.mlp != MLP.none:
        if model.norm != Norm.none:
            yield from _norm(model, "ln2", f"{place}.ln2", layer)
        for matrix, path in _MLP.items():
            if matrix in matrices:
                yield from _linear(
                    config, matrix, f"mlp.{path}", layer, (Group.mlp.value,)
                )
    if is_sandwich:
        yield from _norm(model, "ln1_post", f"{place}.ln1_post", layer)
    if is_sandwich and model.mlp != MLP.none:
        yield from _norm(model, "ln2_post", f"{place}.ln2_post", layer)


def attention_gains(
    model: ModelConfig, place: str, layer: int, d_value: int
) -> Iterator[Weight]:
    """Yield the gains of an attention at `place`; `d_value` is the width of the output of a head."""
    sets = 2 if model.attention == Attention.differential else 1
    width = (with_defaults(model).d_head or 0) // sets
    gains = {
        "gain_Q": ("q_norm", width * (model.scores == Scores.qk_norm)),
        "gain_K": ("k_norm", width * (model.scores == Scores.qk_norm)),
        "gain_S": (
            "score_gain",
            sets * model.n_heads * (model.scores == Scores.cosine),
        ),
        "gain_D": ("head_norm", d_value * (sets == 2 and model.differential_norm)),
    }
    for name, (path, size) in gains.items():
        if size:
            yield Weight(
                name,
                f"{place}{path}.weight",
                size,
                layer,
                (Group.norms.value,),
                is_main=False,
            )


def _norm(model: ModelConfig, name: str, place: str, layer: int = 0) -> list[Weight]:
    paths = ("weight",) if model.norm_kind == NormKind.rms else ("weight", "bias")
    return norm_of(name, place, model.d_model, layer, paths)


def _linear(
    config: Config, matrix: Matrix, path: str, layer: int, groups: tuple[str, ...]
) -> Iterator[Weight]:
    model = with_defaults(config.model)
    place = f"layers.{layer - 1}.{path}"
    yield Weight(
        matrix.value,
        f"{place}.weight",
        weight_size(matrix, model, config.task),
        layer,
        groups,
    )
    yield bias_of(
        matrix, f"{place}.bias", _outputs(matrix, model), layer, Group(groups[0])
    )


def _outputs(matrix: Matrix, model: ModelConfig) -> int:
    """Return the number of outputs of a weight."""
    inner, shared = (
        count * (model.d_head or 0)
        for count in (model.n_heads, model.n_kv_heads or model.n_heads)
    )
    if model.query_key == QueryKey.single:
        single = model.n_heads * model.d_model
    else:
        single = inner
    lengths = {
        Matrix.W_Q: inner,
        Matrix.W_QK: single,
        Matrix.W_K: shared,
        Matrix.W_V: shared,
        Matrix.W_G: inner,
    }
    hidden = model.d_mlp or 0
    return (lengths | {Matrix.W_in: hidden, Matrix.W_gate: hidden}).get(
        matrix, model.d_model
    )


def _check(config: Config) -> None:
    if config.task.data == Data.text:
        text.split(config.task)


KIND = NetworkKind(
    layout=layout,
    skeleton=built(
        "Transformer",
        lambda config: {
            "vocabulary": config.task.vocabulary,
            "length": config.task.num_tokens,
        },
    ),
    check=_check,
    source=lambda config: (
        text.source(config.task) if config.task.data == Data.text else ""
    ),
    also_takes=(Data.text,),
    is_structural_zero=blocks.is_structural_zero,
    matrices=blocks.transformer_matrices,
    reads=dict.fromkeys(
        (*blocks.OF_LAYERS, *blocks.COMPONENTS, "sink", "sink_beta"), ""
    ),
    structure=Structure.layers,
)
