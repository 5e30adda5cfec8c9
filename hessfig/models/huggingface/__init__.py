"""Causal language models of transformers: from a folder (model.path=DIR), or with random weights from a config."""

from __future__ import annotations

import hashlib
import json
from functools import cache

from hessfig.config.choices import Loss, Method, Scored, State
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.models.huggingface.batches import Plan, planned
from hessfig.models.huggingface.folder import fingerprint, is_random, settings_of
from hessfig.models.huggingface.layout import layout_of
from hessfig.models.huggingface.sizes import Sizes, sizes_of
from hessfig.models.protocol import Drawn, Kind, Layout
from hessfig.tasks.tokens import Encode, Ids, length_of, sequences
from hessfig.tasks.tokens import source as source_of_tokens


def layout(config: Config) -> Layout:
    """Return the weights that config.json calls for."""
    return _layout(json.dumps(settings_of(config), sort_keys=True, default=str))


def draw(config: Config, sigma: float | None, seed: int) -> Drawn:
    """Return the model (its weights read, or drawn from `seed`), its sequences in micro-batches, cross-entropy."""
    del sigma
    from hessfig.models.huggingface.drawing import drawn

    at_once = _plan(config).sequences
    return drawn(config, seed, _sizes(config), layout(config), _ids(config), at_once)


def axes(config: Config) -> frozenset[str]:
    """Return whether the seed draws the weights."""
    return frozenset({"seed"}) if is_random(config) else frozenset()


def source(config: Config) -> str:
    """Return a hash of the files (model and tokens) by content, and of the micro-batch where there are several."""
    plan = _plan(config)
    batches = [] if plan.sequences == plan.total else [plan.sequences]
    found = [fingerprint(config), source_of_tokens(config.task), *batches]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def about(config: Config) -> str:
    """Return how the sequences are held."""
    return str(_plan(config))


def _check(config: Config) -> None:
    """Raise UserError for settings under which no such network, or no such data, can be had."""
    _check_settings(config)
    fingerprint(config)
    _ids(config)
    _plan(config)


def _check_settings(config: Config) -> None:
    model, task = config.model, config.task
    kernel = model.options.get("attn_implementation", "eager")
    if kernel != "eager":
        raise UserError(
            "model.options.attn_implementation: fused attention kernels have no double backward",
            got=kernel,
            allowed="eager",
            remedy="leave it out: attention is eager",
        )
    if model.options and not is_random(config):
        raise UserError(
            "model.options are for random weights: the weights of a folder fit its own config.json alone",
            got=model.options,
            allowed="{}",
            remedy="model.random=true, or leave model.options out",
        )
    if model.random and model.path is None and model.download:
        raise UserError("model.download: there is no name to fetch", got="model.path=null", allowed="a name")
    if task.loss != Loss.cross_entropy or task.scored != Scored.all:
        raise UserError(
            "task: tokens are scored by cross-entropy, at every position from task.first_scored on",
            got=f"task.loss={task.loss}, task.scored={task.scored}",
            allowed="task.loss=cross_entropy, task.scored=all",
            remedy="task=tokens",
        )
    if config.state.kind == State.loaded and not is_random(config):
        raise UserError(
            "state=loaded: the weights are those of model.path already",
            got=f"model.path={model.path}, state.path={config.state.path}",
            allowed="one of them",
            remedy="leave state=loaded out, or model.random=true",
        )
    if config.estimator.method == Method.exact:
        raise UserError(
            "estimator=exact knows the package's own networks alone",
            got="model.kind=huggingface",
            allowed="auto, hutchinson, aligned, dense, xtrace",
            remedy="estimator=auto",
        )


def _sizes(config: Config) -> Sizes:
    return sizes_of(*settings_of(config))


@cache
def _layout(settings: str) -> Layout:
    return layout_of(sizes_of(*json.loads(settings)))


def _plan(config: Config) -> Plan:
    sizes = _sizes(config)
    return planned(config, sizes, layout(config), length_of(config.task, sizes.context))


def _ids(config: Config) -> Ids:
    """Return the configured sequences."""
    sizes = _sizes(config)
    return sequences(
        config.task,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        encode=lambda: _encoder(config),
    )


def _encoder(config: Config) -> Encode:
    from hessfig.models.huggingface.loading import encoder

    return encoder(config)


KIND = Kind(layout=layout, draw=draw, axes=axes, check=_check, source=source, about=about)
