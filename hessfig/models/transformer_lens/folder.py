"""Where a TransformerLens state is: config.json with its configuration, and a file of weights beside it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import fingerprint as content
from hessfig.files import is_file
from hessfig.models.huggingface.folder import CONFIG, KEY, joined, json_of, pin_of
from hessfig.models.transformer_lens.settings import Sizes, sizes_of

_PATTERNS = ("*.safetensors", "*.pth", "*.pt")
_FORM = (
    f"a folder with {CONFIG} (TransformerLens's configuration as JSON) and the state, {', '.join(_PATTERNS)}"
)


def settings_of(config: Config) -> tuple[dict[str, Any], str]:
    """Return the configuration, and where it stands, for messages. Raises UserError when there is none."""
    path = weights_of(config).parent / CONFIG
    return json_of(path, _FORM), str(path)


def files(config: Config) -> str:
    """Return a hash of sizes and weights by content; joined to it, a text's tokenizer's."""
    path = weights_of(config)
    return joined(config, path.parent, digest(sizes_of(*settings_of(config)), content(path)))


def fingerprint(config: Config) -> str:
    """Return a hash of sizes and weights by content."""
    return pin_of(config, 0) or files(config).partition("+")[0]


def digest(sizes: Sizes, weights: str) -> str:
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
            allowed=f"{_FORM}, or that file",
            remedy="model.path=DIR",
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
