"""A single self-attention layer without mask, skip, bias or read-out: the setting of the theorems."""

from __future__ import annotations

from hessfig.config.enums import Data, Positions
from hessfig.config.schema import Config, ModelConfig, with_defaults
from hessfig.errors import UserError
from hessfig.models.blocks import (
    attention_groups,
    attention_matrices,
    is_structural_zero,
    weight_size,
)
from hessfig.models.kinds.transformer import attention_gains
from hessfig.models.protocol import NetworkKind, Structure, built
from hessfig.terms import Matrix
from hessfig.weights import Layout, Weight

_PATHS = {
    Matrix.W_Q: "q",
    Matrix.W_QK: "q",
    Matrix.W_K: "k",
    Matrix.W_V: "v",
    Matrix.W_G: "g",
}
_READ = (
    "n_layers",
    "n_heads",
    "d_model",
    "d_head",
    "query_key",
    "temperature",
    "initialisation",
    "scaled_weight",
    "weight_scale",
    "attention",
    "attention_bias",
    "differential_lambda",
    "differential_norm",
    "scores",
    "softcap",
    "centring",
    "norm_eps",
    "positions",
    "n_kv_heads",
    "gate",
    "window",
)


def layout(config: Config) -> Layout:
    """Return the weights of the one layer: its matrices, then the gains of its scores and heads."""
    model = config.model
    main = [
        Weight(
            one.value,
            f"{_PATHS[one]}.weight",
            _size(one, config),
            1,
            attention_groups(one),
        )
        for one in attention_matrices(model)
    ]
    gains = attention_gains(model, "", 1, model.d_model // model.n_heads)
    first = [weight for weight in main if weight.name != Matrix.W_G]
    return Layout((*first, *gains, *main[len(first) :]))


def _size(matrix: Matrix, config: Config) -> int:
    """Return the number of entries of a weight; values and their gate have width d_model, whatever that of keys."""
    model = with_defaults(config.model)
    if matrix == Matrix.W_V:
        return model.d_model**2 * (model.n_kv_heads or model.n_heads) // model.n_heads
    if matrix == Matrix.W_G:
        return model.d_model**2
    return weight_size(matrix, model, config.task)


def _check_model(model: ModelConfig) -> None:
    if (
        model.d_head is not None
        and model.n_heads > 1
        and model.d_head * model.n_heads != model.d_model
    ):
        raise UserError(
            "model.d_head * model.n_heads must be model.d_model: kind=self_attention has no output projection",
            got=f"{model.d_head} * {model.n_heads} != {model.d_model}",
            allowed="equal products",
            remedy="leave model.d_head out",
        )
    if model.positions == Positions.none:
        raise UserError(
            "model.positions: kind=self_attention has none: its inputs are the data themselves",
            got="model.positions=none",
            allowed="learned (nothing is added), rope, alibi",
            remedy="leave model.positions out",
        )
    if model.n_layers != 1:
        raise UserError(
            "model.n_layers: kind=self_attention is one layer",
            got=model.n_layers,
            allowed="1",
            remedy="use model.kind=transformer",
        )


KIND = NetworkKind(
    layout=layout,
    skeleton=built("BareAttention"),
    is_structural_zero=is_structural_zero,
    data=Data.gaussian,
    matrices=attention_matrices,
    structure=Structure.attention,
    check_model=_check_model,
    reads={
        **dict.fromkeys(_READ, ""),
        "mlp": "model.mlp=none",
        "attention_skip": "model.attention_skip=false",
    },
)
