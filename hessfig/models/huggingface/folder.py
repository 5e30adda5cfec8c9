"""The folder of a model: its config.json, where it is, and what it holds, for cells' keys."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.files import fingerprint as content
from hessfig.files import is_file
from hessfig.models.huggingface.sizes import architecture

CONFIG = "config.json"
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_KEY = "model.path"
_FORM = f"a folder that model.save_pretrained wrote: {CONFIG}, *.safetensors"


def settings_of(config: Config) -> tuple[dict[str, Any], str]:
    """Return the model's settings as config.json has them, and where they stand, for messages.

    Without model.path they follow from the settings of the network; model.options go on top where weights are random.
    Raises UserError for a folder without config.json, or one that cannot be read.
    """
    model = config.model
    if model.path is None:
        return {**_sized(config), **model.options}, "model.architecture"
    path = folder(str(model.path), model.download) / CONFIG
    found = json_of(path)
    return {**found, **(model.options if model.random else {})}, str(path)


def is_random(config: Config) -> bool:
    """Whether the weights are drawn from the seed."""
    return config.model.random or config.model.path is None


@cache
def folder(path: str, download: bool) -> Path:
    """Return the folder of a model: `path` itself, or what is in the cache (or fetched) for a name of the hub.

    Raises UserError when it is neither.
    """
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(path, local_files_only=not download, allow_patterns=patterns))
    except Exception as error:
        raise UserError(
            f"{_KEY}: there is no such folder, and no such model "
            + ("could be fetched" if download else "in the cache of huggingface_hub"),
            got=f"{path} ({type(error).__name__})",
            allowed=f"a folder with {CONFIG} and *.safetensors; a name of the hub with model.download=true",
            remedy="check the path, or save a model there: model.save_pretrained(DIR)",
        ) from error


def json_of(path: Path, form: str = _FORM) -> dict[str, Any]:
    """Return a config.json; `form` says what its folder is. Raises UserError when it is missing or no JSON object."""
    if not is_file(path):
        raise UserError(
            f"{_KEY}: the folder has no {CONFIG}",
            got=path.parent,
            allowed=form,
            remedy="name the folder itself, or save the model with its config",
        )
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(
            f"{_KEY}: {path} cannot be read", got=str(error)[:200], allowed="JSON", remedy="save it again"
        ) from error
    if not isinstance(found, dict):
        raise UserError(
            f"{_KEY}: {path} is no object", got=type(found).__name__, allowed=form, remedy="save it again"
        )
    return found


def fingerprint(config: Config) -> str:
    """Return a hash of what the weights follow from: settings, and the files they are read from by content."""
    settings, _ = settings_of(config)
    found = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    if not is_random(config):
        for path in weight_files(folder(str(config.model.path), config.model.download)):
            found.update(content(path).encode())
    return found.hexdigest()


def weight_files(place: Path) -> list[Path]:
    """Return the files that hold a folder's weights. Raises UserError when there are none."""
    for pattern in _WEIGHTS:
        if found := sorted(place.glob(pattern)):
            return found
    raise UserError(
        f"{_KEY}: the folder has no weights",
        got=place,
        allowed=", ".join(_WEIGHTS),
        remedy="model.random=true for random weights of this config.json, or save the model there",
    )


def _sized(config: Config) -> dict[str, Any]:
    """Return settings for random weights of the configured size; sequences may be as long as the task's."""
    model = config.model
    known = architecture(model.architecture, "model.architecture").sizes
    given = {
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "kv_heads": model.n_heads,
        "d_model": model.d_model,
        "d_head": model.d_head,
        "d_mlp": model.d_mlp or 4 * model.d_model,
        "vocabulary": model.vocabulary or known["vocabulary"][1],
        "context": config.task.length or known["context"][1],
    }
    named = {known[word][0]: value for word, value in given.items() if word in known and value is not None}
    return {"model_type": model.architecture, **named}
