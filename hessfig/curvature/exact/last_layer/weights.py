"""How each weight of the last layer enters: what it acts on, and where the result goes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from hessfig.curvature.exact.grouping import has_repeats, labels_of
from hessfig.curvature.exact.items import ItemMatrices
from hessfig.curvature.exact.last_layer.layer import LastLayer
from hessfig.curvature.exact.last_layer.places import Entry, Place
from hessfig.terms import Matrix


def entries(layer: LastLayer, matrix: Matrix) -> list[Entry]:
    """Return the entries of `matrix`: one, or one for each head where the heads act on inputs of their own."""
    return _ENTRIES[matrix](layer)


def outer(layer: LastLayer, first: Entry, second: Entry) -> ItemMatrices:
    """Return J_1^T (d2l/df2) J_2 of each item, J the Jacobians of the outputs in the entries' u."""
    left = _jacobian(layer, first)
    return ItemMatrices(((left, left if first is second else _jacobian(layer, second)),))


def functional(layer: LastLayer, later: Entry, earlier: Entry) -> ItemMatrices:
    """Return d2<dl/df, f>/du_later du_earlier of each item."""
    return layer.curvature(later.place, earlier.place).between(later.feature, earlier.feature)


def gradient(layer: LastLayer, entry: Entry) -> Tensor:
    """Return dl/du of each item."""
    rows = layer.gradients[entry.place]
    return rows if entry.feature is None else (rows[:, None] @ entry.feature).squeeze(1)


def input_derivative(layer: LastLayer, later: Entry, earlier: Entry) -> ItemMatrices:
    """Return d inputs_later/du_earlier of each item."""
    if later.source == Place.query:
        return ItemMatrices(((None, _head_columns(layer, later.head, later.inputs.shape[1]).mT),))
    if later.source == Place.mean:
        assert earlier.feature is not None
        slopes, keys = layer.mixing.input_slopes[:, later.head], layer.mixing.head_scores(later.head)
        return ItemMatrices(((slopes, earlier.feature[:, keys]),))
    return layer.derivative(later.source, earlier.place).between(None, earlier.feature)


def _query(layer: LastLayer) -> list[Entry]:
    mixing = layer.mixing
    return [
        Entry(mixing.inputs, Place.inputs, Place.scores, mixing.score_features(mixing.keys), _labels(layer))
    ]


def _key(layer: LastLayer) -> list[Entry]:
    mixing, labels = layer.mixing, _labels(layer)
    features = mixing.score_features(mixing.keys_in[:, None].expand(-1, mixing.heads, -1, -1)).tensor_split(
        mixing.heads, -1
    )
    return [
        Entry(mixing.query[:, head], Place.query, Place.scores, feature, labels, head)
        for head, feature in enumerate(features)
    ]


def _value(layer: LastLayer) -> list[Entry]:
    mixing = layer.mixing
    return [
        Entry(mixing.mean[:, head], Place.mean, Place.mixed, _own_columns(layer, head), head=head)
        for head in range(mixing.heads)
    ]


def _attention_output(layer: LastLayer) -> list[Entry]:
    return [Entry(layer.mixed, Place.mixed, Place.attended)]


def _mlp_input(layer: LastLayer) -> list[Entry]:
    return [Entry(layer.ahead.first.output, Place.normed, Place.hidden)]


def _mlp_output(layer: LastLayer) -> list[Entry]:
    return [Entry(layer.ahead.active, Place.active, Place.output)]


def _unembedding(layer: LastLayer) -> list[Entry]:
    return [Entry(layer.ahead.second.output, Place.final, Place.logits)]


def _jacobian(layer: LastLayer, entry: Entry) -> Tensor:
    rows = layer.jacobian(entry.place)
    return rows if entry.feature is None else rows @ entry.feature


def _own_columns(layer: LastLayer, head: int) -> Tensor | None:
    mixing = layer.mixing
    return None if mixing.heads == 1 else _head_columns(layer, head, mixing.mixed.shape[-1])


def _head_columns(layer: LastLayer, head: int, width: int) -> Tensor:
    """Return the columns of the identity that belong to `head`."""
    identity = torch.eye(layer.mixing.heads * width).to(layer.mixed)
    return identity[None, :, head * width : (head + 1) * width]


def _labels(layer: LastLayer) -> Int[Tensor, " n"] | None:
    """Group queries with equal inputs, if any: equal tokens at equal positions of the first layer."""
    labels = labels_of(layer.mixing.inputs)
    return labels if has_repeats(labels) else None


_ENTRIES: dict[Matrix, Callable[[LastLayer], list[Entry]]] = {
    Matrix.W_Q: _query,
    Matrix.W_QK: _query,
    Matrix.W_K: _key,
    Matrix.W_V: _value,
    Matrix.W_O: _attention_output,
    Matrix.W_in: _mlp_input,
    Matrix.W_out: _mlp_output,
    Matrix.W_U: _unembedding,
}
