"""The weight matrices of the paper's networks and their sizes, from the settings alone."""

from __future__ import annotations

from hessfig.config.choices import MLP, Kind, QueryKey
from hessfig.config.schema import ModelConfig, TaskConfig, with_defaults
from hessfig.terms import Matrix


def matrices_of(model: ModelConfig) -> list[Matrix]:
    """Return the weight matrices this architecture has, in the order of its parameters."""
    if model.kind == Kind.linear_mlp:
        return [Matrix.W]
    if model.kind == Kind.mlp:
        return [Matrix.W_E, Matrix.W_in, *([Matrix.W] if model.n_layers > 1 else []), Matrix.W_U]
    query_key = [Matrix.W_QK] if model.query_key == QueryKey.single else [Matrix.W_Q, Matrix.W_K]
    if model.kind == Kind.self_attention:
        return [*query_key, Matrix.W_V]
    mlp = [] if model.mlp == MLP.none else [Matrix.W_in, Matrix.W_out]
    tokens = Matrix.W_patch if model.kind == Kind.vit else Matrix.W_E
    return [tokens, Matrix.W_pos, *query_key, Matrix.W_V, Matrix.W_O, *mlp, Matrix.W_U]


def weight_size(matrix: str, model: ModelConfig, task: TaskConfig, layer: int = 1) -> int:
    """Return the entries of `matrix`: the dimension of its block (`layer` tells a linear MLP's weights apart)."""
    m = with_defaults(model)
    inner = m.n_heads * (m.d_head or 0)
    is_readout = m.kind == Kind.linear_mlp and layer == m.n_layers
    sizes: dict[str, int] = {
        Matrix.W_E: task.vocabulary * m.d_model,
        Matrix.W_pos: (3 * task.digits + 3) * m.d_model,
        Matrix.W_QK: m.d_model**2 * m.n_heads,
        Matrix.W_in: m.d_model * (m.d_mlp or 0),
        Matrix.W_out: m.d_model * (m.d_mlp or 0),
        Matrix.W_U: task.vocabulary * m.d_model,
        Matrix.W: m.d_model * (task.vocabulary if is_readout else m.d_model),
    }
    return sizes.get(matrix, m.d_model * inner)
