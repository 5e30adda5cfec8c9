"""TransformerLens networks: a state as HookedTransformer or the bridge saves it, converted to plain torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.config.enums import Data
from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import fingerprint as content
from hessfig.files import is_file
from hessfig.models.protocol import NetworkKind
from hessfig.models.stored.lens_settings import LensSizes, layout_of, sizes_of
from hessfig.models.stored.model_folder import CONFIG, KEY, joined, json_of, pin_of
from hessfig.models.stored.token_batches import Stored, check_measured
from hessfig.weights import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Objective

_BY_NAME = "model.name!=null"
_PATTERNS = ("*.safetensors", "*.pth", "*.pt")
_FORM = f"a folder with {CONFIG} (TransformerLens's configuration as JSON) and the state, {', '.join(_PATTERNS)}"


def settings_of(config: Config) -> tuple[dict[str, Any], str]:
    """Return the configuration, and where it stands, for messages. Raises UserError when there is none."""
    path = weights_of(config).parent / CONFIG
    return json_of(path, _FORM), str(path)


def files(config: Config) -> str:
    """Return a hash of sizes and weights by content; joined to it, a text's tokenizer's."""
    if config.model.name is not None:
        return ""
    path = weights_of(config)
    return joined(config, path.parent, digest(sizes_of(*settings_of(config)), content(path)))


def fingerprint(config: Config) -> str:
    """Return a hash of sizes and weights by content; of random weights, of what they are drawn by."""
    if config.model.name is not None:
        return hashlib.sha256(json.dumps([config.model.name, asdict(_sizes(config))]).encode()).hexdigest()
    return pin_of(config, 0) or files(config).partition("+")[0]


def digest(sizes: LensSizes, weights: str) -> str:
    """Return one hash of sizes and of the hash of the weights' file."""
    return hashlib.sha256(json.dumps([asdict(sizes), weights]).encode()).hexdigest()


def weights_of(config: Config) -> Path:
    """Return the file of weights: model.path itself, or the only one in that folder.

    Raises UserError when there is none, or when there are several.
    """
    if config.model.path is None:
        raise UserError(
            f"{KEY} is missing",
            got="model=transformer_lens without model.path",
            allowed=f"{_FORM}, or that file; without it, random weights of model.name",
            remedy="model.path=DIR, or for example model.name=GPT2LMHeadModel",
        )
    place = Path(config.model.path)
    if is_file(place):
        return place
    found = sorted(path for pattern in _PATTERNS for path in place.glob(pattern)) if place.is_dir() else []
    if len(found) != 1:
        raise UserError(
            f"{KEY}: {_odd(place, bool(found))}",
            got=first_few([path.name for path in found]) if found else place,
            allowed=f"{_FORM}, or that file",
            remedy=f"for example model.path={found[-1]}" if found else _HOW,
        )
    return found[0]


_HOW = "torch.save(model.state_dict(), 'DIR/state.pth'), and the configuration's numbers as DIR/config.json"


def _odd(place: Path, several: bool) -> str:
    if several:
        return "the folder has several files of weights"
    return "the folder has no weights" if place.is_dir() else "there is no such folder"


def layout(config: Config) -> Layout:
    """Return the weights that config.json calls for, or those of the architecture that is named."""
    if config.model.name is not None:
        from hessfig.models.stored.lens_registry import layout_named

        return layout_named(config)
    return layout_of(_sizes(config))


def draw(config: Config, sigma: float | None, seed: int) -> Objective:
    """Return the network (its weights read, or drawn from `seed`), its sequences in micro-batches, cross-entropy."""
    del sigma
    if config.model.name is not None:
        from hessfig.models.stored.lens_registry import drawn_at_random

        return drawn_at_random(config, seed, STORED.ids(config), STORED.plan(config).sequences)
    from hessfig.models.stored.lens_network import drawn

    return drawn(config, layout(config), STORED.ids(config), STORED.plan(config).sequences)


def axes(config: Config) -> frozenset[str]:
    """Return whether the seed draws the weights."""
    return frozenset() if config.model.name is None else frozenset({"seed"})


def _check(config: Config) -> None:
    """Raise UserError for settings under which no such network, or no such data, can be made."""
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
    if not is_random:
        from hessfig.models.stored.lens_network import read  # the file is read, which takes torch

        read(config)


def _sizes(config: Config) -> LensSizes:
    if config.model.name is not None:
        from hessfig.models.stored.lens_registry import sizes_named

        return sizes_named(config)
    return sizes_of(*settings_of(config))


def _place(config: Config) -> Path | None:
    return None if config.model.name is not None else weights_of(config).parent


STORED = Stored(layout, _sizes, _place, fingerprint)
KIND = NetworkKind(
    layout=layout,
    draw=draw,
    axes=axes,
    check=_check,
    files=files,
    source=STORED.source,
    about=STORED.about,
    data=Data.tokens,
    place=KEY,
    reads={
        **dict.fromkeys(("path", "sha256", "name"), ""),
        **dict.fromkeys(("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "vocabulary", "options"), _BY_NAME),
    },
)
