"""What exact norms and probes cost, in floating-point operations: rough counts from the settings alone."""

from __future__ import annotations

from dataclasses import dataclass

from hessfig.config.choices import MLP, Kind, Norm, Scored
from hessfig.config.schema import ModelConfig, TaskConfig, with_defaults
from hessfig.curvature.exact.support import Route, route_of
from hessfig.models.matrices import weight_size
from hessfig.terms import Block, Matrix, Part

_SCORE_LIKE = (Matrix.W_Q, Matrix.W_K, Matrix.W_QK)


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
        length = 3 * task.digits + 3
        scored = length if m.kind == Kind.self_attention else _scored(task)
        hidden = 0 if m.mlp == MLP.none or m.kind == Kind.self_attention else m.d_mlp or 0
        inner = m.n_heads * (m.d_head or 0)
        return cls(
            task.batch_size,
            task.batch_size * scored,
            scored,
            length,
            m.d_model,
            inner,
            hidden,
            task.vocabulary,
        )


def _scored(task: TaskConfig) -> int:
    return task.digits + 1 if task.scored == Scored.answer else 3 * task.digits + 2


def _last_layer_cost(model: ModelConfig, sizes: _Sizes, block: Block, part: Part) -> float:
    """Tail Jacobians once, then Gram matrices of the items (symmetric blocks cost half)."""
    curved = model.norm != Norm.none and part != Part.H_o
    tail = 2.0 * sizes.items * sizes.hidden * sizes.width * (sizes.width if curved else sizes.vocabulary)
    tail += 6.0 * sizes.items * sizes.width**3 if curved else 0.0
    row, col = (_side(model, sizes, matrix) for matrix in (block.row, block.col))
    if block.is_diagonal:
        items = 60 if model.n_layers == 1 and block.row in _SCORE_LIKE else sizes.items
        return tail + 0.8 * items**2 * row * col
    return tail + sizes.items**2 * (1.4 * row * col + 60.0 * (row + col))


def _side(model: ModelConfig, sizes: _Sizes, matrix: str) -> int:
    """Length of the vector a weight produces for an item, all heads together."""
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
    """One pass down for every output of a sequence, then Gram matrices of the pairs of sequences."""
    rank = sizes.scored * sizes.vocabulary
    sides = {_side(model, sizes, matrix) for matrix in (block.row, block.col)}
    pairs = (
        sizes.sequences**2
        / 2
        * sum(2.0 * rank * sizes.length * side * (rank + sizes.length) for side in sides)
    )
    return rank * _pass_cost(model, sizes, block) + pairs


def probe_cost(model: ModelConfig, task: TaskConfig, block: Block) -> float:
    """Return a rough count of operations of one probe: a tangent up, the products of H_o and H_f down."""
    return 3 * _pass_cost(model, _Sizes.of(model, task), block)


def _pass_cost(model: ModelConfig, sizes: _Sizes, block: Block) -> float:
    """Operations of one tangent through the layers from the block's on, the last one at the scored positions."""
    above = model.n_layers - max(block.layer, 1)
    if model.kind == Kind.linear_mlp:
        return 2.0 * sizes.items * (above + 1) * sizes.width**2
    per_position = 4 * sizes.width * sizes.inner + 2 * sizes.width * sizes.hidden
    return 2.0 * sizes.sequences * (sizes.length * above + sizes.scored) * per_position
