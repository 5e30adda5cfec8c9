"""TransformerLens networks: a state saved by HookedTransformer or by the bridge, or random weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.config.enums import Data
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.files import fingerprint as content
from hessfig.models.protocol import NetworkKind
from hessfig.models.stored.architectures import ModelSizes
from hessfig.models.stored.lens_settings import (
    digest,
    served,
    settings_of,
    sizes_of,
    weights_of,
)
from hessfig.models.stored.model_folder import KEY, joined, pin_of
from hessfig.models.stored.token_batches import Stored, check_measured
from hessfig.weights import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Objective

_BY_NAME = "model.name!=null"


def files(config: Config) -> str:
    """Return a hash of the contents of sizes and weights, joined with the hash of the tokenizer for a text."""
    if config.model.name is not None:
        return ""
    path = weights_of(config)
    return joined(
        config, path.parent, digest(served(*settings_of(config)), content(path))
    )


def fingerprint(config: Config) -> str:
    """Return a hash of the contents of sizes and weights, or of the settings from which random weights are drawn."""
    if config.model.name is not None:
        named = json.dumps([config.model.name, asdict(_sizes(config))])
        return hashlib.sha256(named.encode()).hexdigest()
    return pin_of(config, 0) or files(config).partition("+")[0]


def layout(config: Config) -> Layout:
    """Return the weights that are found in the network."""
    from hessfig.models.stored.lens_registry import layout_of_bridge

    return layout_of_bridge(config)


def draw(config: Config, sigma: float | None, seed: int) -> Objective:
    """Return the network (weights read from a file or drawn from `seed`), sequences in micro-batches, cross-entropy."""
    from hessfig.models.stored.lens_registry import drawn_bridge

    del sigma
    return drawn_bridge(config, seed, STORED.ids(config), STORED.plan(config).sequences)


def axes(config: Config) -> frozenset[str]:
    """Return whether the seed draws the weights."""
    return frozenset(() if config.model.name is None else {"seed"})


def _check(config: Config) -> None:
    """Raise UserError for settings with which the network or its data cannot be created."""
    is_random = config.model.name is not None
    if is_random and config.model.path is not None:
        raise UserError(
            "model.name and model.path: the weights are read, or drawn at random",
            got=f"model.name={config.model.name}, model.path={config.model.path}",
            allowed="one of them",
            remedy="leave model.name out",
        )
    check_measured(config, is_random=is_random)
    STORED.plan(config)
    STORED.ids(config)


def _sizes(config: Config) -> ModelSizes:
    if config.model.name is not None:
        from hessfig.models.stored.lens_registry import sizes_named

        return sizes_named(config)
    return sizes_of(served(*settings_of(config)))


def _place(config: Config) -> Path | None:
    if config.model.name is not None:
        return None
    return weights_of(config).parent


STORED = Stored(layout, _sizes, _place, fingerprint)
KIND = NetworkKind(
    layout=layout,
    draw=draw,
    axes=axes,
    check=_check,
    files=files,
    source=STORED.source,
    about=STORED.about,
    product_bytes=lambda config: STORED.plan(config).bytes,
    data=Data.tokens,
    place=KEY,
    reads={
        **dict.fromkeys(("path", "sha256", "name"), ""),
        **dict.fromkeys(
            (
                "n_layers",
                "n_heads",
                "d_model",
                "d_head",
                "d_mlp",
                "vocabulary",
                "options",
            ),
            _BY_NAME,
        ),
    },
)
