"""Checks of the network and its task: combinations of settings, and settings against the kind of network.

hessfig.config.checks calls them by name when it composes a configuration, since lower
layers do not import kinds.
"""

from enum import StrEnum
from functools import cache

from hessfig.config.enums import (
    Attention,
    Data,
    Draws,
    Loss,
    Norm,
    Positions,
    QueryKey,
    ScaledWeight,
    Scores,
    Sink,
)
from hessfig.config.facts import VARIED
from hessfig.config.given import holds, is_off, setting_not_read, setting_of
from hessfig.config.grid import sigma_values
from hessfig.config.schema import Config, ModelConfig, with_defaults
from hessfig.config.settings import default_of, settings, value_of
from hessfig.errors import UserError, typed
from hessfig.models.blocks import FIRST
from hessfig.models.protocol import NetworkKind, kind, kinds, kinds_where
from hessfig.terms import GATED, Kind, Matrix

_SIZES = tuple(
    f"model.{name}"
    for name in ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "vocabulary")
)
# Sweeps over their size include the value "none".
_BY_SIZE = ("model.sink", "model.scaled_weight")
# Listed in messages.
_DATA = (
    Data.gaussian,
    Data.digits,
    Data.tokens,
    Data.masked_tokens,
    Data.text,
    Data.addition,
)


def check_model(model: ModelConfig) -> None:
    """Raise UserError for the first setting with which the network cannot be built; unknown kinds are refused later."""
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
    _check_sink(model)
    _check_scaled(model, known)
    _check_excluded(model)
    known.check_model(model)
    if not known.place:
        _check_norm(model)


def unread(config: Config, key: str) -> UserError | None:
    """Return the error for a setting, or an entry of it, that the network, its data and its state do not read."""
    key, name = (
        setting_of(key),
        key.split(".")[1] if key.startswith("model.") else "kind",
    )
    if is_off(config, key):
        return None
    if name != "kind" and config.model.kind in kinds():
        reads = kind(config.model.kind).reads
        if name not in reads:
            return _of_other_kinds(config, key, name)
        if reason := setting_not_read(
            config, key, reads[name], f"kind={config.model.kind}" * bool(reads[name])
        ):
            return reason
    return setting_not_read(config, key, settings()[key].says.where)


def _of_other_kinds(config: Config, key: str, name: str) -> UserError:
    readers = kinds_where(lambda record: name in record.reads)
    meant = settings()[key].says.implies
    first = kind(readers[0])
    data = f" task={first.data}" * (config.task.data not in first.takes)
    return UserError(
        f"{key}: kind={config.model.kind} does not read it",
        got=f"{key}={typed(value_of(config, key))}, model.kind={config.model.kind}",
        allowed=f"with {_named(readers)}",
        remedy=f"{meant or f'model.kind={readers[0]}{data}'}, or leave {key} out",
    )


@cache
def _never_idle() -> tuple[str, ...]:
    """Return the settings that identify network, data or state, and must be read wherever their value comes from.

    Sizes, and the settings of data of version 0.1, also occur in presets and sweeps
    that do not read them.
    """
    keys = []
    for setting in settings().values():
        counts = {
            "model": setting.key not in (*_SIZES, *_BY_SIZE),
            "state": True,
            "task": setting.added,
        }
        if setting.role in VARIED and counts.get(setting.key.partition(".")[0]):
            keys.append(setting.key)
    return tuple(keys)


def check_idle(config: Config) -> None:
    """Raise UserError for the first setting that differs from its default and that network, data and state do not read.

    Exception: sweeps cross softmax and linear attention with all networks, so an MLP,
    which has no attention, occurs twice.
    """
    crossed = "model.attention" if holds(config, FIRST["attention"]) else ""
    for key in _never_idle():
        if (
            key != crossed
            and value_of(config, key) != default_of(key)
            and (reason := unread(config, key))
        ):
            raise reason


def _check_sink(model: ModelConfig) -> None:
    """Raise UserError for a sink on scores that are not logits."""
    if model.sink in (Sink.scores, Sink.both) and model.attention == Attention.linear:
        raise UserError(
            "model.sink: linear attention has no softmax; a constant in its scores would add the first value",
            got=f"model.sink={model.sink}, model.attention=linear",
            allowed="model.attention=softmax, or model.sink=embedding",
            remedy="model.sink=embedding",
        )


def _check_scaled(model: ModelConfig, known: NetworkKind) -> None:
    """Raise UserError for a scaled weight that the network does not have."""
    scalable = _scalable(known.matrices(model))
    if model.scaled_weight is not None and model.scaled_weight not in scalable:
        raise UserError(
            f"model.scaled_weight: this network (model.kind={model.kind}) draws no weight {model.scaled_weight}",
            got=model.scaled_weight,
            allowed=", ".join(scalable) or "null",
            remedy=f"model.scaled_weight={scalable[0] if scalable else 'null'}",
        )


def _scalable(matrices: list[Matrix]) -> list[ScaledWeight]:
    """Return the allowed values of model.scaled_weight: weights of the network, and groups with such weights."""
    groups = {
        ScaledWeight.mlp: Matrix.W_in in matrices or Matrix.W in matrices,
        ScaledWeight.query_key: Matrix.W_Q in matrices,
    }
    return [one for one in ScaledWeight if groups.get(one, one in list(matrices))]


_NO_PAIR = "it needs queries and keys of their own, and the single matrix W_QK has none"
_NO_LOGITS = "kernel attention has features phi(q) and phi(k) in place of logits"
_NO_SOFTMAX = (
    "linear attention has no softmax; a constant in its scores would add values"
)
# A setting and its value, a further setting with the values that it excludes, and the
# reason.
_EXCLUSIONS: tuple[tuple[str, StrEnum, str, tuple[StrEnum, ...], str], ...] = (
    ("query_key", QueryKey.single, "scores", (Scores.qk_norm, Scores.cosine), _NO_PAIR),
    ("query_key", QueryKey.single, "positions", (Positions.rope,), _NO_PAIR),
    (
        "query_key",
        QueryKey.single,
        "attention",
        (Attention.kernel, Attention.differential),
        _NO_PAIR,
    ),
    ("attention", Attention.kernel, "scores", (Scores.softcap,), _NO_LOGITS),
    ("attention", Attention.kernel, "positions", (Positions.alibi,), _NO_LOGITS),
    ("attention", Attention.kernel, "sink", (Sink.scores, Sink.both), _NO_LOGITS),
    ("attention", Attention.linear, "positions", (Positions.alibi,), _NO_SOFTMAX),
)


def _check_excluded(model: ModelConfig) -> None:
    """Raise UserError for components that exclude each other, and for numbers of heads that do not fit."""
    for first, value, name, excluded, why in _EXCLUSIONS:
        if getattr(model, first) == value and getattr(model, name) in excluded:
            raise UserError(
                f"model.{name}: {why}",
                got=_got(model, first, name),
                allowed=f"one of the two: model.{first} or model.{name} at its default",
                remedy=f"leave model.{name} out, or model.{first}",
            )
    _check_heads(model)


def _check_heads(model: ModelConfig) -> None:
    """Raise UserError for heads that cannot be shared, halved or rotated."""
    if model.n_kv_heads is not None and (
        model.n_heads % model.n_kv_heads or model.query_key == QueryKey.single
    ):
        is_single = model.query_key == QueryKey.single
        raise UserError(
            "model.n_kv_heads: the single matrix W_QK has no keys to share"
            if is_single
            else "model.n_kv_heads does not divide model.n_heads",
            got=_got(model, "n_heads", "n_kv_heads", *["query_key"] * is_single),
            allowed="model.query_key=separate, and a divisor of model.n_heads",
            remedy="leave model.n_kv_heads out" if is_single else "model.n_kv_heads=1",
        )
    width = with_defaults(model).d_head or 0
    sets = 2 if model.attention == Attention.differential else 1
    pairs = 2 if model.positions == Positions.rope else 1
    if width % (sets * pairs):
        what = "differential attention halves" * (sets == 2) + " and " * (
            sets * pairs == 4
        )
        raise UserError(
            f"model.d_head: {what}{'rotary positions turn pairs of entries of' * (pairs == 2)} every head",
            got=f"heads {width} wide, {_got(model, 'attention', 'positions')}",
            allowed=f"a multiple of {sets * pairs}",
            remedy=f"model.d_head={max(1, width // (sets * pairs)) * sets * pairs}",
        )


def _got(model: ModelConfig, *names: str) -> str:
    values = {name: getattr(model, name) for name in names}
    return ", ".join(
        f"model.{name}={str(v).lower() if isinstance(v, bool) else v}"
        for name, v in values.items()
    )


def _check_norm(model: ModelConfig) -> None:
    if model.norm == Norm.post and not model.attention_skip:
        raise UserError(
            "model.norm=post normalises residual sums",
            got="model.attention_skip=false",
            allowed="attention_skip=true",
            remedy="model.attention_skip=true, or model.norm=pre",
        )


def check_task(config: Config) -> None:
    """Raise UserError for data that the network does not take, and for settings that these data do not have."""
    task, name = config.task, config.model.kind
    takes = kind(name).takes if name in kinds() else (Data.addition,)
    data = task.data if task.data in takes else takes[0]
    if task.data != data:
        is_python = Data.python in (task.data, data)
        raise UserError(
            "task.data and model.kind do not fit"
            + ": model.factory makes the data too" * is_python,
            got=f"task.data={task.data}, model.kind={name}",
            allowed="python with python"
            if is_python
            else "; ".join(f"{one} with {_takers(one)}" for one in _DATA),
            remedy="model=python task=python, or sweep=network, which has both"
            if is_python
            else f"task={data}",
        )
    if data.facts.is_real and task.loss == Loss.cross_entropy:
        raise UserError(
            "task.loss: Gaussian targets need a square loss",
            got=task.loss,
            allowed="mse, mse_sum_unshifted",
            remedy="task.loss=mse",
        )


_AS_PUBLISHED = (
    "n_heads",
    "query_key",
    "positions",
    "n_kv_heads",
    "gate",
    "tied",
    "sigma_scales",
    "initialisation",
    "sink_beta",
    "weight_scale",
)
_PUBLISHED_REPEATS = range(1234, 1254)
_PUBLISHED_POINTS = 20


def check_draws(config: Config) -> None:
    """Raise UserError for published draws of a network that the published code does not draw."""
    if config.state.draw != Draws.published:
        return
    others = [
        name
        for name in _AS_PUBLISHED
        if getattr(config.model, name) != getattr(ModelConfig(), name)
    ]
    if others or config.model.mlp in GATED:
        raise UserError(
            "state.draw=published: the published code does not draw this network",
            got=_got(config.model, *(others or ["mlp"])),
            allowed="the networks of Figures 3, 5, 6, 7 and 8, of any size",
            remedy="state.draw=named, or leave these settings of the model out",
        )
    if config.model.kind == Kind.linear_mlp:
        _check_published_stream(config)


def _check_published_stream(config: Config) -> None:
    """Raise UserError for repeats or a grid that the one stream behind Figure 8 does not have."""
    last = config.first_seed + config.seeds - 1
    points = len(sigma_values(config.grid))
    if (
        not {config.first_seed, last} <= {*_PUBLISHED_REPEATS}
        or points != _PUBLISHED_POINTS
    ):
        raise UserError(
            "state.draw=published: all linear MLPs are of one stream, 20 repeats at 20 sigmas",
            got=f"seeds {config.first_seed} to {last}, {points} sigmas",
            allowed="seeds 1234 to 1253, a grid of 20 points",
            remedy="leave seeds and grid out, or state.draw=named",
        )


def _takers(data: Data) -> str:
    """Return the kinds of networks that take these data, as a phrase."""
    *others, last = kinds_where(lambda record: data in record.takes)
    if len(others) > 1:
        return f"{', '.join(others)} or {last}"
    return ", ".join([*others, last])


def _named(names: list[str]) -> str:
    return ", ".join(f"model.kind={name}" for name in names)
