r"""Exact blocks of the last layer's weights, and of a linear MLP, as sums of Kronecker products.

For two weights that enter item n as u_n = c_n W and u'_n = c'_n W',

.. math:: H_o = \sum_n c_n {c'_n}^T \otimes J_n^T \frac{\partial^2 \ell}{\partial f_n^2} J'_n, \qquad
          J_n = \frac{\partial f_n}{\partial u_n},

and H_f has d2<dl/df, f>/du_n du'_n in place of the product of Jacobians, plus a term
where the inputs c_n of the later weight depend on the earlier one (`_pair`). For one
layer of attention these are the blocks of Theorems 3.1 and 3.2.

Letters: a weight of the last layer is *later* if it stands behind the other in the
forward pass; its inputs are then functions of the earlier one.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessfig.curvature.problem import Objective, check_same
from hessfig.models.exact import kronecker
from hessfig.models.exact.kronecker import ItemMatrices, kronecker_squared_norm
from hessfig.models.exact.scored_attention import LastLayer
from hessfig.models.exact.scored_layer import ScoredEntry, ScoredPlace, loss_rows
from hessfig.terms import Matrix, Part


def outer(layer: LastLayer, first: ScoredEntry, second: ScoredEntry) -> ItemMatrices:
    """Return J_1^T (d2l/df2) J_2 of each item, with the Jacobians J of the outputs in the vectors u of the entries.

    As factors R J_1 and R J_2 of v rows each, v the number of outputs.
    """
    return ItemMatrices(((layer.rows(first), layer.rows(second)),))


def functional(
    layer: LastLayer, later: ScoredEntry, earlier: ScoredEntry
) -> ItemMatrices:
    """Return d2<dl/df, f>/du_later du_earlier of each item, the feature of each entry multiplied to its side."""
    return layer.curvature(later.place, earlier.place).between(
        later.feature, earlier.feature
    )


def gradient(layer: LastLayer, entry: ScoredEntry) -> Tensor:
    """Return dl/du of each item: the gradient at the entry's place times its feature, (n, m)."""
    rows = layer.gradients[entry.place]
    if entry.feature is None:
        return rows
    return (rows[:, None] @ entry.feature).squeeze(1)


def input_derivative(
    layer: LastLayer, later: ScoredEntry, earlier: ScoredEntry
) -> ItemMatrices:
    """Return d inputs_later/du_earlier of each item, by which the inputs of a later weight depend on an earlier one.

    - the inputs of W_K are the queries: dq_h/du = the columns of head h, for u = q;
    - those of W_V are the means: dm_h/du = sum_j (dm_h/ds_hj) ds_hj/du, with dm_h/ds_hj =
      A_hj (x_j - m_h);
    - those of the others are places behind the attention, whose derivatives the chain has.
    """
    if later.source == ScoredPlace.query:
        return ItemMatrices(
            ((None, _head_columns(layer, later.head, later.inputs.shape[1]).mT),)
        )
    if later.source == ScoredPlace.mean:
        assert earlier.feature is not None
        slopes = layer.mixing.input_slopes[:, later.head]
        keys = layer.mixing.head_scores(later.head)
        return ItemMatrices(((slopes, earlier.feature[:, keys]),))
    return layer.derivative(later.source, earlier.place).between(None, earlier.feature)


def _query(layer: LastLayer) -> list[ScoredEntry]:
    """Return the entry of W_Q or W_QK: the queries, which all heads share, enter the scores by the keys."""
    mixing = layer.mixing
    at = (ScoredPlace.inputs, ScoredPlace.scores)
    return [
        ScoredEntry(
            mixing.inputs, *at, mixing.score_features(mixing.keys), _labels(layer)
        )
    ]


def _key(layer: LastLayer) -> list[ScoredEntry]:
    """Return the entries of W_K, one per head: u_n = q_h (W_K^h)^T enters the scores of head h by the inputs x_j.

    s_hj = q_h (x_j W_K^h)^T / scale = u_n . x_j / scale.
    """
    mixing = layer.mixing
    labels = _labels(layer)
    features = mixing.score_features(
        mixing.keys_in[:, None].expand(-1, mixing.heads, -1, -1)
    )
    return [
        ScoredEntry(
            mixing.query[:, head],
            ScoredPlace.query,
            ScoredPlace.scores,
            feature,
            labels,
            head,
        )
        for head, feature in enumerate(features.tensor_split(mixing.heads, -1))
    ]


def _value(layer: LastLayer) -> list[ScoredEntry]:
    """Return the entries of W_V, one per head: u_n = m_h W_V^h is the head's part of the mixed values."""
    mixing = layer.mixing
    width = layer.mixing.mixed.shape[-1]
    columns = [
        _head_columns(layer, head, width) if mixing.heads > 1 else None
        for head in range(mixing.heads)
    ]
    return [
        ScoredEntry(
            mixing.mean[:, head], ScoredPlace.mean, ScoredPlace.mixed, own, head=head
        )
        for head, own in enumerate(columns)
    ]


def _head_columns(layer: LastLayer, head: int, width: int) -> Tensor:
    """Return the columns of the identity that belong to `head`."""
    identity = torch.eye(layer.mixing.heads * width).to(layer.mixed)
    return identity[None, :, head * width : (head + 1) * width]


def _labels(layer: LastLayer) -> Int[Tensor, " n"] | None:
    """Group queries with equal inputs, if any: equal tokens at equal positions of the first layer."""
    labels = kronecker.labels_of(layer.mixing.inputs)
    if kronecker.has_repeats(labels):
        return labels
    return None


# The entries of each weight: one, or one per head if heads have separate inputs.
_ENTRIES: dict[Matrix, Callable[[LastLayer], list[ScoredEntry]]] = {
    Matrix.W_Q: _query,
    Matrix.W_QK: _query,
    Matrix.W_K: _key,
    Matrix.W_V: _value,
    Matrix.W_O: lambda layer: [
        ScoredEntry(layer.mixed, ScoredPlace.mixed, ScoredPlace.attended)
    ],
    Matrix.W_in: lambda layer: [
        ScoredEntry(layer.ahead.first.output, ScoredPlace.normed, ScoredPlace.hidden)
    ],
    Matrix.W_out: lambda layer: [
        ScoredEntry(layer.ahead.active, ScoredPlace.active, ScoredPlace.output)
    ],
    Matrix.W_U: lambda layer: [
        ScoredEntry(layer.ahead.second.output, ScoredPlace.final, ScoredPlace.logits)
    ],
}


_DEPTH = list(_ENTRIES)  # in the order of the forward pass

Squares = dict[Part, Float[Tensor, ""]]
T = TypeVar("T")


def last_layer_norms(
    layer: LastLayer, row: Matrix, col: Matrix, parts: Sequence[Part]
) -> dict[Part, float]:
    """Return the exact Frobenius norm of every part of the block (row, col).

    The block of (col, row) is the transpose, with the same norm, so the weights are taken
    in the order of the forward pass. Squares below zero, which rounding leaves of a zero,
    count as zero.

    Parameters
    ----------
    layer : LastLayer
    row, col : Matrix
        W_Q, W_K or W_QK, W_V, W_O, W_in, W_out, W_U.
    parts : sequence of Part
        H, H_o and H_f, in any choice.
    """
    later, earlier = sorted((row, col), key=_DEPTH.index, reverse=True)
    if row == col:
        squares = _diagonal(layer, row, parts)
    else:
        squares = _pair(layer, later, earlier, parts)
    return {part: float(square.clamp(min=0).sqrt()) for part, square in squares.items()}


def last_layer_traces(
    layer: LastLayer, matrix: Matrix, parts: Sequence[Part]
) -> dict[Part, float]:
    r"""Return the exact trace of every part of a diagonal block.

    .. math:: \operatorname{tr} \sum_n c_n c_n^T \otimes M_n = \sum_n |c_n|^2 \operatorname{tr} M_n,

    summed over the heads of the weight. The blocks of two heads lie off the diagonal and do
    not contribute.
    """
    totals = dict.fromkeys(parts, 0.0)
    for entry in _ENTRIES[matrix](layer):
        sizes = entry.inputs.square().sum(dim=1)
        for part, matrices in _matrices(layer, entry, entry, parts).items():
            totals[part] += (
                0.0 if matrices.is_zero else float((sizes * matrices.traces()).sum())
            )
    return totals


def _diagonal(layer: LastLayer, matrix: Matrix, parts: Sequence[Part]) -> Squares:
    """Return ||H||_F^2 as the sum over pairs of heads g, h of ||sum_n c_ng c_nh^T (x) M_n^gh||_F^2.

    The entries of different heads are different entries of the weight, so that the block is
    a matrix of blocks (g, h). Those with g < h count twice, since (h, g) is the transpose.
    """
    heads = _ENTRIES[matrix](layer)
    pairs = [
        (first, second) for index, first in enumerate(heads) for second in heads[index:]
    ]
    squares = [_heads(layer, first, second, parts) for first, second in pairs]
    doubled = [1 if first is second else 2 for first, second in pairs]
    weighed = list(zip(doubled, squares, strict=True))
    return {
        part: _sum([factor * square[part] for factor, square in weighed])
        for part in parts
    }


def _heads(
    layer: LastLayer, first: ScoredEntry, second: ScoredEntry, parts: Sequence[Part]
) -> Squares:
    """Return the squared norm of the block of two heads, with weights (c_ng . c_mg) (c_nh . c_mh)."""
    symmetric = first is second
    weights = first.gram * second.gram
    matrices = _matrices(layer, first, second, parts, first.labels)
    return _once(
        matrices,
        lambda item_matrices: kronecker_squared_norm(
            weights, item_matrices, symmetric=symmetric
        ),
    )


def _pair(
    layer: LastLayer, later: Matrix, earlier: Matrix, parts: Sequence[Part]
) -> Squares:
    r"""Return squared norms for two weights; the inputs of the later depend on the earlier, which adds a term to H_f.

    From dl/dW_later = c_n^later (x) g_n with g_n = dl/du_later, a further derivative by the
    earlier weight differentiates g_n and c_n^later:

    .. math:: H_f = \sum_n c_n^{earlier} \otimes \Big(c_n^{later} \otimes M_n + g_n \otimes N_n\Big), \quad
              M_n = \frac{\partial^2 \langle \partial \ell / \partial f, f \rangle}
                         {\partial u_{later} \, \partial u_{earlier}}, \quad
              N_n = \frac{\partial c_n^{later}}{\partial u_{earlier}}.

    The row index of M_n is paired with that of g_n, and the row index of N_n with that of
    c_n^later: the two products have their first two indices exchanged, which
    `kronecker.cross_product` accounts for. H_o + H_f has H's M_n = J^T (d2l/df2) J + that of
    H_f, and the same second term.
    """
    pairs = [
        (first, second)
        for first in _ENTRIES[later](layer)
        for second in _ENTRIES[earlier](layer)
    ]
    squares = [_crossed(layer, first, second, parts) for first, second in pairs]
    return {part: _sum([square[part] for square in squares]) for part in parts}


def _crossed(
    layer: LastLayer, later: ScoredEntry, earlier: ScoredEntry, parts: Sequence[Part]
) -> Squares:
    r"""Return ||sum_n e_n (x) (c_n (x) M_n + g_n (x) N_n)||_F^2, expanded in its three products.

    .. math:: \sum_{n, m} (e_n \cdot e_m) \Big[ (c_n \cdot c_m) \langle M_n, M_m \rangle
              + (g_n \cdot g_m) \langle N_n, N_m \rangle
              + 2 \, (M_n^T g_m) \cdot (N_m^T c_n) \Big],

    with e_n, c_n the inputs of the earlier and the later weight. H_o has the first term only.
    """
    matrices = _matrices(layer, later, earlier, parts)
    slopes = input_derivative(layer, later, earlier)
    slope = gradient(layer, later)
    shared = _gram(earlier.inputs)
    plain, crossed = shared * _gram(later.inputs), shared * _gram(slope)
    squares = _once(
        matrices,
        lambda item_matrices: kronecker_squared_norm(
            plain, item_matrices, symmetric=False
        ),
    )
    if set(parts) == {Part.H_o}:
        return squares
    own = kronecker_squared_norm(crossed, slopes, symmetric=False)
    both = _once(
        matrices,
        lambda m: (
            2 * kronecker.cross_product(shared, (m, later.inputs), (slopes, slope))
        ),
    )
    return {
        part: square if part == Part.H_o else square + own + both[part]
        for part, square in squares.items()
    }


def _matrices(
    layer: LastLayer,
    first: ScoredEntry,
    second: ScoredEntry,
    parts: Sequence[Part],
    labels: Tensor | None = None,
) -> dict[Part, ItemMatrices]:
    """Return M_n of every part, summed over each of `labels`; if H_f vanishes, H and H_o are the same object.

    H's M_n has the terms of both, so that no sum is formed.
    """
    H_o = _merged(outer(layer, first, second), labels)
    if set(parts) == {Part.H_o}:
        return {Part.H_o: H_o}
    H_f = _merged(functional(layer, first, second), labels)
    by_part = {Part.H_o: H_o, Part.H_f: H_f, Part.H: H_o if H_f.is_zero else H_o + H_f}
    return {part: by_part[part] for part in parts}


def _merged(matrices: ItemMatrices, labels: Tensor | None) -> ItemMatrices:
    if labels is None or matrices.is_zero:
        return matrices
    return matrices.merged(labels)


def _once(
    by_part: dict[Part, ItemMatrices], function: Callable[[ItemMatrices], T]
) -> dict[Part, T]:
    """Apply `function` to each part, but only once to an object that two parts share."""
    results = {
        id(matrices): function(matrices)
        for matrices in {id(m): m for m in by_part.values()}.values()
    }
    return {part: results[id(matrices)] for part, matrices in by_part.items()}


def _sum(squares: list[Tensor]) -> Tensor:
    return torch.stack(squares).sum()


def _gram(rows: Float[Tensor, "n v"]) -> Float[Tensor, "n n"]:
    return rows @ rows.T


def linear_mlp_norms(
    objective: Objective, layer: int, parts: Sequence[Part]
) -> dict[Part, float]:
    r"""Return the norms of the diagonal block of W_layer: H = H_o and H_f = 0, the outputs being linear in W.

    .. math:: H = \sum_n h_n h_n^T \otimes J^T \frac{\partial^2 \ell}{\partial f_n^2} J, \qquad
              J = W_{layer + 1} \cdots W_D,

    with h_n the inputs of the layer at item n (Section 2 of the paper, for its own loss).
    J is the same for all items. Items are grouped by equal h_n: there are no more than
    distinct tokens.
    """
    hidden, rows = _factors(objective, layer)
    labels = kronecker.labels_of(hidden.flatten(0, 1))
    matrices = ItemMatrices(((rows, rows),)).merged(labels)
    inputs = kronecker.one_of_each(hidden.flatten(0, 1), labels)
    square = kronecker_squared_norm(
        (inputs @ inputs.T).square(), matrices, symmetric=True
    )
    return _parts(float(square.sqrt()), parts)


def linear_mlp_traces(
    objective: Objective, layer: int, parts: Sequence[Part]
) -> dict[Part, float]:
    """Return the traces of the same block: sum_n |h_n|^2 tr(J^T (d2l/df2) J)."""
    hidden, rows = _factors(objective, layer)
    sizes = hidden.flatten(0, 1).square().sum(dim=1)
    return _parts(float((sizes * ItemMatrices(((rows, rows),)).traces()).sum()), parts)


def _factors(objective: Objective, layer: int) -> tuple[Tensor, Tensor]:
    """Return h_n at the scored positions, (batch, scored, d), and R J with R^T R = d2l/df2, (n or 1, v, m).

    Raises OtherNetwork if h W J differs from the outputs of the network.
    """
    network: Any = objective.network
    hidden = network.hidden(objective.batch.inputs, layer - 1)[
        :, objective.batch.scored
    ]
    root = loss_rows(objective, network.from_hidden(hidden, layer - 1, slice(None)))[1]
    behind = _behind(network, layer)
    check_same(
        objective,
        hidden @ network.layers[layer - 1].weight.T @ behind.T,
        "exact engine",
    )
    return hidden, root @ behind


def _parts(value: float, parts: Sequence[Part]) -> dict[Part, float]:
    values = {Part.H_o: value, Part.H_f: 0.0, Part.H: value}
    return {part: values[part] for part in parts}


def _behind(network: Any, layer: int) -> Float[Tensor, "outputs m"]:
    """Return the map from the layer's outputs to those of the network, as the product of the weights behind it."""
    product = torch.eye(network.layers[-1].out_features).to(network.layers[-1].weight)
    for linear in reversed(network.layers[layer:]):
        product = product @ linear.weight
    return product
