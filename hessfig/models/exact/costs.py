r"""Operations and bytes of exact norms and of probes, counted from sizes alone.

Every function lists the products of matrices that its engine makes, in the engine's
order, with their sizes: n items (scored positions of all sequences), N positions, T
keys, V words, width d, h heads of i / h numbers, MLP f. A product of (a x b) and (b x c)
counts 2 a b c operations and a c numbers written. Seconds follow from both,

.. math:: t = \frac{\text{flops}}{\text{flops per second}} + \frac{\text{bytes written}}{\text{bytes per second}},

without overlap: small matrices are bound by memory, large ones by arithmetic. The rates
are of one core; only the ratio of an exact norm to its probes matters for the choice of
`estimator=auto`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from hessfig.config.enums import MLP, Attention, Data, Norm
from hessfig.config.schema import ModelConfig, TaskConfig, with_defaults
from hessfig.models.blocks import SCORE_LIKE, weight_size
from hessfig.models.exact.support import Route, route_of
from hessfig.models.protocol import Structure, kind
from hessfig.terms import Block, Matrix, Part

# Of one core of an Intel Xeon with AVX-512 (docs/performance.md, "Exact or probed").
# A second, of products of items' small matrices, and of all rows together.
ITEMS_FLOPS, PROBES_FLOPS = (2.5e10, 4e10)
BYTES_PER_SECOND = 4e9
NUMBER = 8  # bytes, of float64
# Of curvature.column, which needs torch.
PROBES_AT_ONCE = 5
COLUMNS_AT_ONCE = 64
MEMORY_BOUND = 2**30
_SOFTMAX_PASSES = 4  # over diag(g) - g A^T - A g^T of each head, which is formed, spread by head and added
_PROBE_PASSES = (
    6  # over a probe and its product: drawn, cast, shaped, multiplied, squared
)
_NORM_PASSES = (
    8  # over d x d matrices of items that second derivatives of LayerNorm take
)
_GRAM_PASSES = 3  # over the products of all pairs of items: weights, the Gram matrix of M_n, and both multiplied
# Of models.exact.kronecker.
_STRIP = 16
_CHUNK = 96
_FACTORED = 1.0
_FACTORED_SYMMETRIC = 0.6


@dataclass
class Cost:
    """Counted operations, bytes written, and bytes of the tensors that are written.

    `times` repeats an operation in the same memory: it multiplies `flops` and `written`,
    and leaves `held` as it is.

    Examples
    --------
    Ten products of (2 x 3) and (3 x 4), in float64:

    >>> cost = Cost()
    >>> cost.product(10, 2, 3, 4)
    >>> cost.flops, cost.written, cost.held
    (480.0, 640.0, 640.0)
    """

    flops: float = 0.0
    written: float = 0.0
    held: float = 0.0

    def product(
        self,
        matrices: float,
        rows: float,
        inner: float,
        cols: float,
        *,
        times: float = 1,
    ) -> None:
        """Count `matrices` products of (rows x inner) and (inner x cols), `times` over in the same memory.

        2 rows inner cols operations each. An inner size of 0 stands for a product that is not
        made: nothing is written.
        """
        self.flops += times * 2 * matrices * rows * inner * cols
        self.write(matrices * rows * cols * bool(inner), times=times)

    def write(self, numbers: float, *, times: float = 1) -> None:
        """Count numbers that are written `times` over."""
        self.written += times * NUMBER * numbers
        self.held += NUMBER * numbers * bool(times)

    def add(self, other: Cost, times: float = 1) -> None:
        """Count another cost, `times` over in the same memory."""
        self.flops += times * other.flops
        self.written += times * other.written
        self.held += other.held

    def seconds(self, flops_per_second: float) -> float:
        """Return flops / flops_per_second + written / BYTES_PER_SECOND, for one core in float64."""
        return self.flops / flops_per_second + self.written / BYTES_PER_SECOND


@dataclass(frozen=True)
class Sizes:
    """The sizes on which costs depend, in numbers.

    `layers`, `width` d, `heads` h, `inner` (all heads together), `hidden` (of the MLP) and
    `vocabulary` V are the network's. `items` n are the scored positions of all sequences,
    `positions` N all positions, `keys` T those of one sequence. `queries` are the distinct
    ones among the items of the top layer. `is_curved`: there is a second derivative behind
    the attention (norms or a smooth activation).
    """

    layers: int
    items: int
    positions: int
    keys: int
    width: int
    heads: int
    inner: int
    hidden: int
    vocabulary: int
    queries: int
    is_curved: bool
    is_linear: bool
    is_normed: bool

    @classmethod
    def of(cls, model: ModelConfig, task: TaskConfig) -> Sizes:
        """Return the sizes of a network on a batch: bare attention has no MLP, and its outputs are its mixed values.

        The square matrix of a linear MLP's layer counts as an MLP of half the width, which has
        as many entries in both its matrices together.

        Equal queries meet in a first layer that is also the last. Of B sequences with digits
        drawn from a base b, a position has on average b (1 - (1 - 1/b)^B) distinct ones.
        """
        m = with_defaults(model)
        structure = kind(model.kind).structure
        is_bare = structure == Structure.attention
        is_of_tokens = structure == Structure.tokens
        scored = task.num_tokens if is_bare else task.num_scored
        keys = task.num_tokens - (structure == Structure.layers)
        items = task.batch_size * scored
        inner = 0 if is_of_tokens else m.n_heads * (m.d_head or 0)
        hidden = 0 if m.mlp == MLP.none or is_bare else m.d_mlp or 0
        queries = items
        # Expected, of digits drawn for every position.
        if m.n_layers == 1 and task.data == Data.addition:
            queries = min(
                items,
                round(
                    scored * task.base * (1 - (1 - 1 / task.base) ** task.batch_size)
                ),
            )
        return cls(
            layers=m.n_layers,
            items=items,
            positions=items if is_of_tokens else task.batch_size * keys,
            keys=keys,
            width=m.d_model,
            heads=m.n_heads,
            inner=inner,
            hidden=m.d_model // 2 if is_of_tokens else hidden,
            vocabulary=inner if is_bare else task.vocabulary,
            queries=queries,
            is_curved=not is_bare and (m.norm != Norm.none or m.mlp == MLP.gelu),
            is_linear=m.attention == Attention.linear,
            is_normed=m.norm != Norm.none,
        )


class Entry(NamedTuple):
    """How a weight of the last layer enters an item (ScoredEntry): for each of `heads`, as a vector of `size` numbers.

    The vector enters its place through a feature matrix of `reach` rows; with 0 it is at
    that place itself. `inputs` is the number of entries of c_n.
    """

    heads: int
    size: int
    reach: int
    inputs: int
    place: str


_SCORES = "scores"
_MIXED = "mixed"
_ATTENDED = "attended"
_HIDDEN = "hidden"
_OUTPUT = "output"
_LOGITS = "logits"


def _entry(s: Sizes, weight: str) -> Entry:
    """Return how `weight` enters an item, as `top_blocks._ENTRIES` does with tensors."""
    scores, head = s.heads * s.keys, s.inner // s.heads
    by_head = s.inner if s.heads > 1 else 0
    entries: dict[str, Entry] = {
        Matrix.W_Q: Entry(1, s.inner, scores, s.width, _SCORES),
        Matrix.W_QK: Entry(1, s.heads * s.width, scores, s.width, _SCORES),
        Matrix.W_K: Entry(s.heads, s.width, scores, head, _SCORES),
        Matrix.W_V: Entry(s.heads, head, by_head, s.width, _MIXED),
        Matrix.W_O: Entry(1, s.width, 0, s.inner, _ATTENDED),
        Matrix.W_in: Entry(1, s.hidden, 0, s.width, _HIDDEN),
        Matrix.W_out: Entry(1, s.width, 0, s.hidden, _OUTPUT),
        Matrix.W_U: Entry(1, s.vocabulary, 0, s.width, _LOGITS),
    }
    return entries[weight]


def shared_cost(s: Sizes, blocks: Collection[Block], parts: Collection[Part]) -> Cost:
    """Return what the exact norms of all blocks of the last layer share: the network, and derivatives behind `a`.

    With a the outputs of the attention, o those of the layer and f the logits: R df/da and,
    with LayerNorm or a smooth activation, do/da and d2<dl/df, f>/da2 of every item.
    """
    cost = Cost()
    for layer in range(s.layers):
        _forward(cost, s, s.items if layer == s.layers - 1 else s.positions)
    cost.product(s.items, s.vocabulary, s.vocabulary, s.width)
    entries = [
        _entry(s, weight) for block in blocks for weight in (block.row, block.col)
    ]
    if all(entry.place in (_HIDDEN, _OUTPUT, _LOGITS) for entry in entries):
        return cost
    cost.product(s.items, s.width if s.is_curved else s.vocabulary, s.hidden, s.width)
    if s.is_curved:
        cost.product(s.items, s.vocabulary, s.width, s.width)
        if set(parts) != {Part.H_o}:
            cost.product(s.items, s.width, s.width, s.width)
            cost.write(s.items * s.width**2, times=_NORM_PASSES)
    return cost


def _forward(cost: Cost, s: Sizes, queries: float) -> None:
    """Count a layer's outputs at the positions `queries`: its own, and those of the check of the network."""
    cost.product(1, s.positions, s.width, 2 * s.inner, times=2)
    cost.product(1, queries, s.width, 2 * s.inner + 2 * s.hidden, times=2)


def own_cost(s: Sizes, block: Block, parts: Collection[Part]) -> Cost:
    r"""Return what the exact norm of one block of the last layer takes alone.

    For every pair of heads of the two weights,

    .. math:: \sum_{n, m} \langle c_n, c_m \rangle \langle e_n, e_m \rangle \langle M_n, M_m \rangle

    over items n and m, where M_n has p x q numbers and rank r: V for H_o, the scores or the
    width for H_f, and their sum for H. Features are multiplied into the factors of M_n (2 n
    g r q), M_n is formed (2 n r p q), and the Gram matrix of all M_n is n^2 p q operations,
    or half as many if the M_n are symmetric. Equal queries of a first layer are added up
    before.
    """
    cost = Cost()
    row = _entry(s, block.row)
    col = _entry(s, block.col)
    heads = row.heads if block.is_diagonal else 0
    pairs = (heads * heads + heads) / 2 if heads else row.heads * col.heads
    terms = 0 if set(parts) == {Part.H_o} else _terms(s, row, col)
    rank = s.width if _HIDDEN in (row.place, col.place) else row.reach
    for entry in dict.fromkeys((row, col)):
        _place_cost(cost, s, entry, terms)
        cost.product(s.items * entry.heads, s.vocabulary, entry.reach, entry.size)
    cost.product(s.items, row.reach, col.reach, col.size, times=pairs * terms)
    ranks = {
        Part.H_o: s.vocabulary,
        Part.H_f: terms * rank,
        Part.H: s.vocabulary + terms * rank,
    }
    distinct = [ranks[part] for part in parts] if terms else [s.vocabulary]
    items = s.items
    if block.is_diagonal and row.place == _SCORES and s.queries < s.items:
        cost.product(s.items, row.size, ranks[Part.H], col.size, times=pairs)
        items = s.queries
        distinct = [0] * len(distinct)
    # Those of one pair are in the rates.
    cost.write(items**2, times=_GRAM_PASSES * len(distinct) * (pairs - 1))
    for r in distinct:
        _gram(cost, items, row.size, col.size, r, heads, is_symmetric=True)
        _gram(cost, items, row.size, col.size, r, pairs - heads, is_symmetric=False)
    if block.is_diagonal:
        cost.product(1, s.items, row.inputs, s.items, times=heads)
        return cost
    cost.product(1, s.items, row.inputs + col.inputs, s.items, times=pairs)
    if terms:  # the inputs of the later weight depend on the earlier one
        cost.product(
            s.items, s.items, 3 * row.size + 2 * row.inputs, col.size, times=pairs
        )
    return cost


def _terms(s: Sizes, row: Entry, col: Entry) -> int:
    """Return the number of summands of H_f at the later of two places: softmax, and what bends behind it.

    The logits are linear in W_U, so that nothing bends behind it.
    """
    if _LOGITS in (row.place, col.place):
        return 0
    of_softmax = not s.is_linear and {row.place, col.place} == {_SCORES}
    return of_softmax + s.is_curved


def _place_cost(cost: Cost, s: Sizes, entry: Entry, terms: int) -> None:
    """Count R df and d2<dl/df, f> at the place of an entry, from those behind the attention.

    R df goes on to the mixed values (V d i per item) and the scores (V i T), and the
    curvature of the tail from both sides; softmax's own, of (h T)^2 numbers, is written
    _SOFTMAX_PASSES times.
    """
    scores = s.heads * s.keys
    if entry.place in (_SCORES, _MIXED):
        cost.product(s.items, s.vocabulary, s.width, s.inner)
    if entry.place == _SCORES:
        cost.product(s.items, s.vocabulary, s.inner / s.heads, scores)
        cost.write(s.items * scores**2, times=_SOFTMAX_PASSES * bool(terms))
    if entry.place == _HIDDEN:
        cost.product(s.items, s.vocabulary, s.width, s.hidden)
    if not (terms and s.is_curved):
        return
    if entry.place == _SCORES:
        cost.product(s.items, s.width, s.inner + s.width, scores)
        cost.product(s.items, scores, s.width, scores)
    if entry.place == _MIXED:
        cost.product(s.items, s.width + s.inner, s.width, s.inner)
    if entry.place in (_HIDDEN, _OUTPUT):
        cost.write(s.items * s.width * entry.size, times=_NORM_PASSES)


def _gram(
    cost: Cost,
    items: int,
    rows: int,
    cols: int,
    rank: int,
    count: float,
    *,
    is_symmetric: bool,
) -> None:
    """Count sum_nm w_nm <M_n, M_m> by the entries of M_n, or by its factors where their rank is low.

    The same choice as `kronecker.kronecker_squared_norm` makes. Of symmetric matrices p (q +
    _STRIP) / 2 entries are formed, and of n^2 pairs of items n (n + _CHUNK) / 2 multiplied.
    """
    sides = 1 if is_symmetric else 2
    bound = _FACTORED_SYMMETRIC if is_symmetric else _FACTORED
    numbers = rows * (cols + _STRIP) / 2 if is_symmetric else rows * cols
    if 0 < rank**2 * sides * (rows + cols) / 2 < rows * cols * bound:
        cost.product(
            1, items * rank, sides * rows / 2, (items + _STRIP) * rank, times=count
        )
        return
    cost.product(items, 1, rank, numbers, times=count)
    cost.product(1, items, numbers, (items + min(items, _CHUNK)) / 2, times=count)


def exact_cost(
    model: ModelConfig, task: TaskConfig, block: Block, parts: Collection[Part]
) -> Cost:
    """Return what the exact norms of `parts` of one block take in a fresh cell, by the route of the first of them.

    A block without a method costs infinitely many operations.
    """
    s = Sizes.of(model, task)
    cost = Cost()
    route = route_of(model, block, next(iter(parts)))
    probe = probe_cost(s, block, {Part.H_o})
    if route == Route.last_layer:
        cost.add(shared_cost(s, [block], parts))
        cost.add(own_cost(s, block, parts))
    elif route == Route.tokens:
        cost.product(s.items, s.vocabulary, s.width, s.width)
    elif route == Route.columns:
        cost.add(
            probe_cost(s, block, parts),
            min(weight_size(name, model, task) for name in (block.row, block.col)),
        )
    elif route == Route.gradient:
        cost.product(s.heads * s.positions, 1, s.width, s.keys + s.width)
    elif route == Route.missing:
        cost.flops = float("inf")
    else:
        _lower(cost, s, block, probe, with_scores=route == Route.scores)
    return cost


def _lower(
    cost: Cost, s: Sizes, block: Block, probe: Cost, *, with_scores: bool
) -> None:
    """Count one backward pass for every output of a sequence and a Gram matrix for every pair of sequences.

    A backward pass is half a probe's products (a tangent there and back). For the scores of
    W_Q and W_K also a pass up and one down for each, and products of matrices of all scores:
    p^3 for p scores and each pair of sequences.
    """
    sequences = s.positions // s.keys
    rank = s.items // sequences * s.vocabulary
    cost.add(probe, rank / 2)
    for name in {block.row, block.col}:
        side = _numbers(s, name) / s.width
        cost.product(sequences**2 / 2, rank, s.keys * side, rank + s.keys)
    if with_scores:
        scores = s.heads * s.keys * (s.keys + 1) / 2
        cost.add(probe, scores)
        cost.product(sequences**2, scores, scores, scores)


def probe_cost(s: Sizes, block: Block, parts: Collection[Part]) -> Cost:
    """Return what the products of one probe take: a tangent from the column's weight to the logits, and back.

    Back goes one pass for H_o and one for H_f to the row's weight, each as long as the
    tangent; without norms, the pass for H_f of a last layer ends at the scores. H takes no
    pass, being the sum of the two.
    """
    cost = Cost()
    layer = s.layers if block.col == Matrix.W_U else max(block.layer, 1)
    split = {Part.H_o, Part.H_f} if Part.H in parts else {*parts}
    is_short = layer == s.layers and not s.is_curved
    passes = len(split) - (is_short and Part.H_f in split)
    _tangent(cost, s, layer, block.col, 1)
    _tangent(cost, s, layer, block.row, passes)
    if Part.H_f in split:
        queries = s.items if layer == s.layers else s.positions
        if {block.row, block.col} & SCORE_LIKE:
            cost.product(1, queries, s.width * is_short + 2 * s.keys, s.inner)
        for upper in range(layer + 1, s.layers + 1):
            _mixing(cost, s, s.items if upper == s.layers else s.positions, 6)
    for weight in (block.row, block.col):
        cost.write(_numbers(s, weight), times=_PROBE_PASSES / 2)
    return cost


def setup_cost(s: Sizes) -> Cost:
    """Return what a cell takes before its first probe: the network and the tape, evaluated and pulled back once."""
    cost = Cost()
    for layer in range(s.layers):
        _forward(cost, s, s.items if layer == s.layers - 1 else s.positions)
    return cost


def evaluation_cost(s: Sizes) -> Cost:
    """Return what one call of the network itself takes, which computes every layer at all positions.

    The tape has the last layer at the scored positions only (`setup_cost`).
    """
    cost = Cost()
    for _ in range(s.layers):
        cost.product(1, s.positions, s.width, 4 * s.inner + 2 * s.hidden)
        _mixing(cost, s, s.positions, 2)
    return cost


def _tangent(cost: Cost, s: Sizes, layer: int, weight: str, times: int) -> None:
    """Count the products between a weight and the logits; its own layer ends at the weight.

    `first` is where in its layer the weight stands (`_ORDER`): products before it are left
    out.
    """
    for upper in range(layer, s.layers + 1):
        queries = s.items if upper == s.layers else s.positions
        first = _ORDER.get(weight, 0) if upper == layer else 0
        if first == 0:  # of the residual stream, or of several weights
            cost.product(1, queries + 2 * s.positions, s.width, s.inner, times=times)
            _mixing(cost, s, queries, 4 * times)
        if first == 1:
            if weight in (Matrix.W_K, Matrix.W_V):
                rows = s.positions
            else:
                rows = queries
            cost.product(1, rows, s.width, s.inner, times=times)
            _mixing(cost, s, queries, times * (1 if weight == Matrix.W_V else 2))
        if first <= 2:
            cost.product(1, queries, s.inner, s.width, times=times)
        if first <= 3:
            cost.product(1, queries, s.width, s.hidden, times=times)
            cost.write(queries * s.hidden, times=times)  # the activation
        if first <= 4:
            cost.product(1, queries, s.hidden, s.width, times=times)
            cost.write(queries * s.width, times=times * (1 + 6 * s.is_normed))
    cost.product(1, s.items, s.width, s.vocabulary, times=times)


# Where a weight stands in its layer: before the scores or the mixed values, W_O, W_in,
# W_out, W_U.
_ORDER: dict[str, int] = {
    **dict.fromkeys((Matrix.W_Q, Matrix.W_QK, Matrix.W_K, Matrix.W_V), 1),
    **{Matrix.W_O: 2, Matrix.W_in: 3, Matrix.W_out: 4, Matrix.W_U: 5},
}


def _numbers(s: Sizes, weight: str) -> int:
    """Return the entries of a weight; of a group, those of an MLP's matrix."""
    others = {1: s.inner, 2: s.inner, 5: s.vocabulary}
    return s.width * others.get(_ORDER.get(weight, 0), s.hidden or s.inner)


def _mixing(cost: Cost, s: Sizes, queries: int, times: int) -> None:
    """Count products of the scores or the pattern of every head with queries, keys or values."""
    cost.product(1, queries, s.keys, s.inner, times=times)
    cost.write(queries * s.keys * s.heads, times=3 * times)
