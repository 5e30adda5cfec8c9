"""Checks within the settings of the network."""

from __future__ import annotations

import math

from hessfig.config.choices import FOREIGN, MLP, Attention, Kind, Norm, QueryKey, ScaledWeight, Sink
from hessfig.config.schema import ModelConfig
from hessfig.errors import UserError

_WITH_NORM = (
    Kind.transformer,
    Kind.vit,
    Kind.mlp,
)  # kind mlp counts the norms of the transformer that it matches
_STORED = (Kind.huggingface, Kind.transformer_lens)
_OF_STORED = ("path", "random", "download", "architecture", "vocabulary")
_ATTENTION = (ScaledWeight.W_Q, ScaledWeight.W_K, ScaledWeight.W_V)


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
    _check_stored(model)
    _check_sink(model)
    _check_scaled(model)
    if model.kind in FOREIGN:
        return
    if model.kind == Kind.self_attention:
        _check_self_attention(model)
    if model.kind not in _WITH_NORM and model.norm != Norm.none:
        raise UserError(
            f"model.norm: kind={model.kind} has no LayerNorm",
            got=model.norm,
            allowed="none",
            remedy="model.kind=transformer or vit",
        )
    if model.norm == Norm.post and not model.attention_skip:
        raise UserError(
            "model.norm=post normalises residual sums",
            got="model.attention_skip=false",
            allowed="attention_skip=true",
            remedy="model.attention_skip=true, or model.norm=pre",
        )


def _check_stored(model: ModelConfig) -> None:
    """Raise UserError for settings of models in a folder that this kind of network does not read."""
    if model.kind in _STORED or model.kind not in list(Kind):
        return
    for name in _OF_STORED:
        if getattr(model, name) != getattr(ModelConfig(), name):
            raise UserError(
                f"model.{name}: kind={model.kind} does not read it",
                got=f"model.{name}={getattr(model, name)}",
                allowed="with model=huggingface, model=transformer_lens",
                remedy=f"leave model.{name} out, or model=huggingface task=tokens",
            )


def _check_sink(model: ModelConfig) -> None:
    """Raise UserError for a sink of no size, of a network without one, and on scores that are no logits."""
    if not (math.isfinite(model.sink_beta) and model.sink_beta >= 0):
        raise UserError(
            "model.sink_beta", got=model.sink_beta, allowed="a finite number >= 0", remedy="model.sink_beta=4"
        )
    if model.sink == Sink.none and model.sink_beta:
        raise UserError(
            "model.sink_beta is the size of a sink, and there is none",
            got=f"model.sink=none, model.sink_beta={model.sink_beta}",
            allowed="model.sink=scores, embedding or both",
            remedy=f"model.sink=scores model.sink_beta={model.sink_beta:g}, or leave model.sink_beta out",
        )
    if model.sink != Sink.none and model.kind != Kind.transformer:
        raise UserError(
            f"model.sink: kind={model.kind} has no sink",
            got=f"model.sink={model.sink}",
            allowed="model.kind=transformer",
            remedy="model.kind=transformer, or model.sink=none",
        )
    if model.sink in (Sink.scores, Sink.both) and model.attention == Attention.linear:
        raise UserError(
            "model.sink: linear attention has no softmax; a constant in its scores would add the first value",
            got=f"model.sink={model.sink}, model.attention=linear",
            allowed="model.attention=softmax, or model.sink=embedding",
            remedy="model.sink=embedding",
        )


def _check_scaled(model: ModelConfig) -> None:
    """Raise UserError for a factor that is none, or for a weight that this network has not."""
    if not (math.isfinite(model.weight_scale) and model.weight_scale > 0):
        raise UserError(
            "model.weight_scale",
            got=model.weight_scale,
            allowed="a finite number > 0",
            remedy="model.weight_scale=2",
        )
    if model.scaled_weight is None and model.weight_scale != 1:
        raise UserError(
            "model.weight_scale multiplies model.scaled_weight, and none is named",
            got=f"model.weight_scale={model.weight_scale}",
            allowed=f"model.scaled_weight={', '.join(ScaledWeight)}",
            remedy=f"model.scaled_weight=W_Q model.weight_scale={model.weight_scale:g}",
        )
    held = _scalable(model)
    if model.scaled_weight is not None and model.scaled_weight not in held:
        raise UserError(
            f"model.scaled_weight: this network (model.kind={model.kind}) draws no weight {model.scaled_weight}",
            got=model.scaled_weight,
            allowed=", ".join(held) or "null",
            remedy=f"model.scaled_weight={held[0] if held else 'null'}",
        )


def _scalable(model: ModelConfig) -> list[ScaledWeight]:
    """Return the weights that model.scaled_weight may name."""
    if model.kind == Kind.mlp:
        return [ScaledWeight.W_in, ScaledWeight.mlp]
    if model.kind == Kind.linear_mlp:
        return [ScaledWeight.mlp]
    if model.kind in FOREIGN:
        return []
    single = model.query_key == QueryKey.single
    found = [weight for weight in _ATTENTION if not single or weight == ScaledWeight.W_V]
    if model.kind == Kind.self_attention:
        return found
    mlp = [ScaledWeight.W_in, ScaledWeight.W_out, ScaledWeight.mlp]
    return [*found, ScaledWeight.W_O, *(mlp if model.mlp != MLP.none else [])]


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
