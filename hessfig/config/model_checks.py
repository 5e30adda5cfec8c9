"""Checks within the settings of the network."""

from __future__ import annotations

import math

from hessfig.config.choices import FOREIGN, Kind, Norm
from hessfig.config.schema import ModelConfig
from hessfig.errors import UserError


def check_model(model: ModelConfig) -> None:
    """Raise UserError for the first setting of the network that cannot be built."""
    if model.kind not in FOREIGN and model.d_head is None and model.d_model % model.n_heads:
        raise UserError(
            "model.n_heads does not divide model.d_model",
            got=f"d_model={model.d_model}, n_heads={model.n_heads}",
            allowed="n_heads that divides d_model when d_head is not given",
            remedy="set model.d_head too, or another n_heads",
        )
    if not (math.isfinite(model.temperature) and model.temperature > 0):
        raise UserError(
            "model.temperature",
            got=model.temperature,
            allowed="a finite number > 0",
            remedy="model.temperature=1",
        )
    if model.kind in FOREIGN:
        return
    if model.kind == Kind.self_attention:
        _check_self_attention(model)
    if model.kind != Kind.transformer and model.norm != Norm.none:
        raise UserError(
            f"model.norm: kind={model.kind} has no LayerNorm",
            got=model.norm,
            allowed="none",
            remedy="use model.kind=transformer",
        )
    if model.norm == Norm.post and not model.attention_skip:
        raise UserError(
            "model.norm=post normalises residual sums",
            got="model.attention_skip=false",
            allowed="attention_skip=true",
            remedy="model.attention_skip=true, or model.norm=pre",
        )


def _check_self_attention(model: ModelConfig) -> None:
    if (
        (model.d_head or model.d_model) * model.n_heads != model.d_model
        and model.d_head is not None
        and model.n_heads > 1
    ):
        raise UserError(
            "model.d_head * model.n_heads must be model.d_model: kind=self_attention has no output projection",
            got=f"{model.d_head} * {model.n_heads} != {model.d_model}",
            allowed="equal products",
            remedy="leave model.d_head out",
        )
    if model.n_layers != 1:
        raise UserError(
            "model.n_layers: kind=self_attention is one layer",
            got=model.n_layers,
            allowed="1",
            remedy="use model.kind=transformer",
        )
