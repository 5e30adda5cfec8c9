"""Checks of the network and its task: of settings that go together, and against what is true of the kind of network.

hessfig.config.checks calls them by name when a configuration is composed, since rooms below know no kinds.
"""

from __future__ import annotations

from hessfig.config.enums import Attention, Data, Loss, Norm, ScaledWeight, Sink
from hessfig.config.schema import Config, ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models.protocol import Kind
from hessfig.models.registry import kind, kinds, kinds_where
from hessfig.terms import Matrix

_PATH = "model.path"
_OF_STORED = ("path", "random", "download", "architecture", "vocabulary")
_OF_TOKENS = (Data.tokens, Data.masked_tokens)
_READ = (Data.digits, *_OF_TOKENS)
_DATA = (Data.gaussian, Data.digits, *_OF_TOKENS, Data.addition)
_OF_MASKS = ("masked_share", "masked_as", "mask_id")


def check_model(model: ModelConfig) -> None:
    """Raise UserError for the first setting of the network that cannot be built; unknown kinds are refused later."""
    if model.kind not in kinds():
        return
    known = kind(model.kind)
    if not known.place and model.d_head is None and model.d_model % model.n_heads:
        raise UserError(
            "model.n_heads does not divide model.d_model",
            got=f"d_model={model.d_model}, n_heads={model.n_heads}",
            allowed="n_heads that divides d_model when d_head is not given",
            remedy="set model.d_head too, or another n_heads",
        )
    _check_stored(model, known)
    _check_sink(model, known)
    _check_scaled(model, known)
    known.check_model(model)
    if not known.place:
        _check_norm(model, known)


def _check_stored(model: ModelConfig, known: Kind) -> None:
    """Raise UserError for settings of models in a folder that this kind of network does not read."""
    for name in () if known.place == _PATH else _OF_STORED:
        if getattr(model, name) != getattr(ModelConfig(), name):
            stored = kinds_where(lambda one: one.place == _PATH)
            raise UserError(
                f"model.{name}: kind={model.kind} does not read it",
                got=f"model.{name}={getattr(model, name)}",
                allowed=f"with {', '.join(f'model={one}' for one in stored)}",
                remedy=f"leave model.{name} out, or model=huggingface task=tokens",
            )


def _check_sink(model: ModelConfig, known: Kind) -> None:
    """Raise UserError for a sink of no size, of a network without one, and on scores that are no logits."""
    if model.sink == Sink.none and model.sink_beta:
        raise UserError(
            "model.sink_beta is the size of a sink, and there is none",
            got=f"model.sink=none, model.sink_beta={model.sink_beta}",
            allowed="model.sink=scores, embedding or both",
            remedy=f"model.sink=scores model.sink_beta={model.sink_beta:g}, or leave model.sink_beta out",
        )
    if model.sink != Sink.none and not known.has_sink:
        raise UserError(
            f"model.sink: kind={model.kind} has no sink",
            got=f"model.sink={model.sink}",
            allowed=_named(kinds_where(lambda one: one.has_sink)),
            remedy="model.kind=transformer, or model.sink=none",
        )
    if model.sink in (Sink.scores, Sink.both) and model.attention == Attention.linear:
        raise UserError(
            "model.sink: linear attention has no softmax; a constant in its scores would add the first value",
            got=f"model.sink={model.sink}, model.attention=linear",
            allowed="model.attention=softmax, or model.sink=embedding",
            remedy="model.sink=embedding",
        )


def _check_scaled(model: ModelConfig, known: Kind) -> None:
    """Raise UserError for a factor that is none, or for a weight that this network has not."""
    if model.scaled_weight is None and model.weight_scale != 1:
        raise UserError(
            "model.weight_scale multiplies model.scaled_weight, and none is named",
            got=f"model.weight_scale={model.weight_scale}",
            allowed=f"model.scaled_weight={', '.join(ScaledWeight)}",
            remedy=f"model.scaled_weight=W_Q model.weight_scale={model.weight_scale:g}",
        )
    held = _scalable(known.matrices(model))
    if model.scaled_weight is not None and model.scaled_weight not in held:
        raise UserError(
            f"model.scaled_weight: this network (model.kind={model.kind}) draws no weight {model.scaled_weight}",
            got=model.scaled_weight,
            allowed=", ".join(held) or "null",
            remedy=f"model.scaled_weight={held[0] if held else 'null'}",
        )


def _scalable(matrices: list[Matrix]) -> list[ScaledWeight]:
    """Return the weights that model.scaled_weight may name; `mlp` stands for those of an MLP, whatever their names."""
    is_mlp = Matrix.W_in in matrices or Matrix.W in matrices
    return [one for one in ScaledWeight if one in list(matrices) or (one == ScaledWeight.mlp and is_mlp)]


def _check_norm(model: ModelConfig, known: Kind) -> None:
    if model.norm != Norm.none and not known.has_norms:
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


def check_task(config: Config) -> None:
    """Raise UserError for data that the network does not take, and for settings that the data do not have."""
    task, name = config.task, config.model.kind
    takes = kind(name).takes if name in kinds() else (Data.addition,)
    data = task.data if task.data in takes else takes[0]
    if task.data != data:
        is_python = Data.python in (task.data, data)
        raise UserError(
            "task.data and model.kind do not fit" + ": model.factory makes the data too" * is_python,
            got=f"task.data={task.data}, model.kind={name}",
            allowed="python with python" if is_python else "; ".join(f"{one} with {_takers(one)}" for one in _DATA),
            remedy="model=python task=python, or sweep=network, which has both" if is_python else f"task={data}",
        )
    if task.base != TaskConfig.base and data != Data.addition:
        raise UserError(
            "task.base: the base of the numbers that are added",
            got=f"task.base={task.base}, task.data={data}",
            allowed="with task=addition",
            remedy="task.base=10",
        )
    if task.path is not None and data not in _READ:
        raise UserError(
            "task.path: only pictures and tokens are read from a file",
            got=f"task.data={data}",
            allowed="task=digits, task=tokens, task=masked_tokens",
            remedy="leave task.path out, or model=vit task=digits, or model=huggingface task=tokens",
        )
    if data not in _OF_TOKENS and (task.length, task.first_scored) != (TaskConfig.length, TaskConfig.first_scored):
        raise UserError(
            "task.length, task.first_scored: only sequences of tokens have them",
            got=f"task.length={task.length}, task.first_scored={task.first_scored}, task.data={data}",
            allowed="with task=tokens",
            remedy="leave them out",
        )
    _check_masks(task)
    if data == Data.gaussian and task.loss == Loss.cross_entropy:
        raise UserError(
            "task.loss: Gaussian targets need a square loss",
            got=task.loss,
            allowed="mse, mse_sum_unshifted",
            remedy="task.loss=mse",
        )


def _check_masks(task: TaskConfig) -> None:
    """Raise UserError for masks of tokens that are not masked, and for a first position where masks say which count."""
    is_masked = task.data == Data.masked_tokens
    for name in ("first_scored",) if is_masked else _OF_MASKS:
        if getattr(task, name) != getattr(TaskConfig, name):
            raise UserError(
                f"task.{name}: task.data={task.data} does not read it",
                got=f"task.{name}={getattr(task, name)}",
                allowed=f"with task={Data.tokens if is_masked else Data.masked_tokens}",
                remedy=f"leave task.{name} out",
            )


def _takers(data: Data) -> str:
    """Return the kinds of networks that take these data, in words."""
    *others, last = kinds_where(lambda one: data in one.takes)
    return f"{', '.join(others)} or {last}" if len(others) > 1 else ", ".join([*others, last])


def _named(names: list[str]) -> str:
    return ", ".join(f"model.kind={name}" for name in names)
