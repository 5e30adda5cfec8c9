"""The weights of a causal language model by name: views of its parameters, heads as finer views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hessfig.models.huggingface.sizes import Sizes
from hessfig.models.protocol import Layout, Weight
from hessfig.terms import Group, Matrix

TIED = "W_E+W_U"  # one parameter in both roles: its block holds the second derivatives of both, and the mixed ones
_ALL = slice(None)
_QKV = (Matrix.W_Q.value, Matrix.W_K.value, Matrix.W_V.value)
_PREFIX = "model"  # where models.huggingface.network keeps the model of transformers


def layout_of(sizes: Sizes) -> Layout:
    """Return every weight in the order of the layers; `parameters` has each parameter once, for the group all."""
    weights = tuple(_weights(sizes))
    return Layout(weights, tuple(_whole(weights)))


def _weights(sizes: Sizes) -> Iterator[Weight]:
    names, table = sizes.names, sizes.vocabulary * sizes.d_model
    embeddings = (Group.embeddings.value,)
    yield Weight(
        TIED if sizes.is_tied else Matrix.W_E.value, _path(names.embedding, "weight"), table, 0, embeddings
    )
    if names.positions:
        entries = sizes.context * sizes.d_model
        yield Weight(Matrix.W_pos.value, _path(names.positions, "weight"), entries, 0, embeddings)
    for layer in range(1, sizes.n_layers + 1):
        yield from _layer(sizes, layer, f"{names.layers}.{layer - 1}")
    yield from _norm("ln_out", names.norm, sizes, 0)
    if not sizes.is_tied:
        yield Weight(Matrix.W_U.value, _path("lm_head", "weight"), table)


def _layer(sizes: Sizes, layer: int, place: str) -> Iterator[Weight]:
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
            name, _path(f"{place}.{path}", "weight"), sizes.d_model * sizes.d_mlp, layer, (Group.mlp.value,)
        )
        if sizes.biases["mlp"]:
            entries = sizes.d_model if name == Matrix.W_out else sizes.d_mlp
            yield _bias(name, f"{place}.{path}", entries, layer, Group.mlp)


def _projection(
    name: str, place: str, sizes: Sizes, layer: int, heads: int, position: int
) -> Iterator[Weight]:
    """Yield W_Q, W_K or W_V, its bias, and its heads (counted from 1)."""
    width, group = heads * sizes.d_head, (Group.attention.value,)
    path, axes = _path(place, "weight"), _axes(sizes)
    whole = _outputs(sizes, position, 0, width) if sizes.names.fused else None
    index = None if whole is None else _by(sizes, whole)
    yield Weight(name, path, width * sizes.d_model, layer, group, index=index, axes=axes)
    if sizes.biases["attention"]:
        yield replace(_bias(name, place, width, layer, Group.attention), index=whole, axes=axes)
    for head in range(heads):
        index = _by(sizes, _outputs(sizes, position, head * sizes.d_head, (head + 1) * sizes.d_head))
        yield _head(name, head, path, sizes, layer, index, axes)


def _output(place: str, sizes: Sizes, layer: int) -> Iterator[Weight]:
    """Yield W_O, its bias, and what each head feeds into it."""
    name, path, inner = Matrix.W_O.value, _path(place, "weight"), sizes.n_heads * sizes.d_head
    yield Weight(name, path, inner * sizes.d_model, layer, (Group.attention.value,))
    if sizes.biases["output"]:
        yield _bias(name, place, sizes.d_model, layer, Group.attention)
    for head in range(sizes.n_heads):
        inputs = slice(head * sizes.d_head, (head + 1) * sizes.d_head)
        yield _head(name, head, path, sizes, layer, inputs if sizes.names.by_inputs else (_ALL, inputs), ())


def _outputs(sizes: Sizes, position: int, start: int, stop: int) -> Any:
    """Return where outputs start to stop of Q, K or V stand among those of the map that holds them."""
    if sizes.names.fused == "heads":
        first, last = start // sizes.d_head, stop // sizes.d_head
        return (first if last == first + 1 else slice(first, last), position)
    shift = position * sizes.d_model if sizes.names.fused else 0
    return slice(shift + start, shift + stop)


def _by(sizes: Sizes, outputs: Any) -> Any:
    return (_ALL, outputs) if sizes.names.by_inputs else outputs


def _axes(sizes: Sizes) -> tuple[int, ...]:
    """Return how the outputs of a map fused head by head are taken apart: heads, then q, k, v, then a head's own."""
    return (sizes.n_heads, 3, sizes.d_head) if sizes.names.fused == "heads" else ()


def _head(
    name: str, head: int, path: str, sizes: Sizes, layer: int, index: Any, axes: tuple[int, ...]
) -> Weight:
    size = sizes.d_head * sizes.d_model
    return Weight(
        f"{name}.head{head + 1}", path, size, layer, index=index, is_main=False, axes=axes, is_finer=True
    )


def _norm(name: str, place: str, sizes: Sizes, layer: int) -> Iterator[Weight]:
    for kind, word in (("weight", "gain"), ("bias", "shift"))[: 1 + sizes.names.norm_has_shift]:
        yield Weight(
            f"{name}_{word}", _path(place, kind), sizes.d_model, layer, (Group.norms.value,), is_main=False
        )


def _bias(name: str, place: str, size: int, layer: int, group: Group) -> Weight:
    groups, bias = (group.value, Group.biases.value), name.replace("W", "b", 1)
    return Weight(bias, _path(place, "bias"), size, layer, groups, is_main=False)


def _whole(weights: tuple[Weight, ...]) -> Iterator[Weight]:
    """Yield every parameter once, under the path of its own name, where its views stand."""
    sizes: dict[str, int] = {}
    for weight in weights:
        if not weight.is_finer:
            sizes[weight.parameter] = sizes.get(weight.parameter, 0) + weight.size
    first = {weight.parameter: weight for weight in reversed(weights)}
    for path, size in sizes.items():
        name = path.removeprefix(f"{_PREFIX}.")
        yield Weight(name, path, size, first[path].layer, first[path].groups)


def _path(place: str, kind: str) -> str:
    return f"{_PREFIX}.{place}.{kind}"
