"""Language models of the library transformers, read from a folder (model.path=DIR) or with random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.config.enums import Data
from hessfig.config.schema import Config, ModelConfig
from hessfig.errors import UserError, first_few
from hessfig.models.protocol import NetworkKind
from hessfig.models.stored.architectures import (
    LoadedSizes,
    check_known,
    default_of,
    has_size,
    is_private,
    public,
    sizes_of,
)
from hessfig.models.stored.model_folder import (
    KEY,
    files,
    fingerprint,
    folder,
    is_random,
    settings_of,
)
from hessfig.models.stored.token_batches import Stored, check_measured
from hessfig.weights import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Objective

_BY_SIZES = "model.path=null"
SEQUENCES = "sequences.txt"  # file in a folder: a text with one sequence per line


def layout(config: Config) -> Layout:
    """Return the weights according to config.json."""
    return _layout(json.dumps(settings_of(config), sort_keys=True, default=str))


def draw(config: Config, sigma: float | None, seed: int) -> Objective:
    """Return the model (weights read from files, or drawn from `seed`), sequences in micro-batches, cross-entropy."""
    del sigma
    from hessfig.models.stored.loaded_model import drawn

    at_once = STORED.plan(config).sequences
    return drawn(
        config, seed, _sizes(config), layout(config), STORED.ids(config), at_once
    )


def completed(config: Config) -> Config:
    """Return `config` with the sequences in the folder of the model, for masked tokens without task.path."""
    task, path = config.task, config.model.path
    if task.data != Data.masked_tokens or task.path is not None or path is None:
        return config
    place = folder(str(path), config.model.download) / SEQUENCES
    return replace(config, task=replace(task, path=str(place)))


def axes(config: Config) -> frozenset[str]:
    """Return whether the seed draws the weights."""
    return frozenset({"seed"} if is_random(config) else ())


def _marks(config: Config) -> list[str]:
    """Return the mark of cells of the model that transformers loads; up to 0.4.0 it was rebuilt from pieces.

    For an encoder also its special tokens, which determine what may be masked.
    """
    sizes = _sizes(config)
    if not sizes.is_encoder:
        return ["loaded"]
    from hessfig.models.stored.loaded_model import special_words

    return ["loaded", str(special_words(config, sizes))]


def _check(config: Config) -> None:
    """Raise UserError for settings with which the network or its data cannot be created."""
    _check_settings(config)
    _check_data(config)
    check_measured(config, is_random=is_random(config))
    public(*settings_of(config))
    STORED.plan(config)
    # Weights are read, which takes torch.
    from hessfig.models.stored.loaded_model import check

    check(config, _sizes(config), STORED.ids(config))


def _check_sizes(model: ModelConfig) -> None:
    """Raise UserError for an architecture that is not known, and for a width of heads that it does not have."""
    if model.path is not None:
        return
    check_known(model.architecture, "model.architecture")
    if model.d_head is not None and not has_size(
        default_of(model.architecture, "model.architecture"), "head_dim"
    ):
        raise UserError(
            f"model.d_head: model.architecture={model.architecture} has no such size",
            got=f"model.d_head={model.d_head}",
            allowed="n_layers, n_heads, d_model, d_mlp, vocabulary",
            remedy="leave model.d_head out",
        )


def _check_settings(config: Config) -> None:
    model = config.model
    kernel = model.options.get("attn_implementation", "eager")
    if kernel != "eager":
        raise UserError(
            "model.options.attn_implementation: fused attention kernels have no double backward",
            got=kernel,
            allowed="eager",
            remedy="leave it out: attention is eager",
        )
    if private := [
        key for key in model.options if is_private(key) and key != "attn_implementation"
    ]:
        raise UserError(
            "model.options: settings that are not passed to transformers",
            got=first_few(private),
            allowed="sizes, activations, positions: the settings in a config.json",
            remedy="leave it out",
        )


def _check_data(config: Config) -> None:
    """Raise UserError for masked tokens with a causal model, and for next tokens with an encoder, which sees them."""
    is_encoder = bool(_sizes(config).is_encoder)
    is_masked = config.task.data == Data.masked_tokens
    if is_encoder != is_masked:
        what = "a causal model has no masked tokens"
        fitting = Data.tokens
        if is_encoder:
            what = "an encoder sees every token"
            fitting = Data.masked_tokens
        raise UserError(
            f"task.data: {what}",
            got=f"task.data={config.task.data}, {settings_of(config)[0].get('model_type')}",
            allowed=f"task.data={fitting}",
            remedy=f"task={fitting}",
        )


def _about(config: Config) -> str:
    """Describe how sequences are divided into batches, and which weights of the folder are not used."""
    from hessfig.models.stored.loaded_model import left_out

    words = STORED.about(config)
    if _sizes(config).is_encoder and (surplus := left_out(config)):
        words += f"; left out of the folder's weights: {', '.join(surplus)}"
    return words


def _sizes(config: Config) -> LoadedSizes:
    return sizes_of(*settings_of(config))


@cache
def _layout(settings: str) -> Layout:
    from hessfig.models.stored import loaded_model

    sizes_of(*json.loads(settings))  # before anything of these sizes is built
    return loaded_model.layout(*json.loads(settings))


def _place(config: Config) -> Path | None:
    """Return the folder of the model; None if its sizes follow from settings alone."""
    if config.model.path is None:
        return None
    return folder(str(config.model.path), config.model.download)


STORED = Stored(
    layout, _sizes, _place, fingerprint, _marks, lambda config: _sizes(config).padding
)
KIND = NetworkKind(
    layout=layout,
    draw=draw,
    axes=axes,
    check=_check,
    files=files,
    source=STORED.source,
    about=_about,
    product_bytes=lambda config: STORED.plan(config).bytes,
    completed=completed,
    data=Data.tokens,
    also_takes=(Data.masked_tokens,),
    place=KEY,
    check_model=_check_sizes,
    reads={
        **dict.fromkeys(("path", "sha256", "random"), ""),
        **dict.fromkeys(
            ("n_layers", "n_heads", "d_model", "d_head", "d_mlp"), _BY_SIZES
        ),
        "architecture": _BY_SIZES,
        "vocabulary": _BY_SIZES,
        "options": ("model.random=true", _BY_SIZES),
        "download": "model.path!=null",
    },
)
