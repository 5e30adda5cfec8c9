"""From the setting `blocks` to pairs of weight matrices, and the size of each weight."""

from __future__ import annotations

from typing import Any

from hessfig.config.choices import MLP, Kind, QueryKey
from hessfig.config.schema import ModelConfig, TaskConfig, with_defaults
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
    pairs = [_weight_pair(entry, model) for entry in entries]
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


def _weight_pair(entry: Any, model: ModelConfig) -> tuple[Matrix, Matrix]:
    names = list(entry) if isinstance(entry, list | tuple) else [entry, entry]
    available = matrices_of(model)
    if len(names) != 2:
        raise UserError("blocks: a pair has two weights", got=entry, allowed=_blocks_allowed(available))
    for name in names:
        if name not in list(Matrix):
            raise _no_weight(name, available)
        if name not in available:
            raise _not_of_this_model(Matrix(name), entry, model)
    return Matrix(names[0]), Matrix(names[1])


def _no_weight(name: Any, available: list[Matrix]) -> UserError:
    remedy = did_you_mean(str(name), [matrix.value for matrix in Matrix])
    what = f"blocks: there is no weight named {name!r}"
    return UserError(what, got=name, allowed=_blocks_allowed(available), remedy=remedy)


def _not_of_this_model(matrix: Matrix, entry: Any, model: ModelConfig) -> UserError:
    now, home = _switch(matrix, model)
    pair = isinstance(entry, list | tuple)
    got = f"[{', '.join(entry)}]" if pair else matrix
    return UserError(
        f"blocks: this model has no weight {matrix} ({now})" + f": {got} is not a pair of one model" * pair,
        got=got,
        allowed=_blocks_allowed(matrices_of(model)),
        remedy=f"leave {matrix} out, or take another model: {home}",
    )


def _switch(matrix: Matrix, model: ModelConfig) -> tuple[str, str]:
    """Return the setting that leaves `matrix` out of this model, and a setting that has it."""
    scores = matrix in (Matrix.W_Q, Matrix.W_K, Matrix.W_QK)
    if Matrix.W in (matrix, *matrices_of(model)) or (model.kind == Kind.self_attention and not scores):
        return f"model.kind={model.kind}", "model=linear_mlp" if matrix == Matrix.W else "model=gpt2"
    if not scores:
        return "model.mlp=none", "model.mlp=relu"
    other = QueryKey.separate if model.query_key == QueryKey.single else QueryKey.single
    return f"model.query_key={model.query_key}", f"model.query_key={other}"


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
