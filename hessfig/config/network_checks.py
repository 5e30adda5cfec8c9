"""Checks of the network, its task and its training."""

from __future__ import annotations

import math
from typing import Any

from hessfig.config.enums import (
    FOREIGN,
    MLP,
    Attention,
    Data,
    Kind,
    Loss,
    Norm,
    Optimiser,
    QueryKey,
    ScaledWeight,
    Sink,
    State,
    TrainingData,
)
from hessfig.config.keys import TRAINABLE
from hessfig.config.schema import Config, ModelConfig, TaskConfig, TrainingConfig
from hessfig.errors import UserError

_WITH_NORM = (Kind.transformer, Kind.vit, Kind.mlp)  # kind mlp counts the norms of the transformer that it matches
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
            "model.temperature", got=model.temperature, allowed="a finite number > 0", remedy="model.temperature=1"
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
            "model.weight_scale", got=model.weight_scale, allowed="a finite number > 0", remedy="model.weight_scale=2"
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


_SMALLEST_BASE = 2
_DATA_OF: dict[str, Data] = {
    Kind.python: Data.python,
    Kind.self_attention: Data.gaussian,
    Kind.vit: Data.digits,
    Kind.huggingface: Data.tokens,
    Kind.transformer_lens: Data.tokens,
}  # others: addition
_READ = (Data.digits, Data.tokens)


def check_task(config: Config) -> None:
    """Raise UserError for data that the network does not take, and for settings that the data do not have."""
    task, kind = config.task, config.model.kind
    if (task.data == Data.python) != (kind == Kind.python):
        raise UserError(
            "task.data and model.kind do not fit: model.factory makes the data too",
            got=f"task.data={task.data}, model.kind={kind}",
            allowed="python with python",
            remedy="model=python task=python, or sweep=network, which has both",
        )
    data = _DATA_OF.get(kind, Data.addition)
    if task.data != data:
        raise UserError(
            "task.data and model.kind do not fit",
            got=f"task.data={task.data}, model.kind={kind}",
            allowed="gaussian with self_attention; digits with vit; tokens with huggingface, transformer_lens; "
            "addition with transformer, mlp or linear_mlp",
            remedy=f"task={data}",
        )
    if task.base < _SMALLEST_BASE or (task.base != TaskConfig.base and data != Data.addition):
        raise UserError(
            "task.base: the base of the numbers that are added",
            got=f"task.base={task.base}, task.data={data}",
            allowed=f"a whole number >= {_SMALLEST_BASE} with task=addition",
            remedy="task.base=10",
        )
    if task.path is not None and data not in _READ:
        raise UserError(
            "task.path: only pictures and tokens are read from a file",
            got=f"task.data={data}",
            allowed="task=digits, task=tokens",
            remedy="leave task.path out, or model=vit task=digits, or model=huggingface task=tokens",
        )
    if data != Data.tokens and (task.length, task.first_scored) != (TaskConfig.length, TaskConfig.first_scored):
        raise UserError(
            "task.length, task.first_scored: only sequences of tokens have them",
            got=f"task.length={task.length}, task.first_scored={task.first_scored}, task.data={data}",
            allowed="with task=tokens",
            remedy="leave them out",
        )
    if data == Data.gaussian and task.loss == Loss.cross_entropy:
        raise UserError(
            "task.loss: Gaussian targets need a square loss",
            got=task.loss,
            allowed="mse, mse_sum_unshifted",
            remedy="task.loss=mse",
        )


MOST_KEPT = 10_000


def check_training(config: Config) -> None:
    """Raise UserError for the first setting of the training that cannot be run, and for steps it does not have."""
    training = config.training
    _check_steps("training.checkpoints", training.checkpoints, training)
    if config.state.kind == State.trained:
        if config.state.step == []:
            raise UserError(
                "state.step names no step",
                got="[]",
                allowed="null (the last), a step, or a list of steps",
                remedy=f"for example state.step=[0,{training.steps}]",
            )
        _check_steps("state.step", _listed(config.state.step), training)
        _check_task(config)
    elif config.state.step is not None:
        raise UserError(
            f"state.step: only a trained state has steps (state.kind={config.state.kind})",
            got=config.state.step,
            allowed="null",
            remedy="state=trained, or state.step=null",
        )


def _listed(asked: Any) -> list[Any]:
    return [] if asked is None else asked if isinstance(asked, list) else [asked]


def _check_steps(key: str, asked: list[Any], training: TrainingConfig) -> None:
    for step in asked:
        if type(step) is not int or step < 0:
            raise UserError(
                f"{key}: a step is a whole number >= 0",
                got=step,
                allowed="a step, or a list of steps",
                remedy=f"for example {key}=[0,{training.steps}]",
            )
        if step > training.steps:
            raise UserError(
                f"{key} is beyond the end of the training",
                got=step,
                allowed=f"0 to {training.steps} (training.steps)",
                remedy=f"training.steps={step}",
            )
    if len(set(asked)) < len(asked) or len(asked) > MOST_KEPT:
        twice = next((step for step in asked if asked.count(step) > 1), f"{len(asked)} steps")
        raise UserError(
            f"{key}: each step is named once, and at most {MOST_KEPT} are",
            got=twice,
            allowed="steps that differ",
            remedy=f"{key}=[{','.join(map(str, dict.fromkeys(asked[:5])))}]",
        )


def _check_task(config: Config) -> None:
    training, data = config.training, config.task.data
    if data not in TRAINABLE:
        raise UserError(
            f"state=trained: there is no task to train on (task.data={data})",
            got=f"task.data={data}, model.kind={config.model.kind}",
            allowed="; ".join(f"task.data={one}" for one in TRAINABLE),
            remedy="model=gpt2 task=addition, or weights of your own: state=loaded state.path=FILE",
        )
    if training.optimiser == Optimiser.gd and training.data != TrainingData.fixed:
        raise UserError(
            "training.optimiser=gd is full batch, and fresh data have no whole",
            got=f"training.data={training.data}",
            allowed="training.data=fixed",
            remedy="training=gd, or training.data=fixed (the task's batch of task.batch_size sums)",
        )
