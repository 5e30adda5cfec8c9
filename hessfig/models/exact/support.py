"""Availability and cost of exact norms, from sizes and settings only, without tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hessfig.config.enums import MLP, Norm
from hessfig.config.schema import ModelConfig, TaskConfig, with_defaults
from hessfig.errors import UserError
from hessfig.models.blocks import SCORE_LIKE, components, matrices_of, weight_size
from hessfig.models.protocol import Structure, kind, kinds_where
from hessfig.terms import AT_SCORES, Block, Matrix, Part


class Route(StrEnum):
    """Method of an exact norm: items of the last layer, few outputs, causal scores, columns, tokens.

    For H_fT, the gradient in the scores.
    """

    last_layer = "last_layer"
    outputs = "outputs"
    scores = "scores"
    columns = "columns"
    tokens = "tokens"
    gradient = "gradient"
    missing = "missing"


class Level(StrEnum):
    """Cost of an exact norm: a fraction of a second at the size of the paper, seconds or more, or unsupported."""

    cheap = "cheap"
    expensive = "expensive"
    unsupported = "unsupported"


@dataclass(frozen=True)
class Exactness:
    """Whether `estimator=exact` supports a part of a block, the reason, and the alternative."""

    level: Level
    route: Route
    reason: str
    remedy: str = ""


def exactness(model: ModelConfig, block: Block, part: Part) -> Exactness:
    """Return whether and how the exact norm of `part` of `block` can be computed.

    The last layer is cheap even with LayerNorm (0.8 s at the size of the paper, as long as 30 probes). The spread over
    seeds of such networks is so small that at least as many probes would be needed.
    """
    route = route_of(model, block, part)
    if route == Route.missing:
        why = _AT_SCORES if part in AT_SCORES else _UNKNOWN if not _is_known(model, block) else _REASONS[route]
        return Exactness(Level.unsupported, route, why, "estimator=hutchinson, or estimator=auto")
    cheap = route in (Route.tokens, Route.gradient) or (route == Route.last_layer and not _is_wide(model, block))
    return Exactness(Level.cheap if cheap else Level.expensive, route, _REASONS[route])


def route_of(model: ModelConfig, block: Block, part: Part) -> Route:
    """Return the method for the exact norm of `part` of `block`: none for unknown networks, groups, other layers."""
    if part in AT_SCORES:
        return Route.gradient if part == Part.H_fT else Route.missing
    if not _is_known(model, block):
        return Route.missing
    if kind(model.kind).structure == Structure.tokens:
        return Route.tokens
    weights, is_last = {block.row, block.col}, block.layer in (0, model.n_layers)
    if weights & {Matrix.W_E, Matrix.W_pos} or (Matrix.W_U in weights and not is_last):
        return Route.columns
    if is_last:
        return Route.last_layer
    if part == Part.H_o:
        return Route.outputs
    return Route.scores if block.is_diagonal and block.row in SCORE_LIKE else Route.missing


def _is_known(model: ModelConfig, block: Block) -> bool:
    return is_counted(model) and not block.is_across and {block.row, block.col} <= set(matrices_of(model))


def is_counted(model: ModelConfig) -> bool:
    """Whether exact methods and operation counts are known for this network."""
    return kind(model.kind).structure is not None and not components(model)


def check_exact(model: ModelConfig, blocks: Iterable[Block], parts: Sequence[Part]) -> None:
    """Raise UserError for the first part of a block that has no exact norm."""
    for block in blocks:
        for part in parts:
            verdict = exactness(model, block, part)
            if verdict.level == Level.unsupported:
                raise UserError(
                    f"estimator.method=exact: no exact {part} of block {block}: {verdict.reason}",
                    got=f"model.kind={model.kind}, model.n_layers={model.n_layers}, part {part}",
                    allowed="below the last layer H_o of any block, H_f and H of W_Q, W_K, W_QK and of embeddings"
                    if is_counted(model)
                    else f"model.kind={', '.join(kinds_where(lambda record: record.structure is not None))}",
                    remedy=verdict.remedy,
                )


def _is_wide(model: ModelConfig, block: Block) -> bool:
    """Whether the Gram matrices run over the hidden layer of the MLP and another space."""
    curved = model.norm != Norm.none or model.mlp == MLP.gelu
    return Matrix.W_in in (block.row, block.col) and (curved or not block.is_diagonal)


_AT_SCORES = "at the scores H_fT alone has an exact norm"
_UNKNOWN = (
    "exact routes know single weights of one layer of transformers, bare attention and linear MLPs, "
    "without today's components (docs/networks.md)"
)
_REASONS = {
    Route.last_layer: "in the last layer an output depends on its own position's vectors alone",
    Route.outputs: "H_o has no more than the outputs' rank: one pass down for each",
    Route.scores: "W_Q and W_K enter through the causal scores alone: one pass up and two down for each",
    Route.columns: "the smaller weight of the two has few entries: one product for each",
    Route.tokens: "linear MLPs see single tokens, of which there are few",
    Route.gradient: "H_fT is the loss's gradient in the scores between the inputs of queries and keys",
    Route.missing: "below the last layer the outputs depend on it through too many values",
}


def cost(model: ModelConfig, task: TaskConfig, block: Block, part: Part) -> float:
    """Return a rough count of floating-point operations for the exact norm of `part` of `block` in a fresh cell."""
    sizes, route = _Sizes.of(model, task), route_of(model, block, part)
    if route == Route.last_layer:
        return _last_layer_cost(model, sizes, block, part)
    if route == Route.tokens:
        return 2.0 * sizes.items * sizes.vocabulary * sizes.width * sizes.width
    if route == Route.columns:
        fewest = min(weight_size(matrix, model, task) for matrix in (block.row, block.col))
        return fewest * probe_cost(model, task, block)
    if route == Route.gradient:
        return 2.0 * model.n_heads * sizes.sequences * sizes.length * sizes.width * (sizes.length + sizes.width)
    if route == Route.missing:
        return float("inf")
    outer = _outer_cost(model, sizes, block)
    if route == Route.outputs:
        return outer
    scores = model.n_heads * sizes.length * (sizes.length + 1) / 2
    return outer + 2 * scores * _pass_cost(model, sizes, block) + 2 * sizes.sequences**2 * scores**3


@dataclass(frozen=True)
class _Sizes:
    sequences: int
    items: int
    scored: int
    length: int
    width: int
    inner: int
    hidden: int
    vocabulary: int

    @classmethod
    def of(cls, model: ModelConfig, task: TaskConfig) -> _Sizes:
        m = with_defaults(model)
        length = task.num_tokens
        is_bare = kind(m.kind).structure == Structure.attention
        scored = length if is_bare else task.num_scored
        hidden = 0 if m.mlp == MLP.none or is_bare else m.d_mlp or 0
        inner = m.n_heads * (m.d_head or 0)
        return cls(task.batch_size, task.batch_size * scored, scored, length, m.d_model, inner, hidden, task.vocabulary)


def _last_layer_cost(model: ModelConfig, sizes: _Sizes, block: Block, part: Part) -> float:
    """Return the cost of the Jacobians of the tail, and of the Gram matrices of items (half for symmetric blocks)."""
    curved = model.norm != Norm.none and part != Part.H_o
    tail = 2.0 * sizes.items * sizes.hidden * sizes.width * (sizes.width if curved else sizes.vocabulary)
    tail += 6.0 * sizes.items * sizes.width**3 if curved else 0.0
    row, col = (_side(model, sizes, matrix) for matrix in (block.row, block.col))
    if block.is_diagonal:
        items = 60 if model.n_layers == 1 and block.row in SCORE_LIKE else sizes.items
        return tail + 0.8 * items**2 * row * col
    return tail + sizes.items**2 * (1.4 * row * col + 60.0 * (row + col))


def _side(model: ModelConfig, sizes: _Sizes, matrix: str) -> int:
    """Return the number of outputs of a weight for an item, for all heads together."""
    sides: dict[str, int] = {
        Matrix.W_Q: sizes.inner,
        Matrix.W_V: sizes.inner,
        Matrix.W_O: sizes.width,
        Matrix.W_in: sizes.hidden,
        Matrix.W_out: sizes.width,
        Matrix.W_U: sizes.vocabulary,
    }
    return sides.get(matrix, sizes.width * model.n_heads)


def _outer_cost(model: ModelConfig, sizes: _Sizes, block: Block) -> float:
    """Return the cost of one backward pass per output of a sequence, and of Gram matrices for pairs of sequences."""
    rank = sizes.scored * sizes.vocabulary
    sides = {_side(model, sizes, matrix) for matrix in (block.row, block.col)}
    pairs = sizes.sequences**2 / 2 * sum(2.0 * rank * sizes.length * side * (rank + sizes.length) for side in sides)
    return rank * _pass_cost(model, sizes, block) + pairs


def probe_cost(model: ModelConfig, task: TaskConfig, block: Block) -> float:
    """Return a rough operation count of one probe: one forward tangent, and backward products of H_o and H_f."""
    return 3 * _pass_cost(model, _Sizes.of(model, task), block)


def _pass_cost(model: ModelConfig, sizes: _Sizes, block: Block) -> float:
    """Return the operations of one tangent from the layer of the block on; the last layer is at scored positions."""
    above = model.n_layers - max(block.layer, 1)
    if kind(model.kind).structure == Structure.tokens:
        return 2.0 * sizes.items * (above + 1) * sizes.width**2
    per_position = 4 * sizes.width * sizes.inner + 2 * sizes.width * sizes.hidden
    return 2.0 * sizes.sequences * (sizes.length * above + sizes.scored) * per_position
