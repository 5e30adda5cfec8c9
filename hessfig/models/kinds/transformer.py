"""GPT-2-style transformers: the layout of their weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hessfig.config.enums import MLP, Data, Norm, QueryKey
from hessfig.config.schema import Config, ModelConfig, with_defaults
from hessfig.models.blocks import attention_groups, is_structural_zero, layer_matrices, weight_size
from hessfig.models.protocol import Kind, Layout, Structure, Weight, bias_of, norm_of
from hessfig.tasks import text
from hessfig.terms import Group, Matrix

if TYPE_CHECKING:
    from torch import nn


_ATTENTION = {Matrix.W_Q: "q", Matrix.W_QK: "q", Matrix.W_K: "k", Matrix.W_V: "v", Matrix.W_O: "o"}
_MLP = {Matrix.W_in: "fc_in", Matrix.W_out: "fc_out"}


def layout(config: Config) -> Layout:
    """Return every parameter of the network in the order of its modules: weights, then biases and norms as others."""
    return Layout(tuple(_weights(config)))


def _weights(config: Config) -> Iterator[Weight]:
    model, task = with_defaults(config.model), config.task
    for matrix, path in ((Matrix.W_E, "tok_embed"), (Matrix.W_pos, "pos")):
        yield Weight(matrix.value, f"{path}.weight", weight_size(matrix, model, task), 0, (Group.embeddings.value,))
    for layer in range(1, model.n_layers + 1):
        yield from layer_weights(config, model, layer)
    if model.norm == Norm.pre:
        yield from norm_of("ln_out", "ln_out", model.d_model)
    yield Weight(Matrix.W_U.value, "head.weight", weight_size(Matrix.W_U, model, task))
    yield bias_of("W_U", "head.bias", task.vocabulary)


def layer_weights(config: Config, model: ModelConfig, layer: int) -> Iterator[Weight]:
    """Yield the weights of one layer; `model` has its defaults resolved."""
    held, place = layer_matrices(model), f"layers.{layer - 1}"
    if model.norm != Norm.none:
        yield from norm_of("ln1", f"{place}.ln1", model.d_model, layer)
    for matrix, path in _ATTENTION.items():
        if matrix in held:
            yield from _linear(config, matrix, f"attn.{path}", layer, attention_groups(matrix))
    if model.mlp == MLP.none:
        return
    if model.norm != Norm.none:
        yield from norm_of("ln2", f"{place}.ln2", model.d_model, layer)
    for matrix, path in _MLP.items():
        yield from _linear(config, matrix, f"mlp.{path}", layer, (Group.mlp.value,))


def _linear(config: Config, matrix: Matrix, path: str, layer: int, groups: tuple[str, ...]) -> Iterator[Weight]:
    model, place = with_defaults(config.model), f"layers.{layer - 1}.{path}"
    yield Weight(matrix.value, f"{place}.weight", weight_size(matrix, model, config.task), layer, groups)
    yield bias_of(matrix, f"{place}.bias", _outputs(matrix, model), layer, Group(groups[0]))


def _outputs(matrix: Matrix, model: ModelConfig) -> int:
    """Return the length of the vector a weight produces."""
    inner = model.n_heads * (model.d_head or 0)
    single = model.n_heads * model.d_model if model.query_key == QueryKey.single else inner
    lengths = {Matrix.W_Q: inner, Matrix.W_QK: single, Matrix.W_K: inner, Matrix.W_V: inner}
    return lengths.get(matrix, (model.d_mlp or 0) if matrix == Matrix.W_in else model.d_model)


def _skeleton(config: Config) -> nn.Module:
    from hessfig.models.networks import Transformer

    return Transformer(config.model, vocabulary=config.task.vocabulary, length=config.task.num_tokens)


def _check(config: Config) -> None:
    if config.task.data == Data.text:
        text.split(config.task)


def _source(config: Config) -> str:
    """Return the hash of the text; none for sums."""
    return text.source(config.task) if config.task.data == Data.text else ""


KIND = Kind(
    layout=layout,
    skeleton=_skeleton,
    check=_check,
    source=_source,
    further_data=(Data.text,),
    is_structural_zero=is_structural_zero,
    matrices=lambda model: [Matrix.W_E, Matrix.W_pos, *layer_matrices(model), Matrix.W_U],
    has_norms=True,
    has_sink=True,
    structure=Structure.layers,
)
