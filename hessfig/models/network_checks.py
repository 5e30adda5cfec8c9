"""Checks of the network and its task: of settings that go together, and against what is true of the kind of network.

hessfig.config.checks calls them by name when a configuration is composed, since rooms below know no kinds.
"""

from enum import StrEnum

from hessfig.config.enums import Attention, Data, Loss, Method, Norm, Positions, QueryKey, ScaledWeight, Scores, Sink
from hessfig.config.schema import Config, ModelConfig, TaskConfig, with_defaults
from hessfig.errors import UserError
from hessfig.models.blocks import components
from hessfig.models.protocol import NetworkKind, kind, kinds, kinds_where
from hessfig.terms import Matrix

_PATH = "model.path"
_OF_STORED = ("path", "random", "download", "architecture", "vocabulary")
_DATA = (Data.gaussian, Data.digits, Data.tokens, Data.masked_tokens, Data.text, Data.addition)  # with a kind's name
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
    _check_read(model, known)
    _check_dependent(model)
    _check_excluded(model)
    known.check_model(model)
    if not known.place:
        _check_norm(model, known)


def _check_stored(model: ModelConfig, known: NetworkKind) -> None:
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


def _check_sink(model: ModelConfig, known: NetworkKind) -> None:
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


def _check_scaled(model: ModelConfig, known: NetworkKind) -> None:
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
    """Return the weights that model.scaled_weight may name: own weights, and groups that have some here."""
    groups = {
        ScaledWeight.mlp: Matrix.W_in in matrices or Matrix.W in matrices,
        ScaledWeight.query_key: Matrix.W_Q in matrices,
    }
    return [one for one in ScaledWeight if groups.get(one, one in list(matrices))]


def _check_read(model: ModelConfig, known: NetworkKind) -> None:
    """Raise UserError for a component that this kind of network does not have."""
    for name in components(model):
        if name not in known.components:
            raise UserError(
                f"model.{name}: kind={model.kind} does not have it",
                got=_got(model, name),
                allowed=_named(kinds_where(lambda one, name=name: name in one.components)),  # type: ignore[misc]
                remedy=f"leave model.{name} out, or model=gpt2",
            )


_NEEDS: dict[str, tuple[str, StrEnum]] = {
    "attention_bias": ("attention", Attention.sigmoid),
    "differential_lambda": ("attention", Attention.differential),
    "differential_norm": ("attention", Attention.differential),
    "softcap": ("scores", Scores.softcap),
}


def _check_dependent(model: ModelConfig) -> None:
    """Raise UserError for a setting of a component that is not there."""
    for name, (other, value) in _NEEDS.items():
        if name in components(model) and getattr(model, other) != value:
            raise UserError(
                f"model.{name} is read with model.{other}={value} alone",
                got=_got(model, name, other),
                allowed=f"model.{other}={value}",
                remedy=f"model.{other}={value}, or leave model.{name} out",
            )
    of_heads = model.attention == Attention.differential and model.differential_norm
    within = model.scores == Scores.qk_norm or of_heads
    further = ", model.scores=qk_norm, or differential attention with its norm"
    for name, has_others, others in (("norm_kind", False, ""), ("norm_eps", within, further)):
        if name in components(model) and model.norm == Norm.none and not has_others:
            raise UserError(
                f"model.{name}: there is no norm",
                got=_got(model, name, "norm"),
                allowed=f"model.norm=pre, post or sandwich{others}",
                remedy=f"model.norm=pre, or leave model.{name} out",
            )


_NO_PAIR = "it needs queries and keys of their own, and the single matrix W_QK has none"
_NO_LOGITS = "kernel attention has features phi(q) and phi(k) in place of logits"
_NO_SOFTMAX = "linear attention has no softmax; a constant in its scores would add values"
# A setting and its value, a further setting with the values that it excludes, and why.
_EXCLUSIONS: tuple[tuple[str, StrEnum, str, tuple[StrEnum, ...], str], ...] = (
    ("query_key", QueryKey.single, "scores", (Scores.qk_norm, Scores.cosine), _NO_PAIR),
    ("query_key", QueryKey.single, "positions", (Positions.rope,), _NO_PAIR),
    ("query_key", QueryKey.single, "attention", (Attention.kernel, Attention.differential), _NO_PAIR),
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
    if model.attention == Attention.kernel and model.temperature != 1:
        raise UserError(
            "model.temperature: it would divide nothing: kernel attention normalises phi(q).phi(k) by its sum",
            got=_got(model, "attention", "temperature"),
            allowed="model.temperature=1",
            remedy="leave model.temperature out",
        )
    _check_heads(model)


def _check_heads(model: ModelConfig) -> None:
    """Raise UserError for heads that cannot be shared, halved or turned."""
    if model.n_kv_heads is not None and (model.n_heads % model.n_kv_heads or model.query_key == QueryKey.single):
        is_single = model.query_key == QueryKey.single
        raise UserError(
            "model.n_kv_heads: the single matrix W_QK has no keys to share"
            if is_single
            else "model.n_kv_heads does not divide model.n_heads",
            got=_got(model, "n_heads", "n_kv_heads", *["query_key"] * is_single),
            allowed="model.query_key=separate, and a divisor of model.n_heads",
            remedy="leave model.n_kv_heads out" if is_single else "model.n_kv_heads=1",
        )
    width, sets = with_defaults(model).d_head or 0, 2 if model.attention == Attention.differential else 1
    pairs = 2 if model.positions == Positions.rope else 1
    if width % (sets * pairs):
        what = "differential attention halves" * (sets == 2) + " and " * (sets * pairs == 4)
        raise UserError(
            f"model.d_head: {what}{'rotary positions turn pairs of entries of' * (pairs == 2)} every head",
            got=f"heads {width} wide, {_got(model, 'attention', 'positions')}",
            allowed=f"a multiple of {sets * pairs}",
            remedy=f"model.d_head={max(1, width // (sets * pairs)) * sets * pairs}",
        )


def _got(model: ModelConfig, *names: str) -> str:
    values = {name: getattr(model, name) for name in names}
    return ", ".join(f"model.{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in values.items())


def _check_norm(model: ModelConfig, known: NetworkKind) -> None:
    if model.norm != Norm.none and not known.has_norms:
        raise UserError(
            f"model.norm: kind={model.kind} has no LayerNorm",
            got=model.norm,
            allowed="none",
            remedy="model.kind=transformer, vit or cnn",
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
    if task.path is not None and data != Data.digits and not data.facts.has_windows:
        raise UserError(
            "task.path: only pictures, tokens and texts are read from a file",
            got=f"task.data={data}",
            allowed="task=digits, task=tokens, task=masked_tokens, task=text",
            remedy="leave task.path out, or task=text, or model=vit task=digits, or model=huggingface task=tokens",
        )
    if not data.facts.has_windows and (task.length, task.first_scored) != (TaskConfig.length, TaskConfig.first_scored):
        raise UserError(
            "task.length, task.first_scored: only sequences of tokens and windows of text have them",
            got=f"task.length={task.length}, task.first_scored={task.first_scored}, task.data={data}",
            allowed="with task=tokens, task=text",
            remedy="leave them out",
        )
    _check_loss(config, kind(name).skeleton is not None if name in kinds() else True)
    _check_masks(task)
    if data.facts.is_real and task.loss == Loss.cross_entropy:
        raise UserError(
            "task.loss: Gaussian targets need a square loss",
            got=task.loss,
            allowed="mse, mse_sum_unshifted",
            remedy="task.loss=mse",
        )


def _check_loss(config: Config, is_own: bool) -> None:
    """Raise UserError for changes of the loss that it, the kind of network or the estimator does not know."""
    task, method = config.task, config.estimator.method
    if task.label_smoothing and (task.loss != Loss.cross_entropy or not is_own):
        raise UserError(
            "task.label_smoothing: it smooths the targets of the package's own cross-entropy",
            got=f"task.label_smoothing={task.label_smoothing}, task.loss={task.loss}, model.kind={config.model.kind}",
            allowed="task.loss=cross_entropy with model=gpt2, mlp or vit",
            remedy="leave task.label_smoothing out",
        )
    if task.weight_decay and not (is_own and method in (Method.hutchinson, Method.dense)):
        raise UserError(
            "task.weight_decay: products add it to H and H_f, exact norms and other networks do not know it",
            got=f"task.weight_decay={task.weight_decay}, estimator={method}, model.kind={config.model.kind}",
            allowed="estimator=hutchinson or dense, with the package's own networks",
            remedy="estimator=hutchinson, or leave task.weight_decay out",
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
