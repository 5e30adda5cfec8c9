"""Causal language models of transformers: from a folder (model.path=DIR), or with random weights from a config."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from hessfig.config.enums import Data
from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.models.protocol import Drawn, Kind, Layout
from hessfig.models.stored.architectures import Sizes, is_private, layout_of, public, sizes_of
from hessfig.models.stored.model_folder import KEY, files, fingerprint, folder, is_random, settings_of
from hessfig.models.stored.token_batches import Stored, check_measured


def layout(config: Config) -> Layout:
    """Return the weights that config.json calls for."""
    return _layout(json.dumps(settings_of(config), sort_keys=True, default=str))


def draw(config: Config, sigma: float | None, seed: int) -> Drawn:
    """Return the model (its weights read, or drawn from `seed`), its sequences in micro-batches, cross-entropy."""
    del sigma
    from hessfig.models.stored.causal_model import drawn

    at_once = STORED.plan(config).sequences
    return drawn(config, seed, _sizes(config), layout(config), STORED.ids(config), at_once)


def axes(config: Config) -> frozenset[str]:
    """Return whether the seed draws the weights."""
    return frozenset({"seed"}) if is_random(config) else frozenset()


def _marks(config: Config) -> list[str]:
    """Return what tells cells with the padding's word among their ids from those of hessfig 0.2.0.

    NOTE: transformers' embedding withholds that word's derivatives, and so did 0.2.0: the Hessians of W_E were wrong.
    """
    pad, sizes = settings_of(config)[0].get("pad_token_id"), _sizes(config)
    if not isinstance(pad, int) or not sizes.names.withholds_padding:
        return []
    return ["padding"] if pad % sizes.vocabulary in STORED.ids(config) else []


def _check(config: Config) -> None:
    """Raise UserError for settings under which no such network, or no such data, can be had."""
    _check_settings(config)
    check_measured(config, is_random=is_random(config))
    public(*settings_of(config))
    STORED.plan(config)
    from hessfig.models.stored.causal_model import check  # weights are read, which takes torch

    check(config, _sizes(config), layout(config), STORED.ids(config))


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
    if private := [key for key in model.options if is_private(key) and key != "attn_implementation"]:
        raise UserError(
            "model.options: what transformers is never given",
            got=first_few(private),
            allowed="sizes, activations, positions: what a config.json says of the network",
            remedy="leave it out",
        )
    if model.options and not is_random(config):
        raise UserError(
            "model.options are for random weights: the weights of a folder fit its own config.json alone",
            got=model.options,
            allowed="{}",
            remedy="model.random=true, or leave model.options out",
        )
    if model.download and model.path is None:
        raise UserError(
            "model.download: there is no name to fetch",
            got="model.path=null",
            allowed="model.path=NAME, as the hub has it",
            remedy="name the model, or leave model.download out",
        )


def _sizes(config: Config) -> Sizes:
    return sizes_of(*settings_of(config))


@cache
def _layout(settings: str) -> Layout:
    return layout_of(sizes_of(*json.loads(settings)))


def _place(config: Config) -> Path | None:
    """Return the folder of the model; None where its sizes follow from settings alone."""
    return None if config.model.path is None else folder(str(config.model.path), config.model.download)


STORED = Stored(layout, _sizes, _place, fingerprint, _marks)
KIND = Kind(
    layout=layout,
    draw=draw,
    axes=axes,
    check=_check,
    files=files,
    source=STORED.source,
    about=STORED.about,
    data=Data.tokens,
    place=KEY,
)
