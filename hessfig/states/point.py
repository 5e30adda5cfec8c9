"""The point of weight space a cell is about: the configured state, for a sigma and a seed."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from hessfig.config.choices import State
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.files import is_file
from hessfig.models.protocol import Drawn
from hessfig.models.registry import kind


def drawn(config: Config, *, sigma: float | None, seed: int) -> Drawn:
    """Return network, data and loss at the configured state. Raises UserError for weights that do not fit."""
    from hessfig.states.initialised import initialised

    found = initialised(config, sigma=sigma, seed=seed)
    if config.state.kind == State.loaded:
        from hessfig.states.loaded import load_weights

        load_weights(found.network, _path(config))
    return found


def axes(config: Config) -> frozenset[str]:
    """Return which of sigma and seed change the network at this state."""
    return frozenset() if config.state.kind == State.loaded else kind(config.model.kind).axes(config)


def science(config: Config) -> dict[str, Any]:
    """Return what tells this state from others, beside sigma and seed: a file counts by its content."""
    if config.state.kind == State.initialised:
        return {"kind": State.initialised.value}
    return {"kind": State.loaded.value, "sha256": _fingerprint(_path(config))}


@cache
def _fingerprint(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _path(config: Config) -> Path:
    if not config.state.path:
        raise UserError(
            "state.path is missing",
            got="state=loaded without state.path",
            allowed="state.path=FILE.safetensors",
            remedy="name the file that holds the weights",
        )
    path = Path(config.state.path)
    if not is_file(path):
        raise UserError(
            "state.path: there is no such file",
            got=path,
            allowed="a .safetensors file, or a state_dict saved by torch.save",
            remedy="check the path",
        )
    return path
