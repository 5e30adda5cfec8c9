"""Norms of the last layer's blocks: diagonal blocks, and pairs of different weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.exact.grouping import one_of_each
from hessfig.curvature.exact.items import ItemMatrices
from hessfig.curvature.exact.kronecker import cross_product, kronecker_squared_norm
from hessfig.curvature.exact.last_layer.layer import LastLayer
from hessfig.curvature.exact.last_layer.places import Entry
from hessfig.curvature.exact.last_layer.weights import entries, functional, gradient, input_derivative, outer
from hessfig.terms import Matrix, Part

_DEPTH = (Matrix.W_Q, Matrix.W_QK, Matrix.W_K, Matrix.W_V, Matrix.W_O, Matrix.W_in, Matrix.W_out, Matrix.W_U)

Squares = dict[Part, Float[Tensor, ""]]
T = TypeVar("T")


def last_layer_norms(layer: LastLayer, row: Matrix, col: Matrix, parts: Sequence[Part]) -> dict[Part, float]:
    """Return the exact Frobenius norm of every part of the block (row, col)."""
    later, earlier = sorted((row, col), key=_DEPTH.index, reverse=True)
    squares = _diagonal(layer, row, parts) if row == col else _pair(layer, later, earlier, parts)
    return {part: float(square.clamp(min=0).sqrt()) for part, square in squares.items()}


def last_layer_traces(layer: LastLayer, matrix: Matrix, parts: Sequence[Part]) -> dict[Part, float]:
    """Return the exact trace of every part of a diagonal block: sum_n |c_n|^2 tr M_n, head by head."""
    totals = dict.fromkeys(parts, 0.0)
    for entry in entries(layer, matrix):
        sizes = entry.inputs.square().sum(dim=1)
        for part, matrices in _matrices(layer, entry, entry, parts).items():
            totals[part] += 0.0 if matrices.is_zero else float((sizes * matrices.traces()).sum())
    return totals


def _diagonal(layer: LastLayer, matrix: Matrix, parts: Sequence[Part]) -> Squares:
    """||sum_n (c_ng c_nh^T) (x) M_n^gh||^2, summed over the pairs of heads g, h: each pair is a block of its own."""
    heads = entries(layer, matrix)
    pairs = [(first, second) for index, first in enumerate(heads) for second in heads[index:]]
    squares = [_heads(layer, first, second, parts) for first, second in pairs]
    doubled = [1 if first is second else 2 for first, second in pairs]
    return {
        part: _sum([factor * square[part] for factor, square in zip(doubled, squares, strict=True)])
        for part in parts
    }


def _heads(layer: LastLayer, first: Entry, second: Entry, parts: Sequence[Part]) -> Squares:
    symmetric, labels = first is second, first.labels
    matrices, inputs = _matrices(layer, first, second, parts, labels), (first.inputs, second.inputs)
    if labels is not None:
        inputs = one_of_each(first.inputs, labels), one_of_each(second.inputs, labels)
    weights = _gram(inputs[0]) * _gram(inputs[1])
    return _once(
        matrices, lambda item_matrices: kronecker_squared_norm(weights, item_matrices, symmetric=symmetric)
    )


def _pair(layer: LastLayer, later: Matrix, earlier: Matrix, parts: Sequence[Part]) -> Squares:
    """A later weight acts on inputs that the earlier one moves, which adds a crossed product to H_f.

    H_f = sum_n c_n^earlier (x) (c_n^later (x) M_n + g_n (x) N_n), M_n = d2<dl/df, f>/du_later du_earlier,
    g_n = dl/du_later, N_n = dc_n^later/du_earlier; the row index of M_n meets g_n, that of N_n meets c_n^later.
    """
    pairs = [(first, second) for first in entries(layer, later) for second in entries(layer, earlier)]
    squares = [_crossed(layer, first, second, parts) for first, second in pairs]
    return {part: _sum([square[part] for square in squares]) for part in parts}


def _crossed(layer: LastLayer, later: Entry, earlier: Entry, parts: Sequence[Part]) -> Squares:
    matrices, slopes = _matrices(layer, later, earlier, parts), input_derivative(layer, later, earlier)
    slope, shared = gradient(layer, later), _gram(earlier.inputs)
    plain, crossed = shared * _gram(later.inputs), shared * _gram(slope)
    squares = _once(
        matrices, lambda item_matrices: kronecker_squared_norm(plain, item_matrices, symmetric=False)
    )
    if set(parts) == {Part.H_o}:
        return squares
    own = kronecker_squared_norm(crossed, slopes, symmetric=False)
    both = _once(matrices, lambda m: 2 * cross_product(shared, (m, later.inputs), (slopes, slope)))
    return {
        part: square if part == Part.H_o else square + own + both[part] for part, square in squares.items()
    }


def _matrices(
    layer: LastLayer, first: Entry, second: Entry, parts: Sequence[Part], labels: Tensor | None = None
) -> dict[Part, ItemMatrices]:
    """M_n of every part, summed over each of `labels`; where H_f has none, H shares the object of H_o."""
    H_o = _merged(outer(layer, first, second), labels)
    if set(parts) == {Part.H_o}:
        return {Part.H_o: H_o}
    H_f = _merged(functional(layer, first, second), labels)
    by_part = {Part.H_o: H_o, Part.H_f: H_f, Part.H: H_o if H_f.is_zero else H_o + H_f}
    return {part: by_part[part] for part in parts}


def _merged(matrices: ItemMatrices, labels: Tensor | None) -> ItemMatrices:
    return matrices if labels is None or matrices.is_zero else matrices.merged(labels)


def _once(by_part: dict[Part, ItemMatrices], function: Callable[[ItemMatrices], T]) -> dict[Part, T]:
    """Apply `function` to each part, once to an object that two parts share."""
    results = {id(matrices): function(matrices) for matrices in {id(m): m for m in by_part.values()}.values()}
    return {part: results[id(matrices)] for part, matrices in by_part.items()}


def _sum(squares: list[Tensor]) -> Tensor:
    return torch.stack(squares).sum()


def _gram(rows: Float[Tensor, "n v"]) -> Float[Tensor, "n n"]:
    return rows @ rows.T
