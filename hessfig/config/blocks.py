"""From the setting `blocks` to pairs of weight matrices, and the size of each weight."""

from __future__ import annotations

from typing import Any

from hessfig.config.schema import MLP, Kind, ModelConfig, QueryKey, TaskConfig, with_defaults
from hessfig.errors import UserError, did_you_mean
from hessfig.terms import Matrix


def weight_pairs(blocks: Any, model: ModelConfig) -> list[tuple[Matrix, Matrix]]:
    """Parse `blocks`: names mean diagonal blocks, two-element lists pairs, `all` every pair of the model.

    Raises UserError for a name or a pair this model has not.
    """
    available = matrices_of(model)
    if blocks == "all":
        return [(row, col) for i, row in enumerate(available) for col in available[i:]]
    entries = [blocks] if isinstance(blocks, str) else list(blocks or [])
    if not entries:
        raise UserError("blocks is empty", got=blocks, allowed=_blocks_allowed(available))
    pairs = [_weight_pair(entry, available) for entry in entries]
    return list(dict.fromkeys(pairs))


def matrices_of(model: ModelConfig) -> list[Matrix]:
    """Return the weight matrices this architecture has, in the order of its parameters."""
    if model.kind == Kind.linear_mlp:
        return [Matrix.W]
    query_key = [Matrix.W_QK] if model.query_key == QueryKey.single else [Matrix.W_Q, Matrix.W_K]
    if model.kind == Kind.self_attention:
        return [*query_key, Matrix.W_V]
    mlp = [] if model.mlp == MLP.none else [Matrix.W_in, Matrix.W_out]
    return [Matrix.W_E, Matrix.W_pos, *query_key, Matrix.W_V, Matrix.W_O, *mlp, Matrix.W_U]


def _weight_pair(entry: Any, available: list[Matrix]) -> tuple[Matrix, Matrix]:
    names = list(entry) if isinstance(entry, list | tuple) else [entry, entry]
    if len(names) != 2:
        raise UserError("blocks: a pair has two weights", got=entry, allowed=_blocks_allowed(available))
    row, col = (_weight_name(name, available) for name in names)
    return row, col


def _weight_name(name: Any, available: list[Matrix]) -> Matrix:
    if name in list(Matrix) and Matrix(name) in available:
        return Matrix(name)
    known = name in list(Matrix)
    what = (
        f"blocks: this model has no weight {name}" if known else f"blocks: there is no weight named {name!r}"
    )
    raise UserError(what, got=name, allowed=_blocks_allowed(available), remedy=_weight_remedy(name, known))


def _weight_remedy(name: Any, known: bool) -> str:
    if known:
        return "choose weights of the model, or another model (model.kind, model.query_key, model.mlp)"
    return did_you_mean(str(name), [m.value for m in Matrix])


def _blocks_allowed(available: list[Matrix]) -> str:
    return f"all, or a list of names or pairs of {', '.join(available)}"


def weight_size(matrix: Matrix, model: ModelConfig, task: TaskConfig) -> int:
    """Return the number of entries of `matrix`: the dimension of its block."""
    m = with_defaults(model)
    length, vocabulary, inner = 3 * task.digits + 3, 12, m.n_heads * (m.d_head or 0)
    last = m.d_model * (vocabulary if m.n_layers == 1 else m.d_model)
    sizes = {
        Matrix.W_E: vocabulary * m.d_model,
        Matrix.W_pos: length * m.d_model,
        Matrix.W_QK: m.d_model**2 * m.n_heads,
        Matrix.W_in: m.d_model * (m.d_mlp or 0),
        Matrix.W_out: m.d_model * (m.d_mlp or 0),
        Matrix.W_U: vocabulary * m.d_model,
        Matrix.W: last,
    }
    return sizes.get(matrix, m.d_model * inner)
