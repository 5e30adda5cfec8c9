"""The folder of a model: config.json, the files of its weights and tokenizer, and their hashes."""

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import check_pin, identity, is_file
from hessfig.files import fingerprint as content
from hessfig.models.stored.architectures import given_sizes
from hessfig.tasks.tokens import is_text

CONFIG = "config.json"
KEY = "model.path"
_INDEX = ".index.json"
_CHOICES = tuple(
    name + end
    for name in ("model.safetensors", "pytorch_model.bin")
    for end in ("", _INDEX)
)
_FORM = f"a folder that model.save_pretrained wrote: {CONFIG}, *.safetensors"
# The most bytes of a JSON file; indices of the largest models have about 2**23.
_LONGEST = 2**26
# The files from which transformers builds a tokenizer, besides config.json.
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model")


def settings_of(config: Config) -> tuple[dict[str, Any], str]:
    """Return the settings of the model in the form of config.json, and their location for messages.

    Without model.path they follow from the settings of the network. For random weights,
    model.options are added. Raises UserError for a folder without config.json, for a
    file that cannot be read, and, for random weights, for a file that has changed since
    planning.
    """
    model = config.model
    if model.path is None:
        return {**_sized(config), **model.options}, "model.architecture"
    path = folder(str(model.path), model.download) / CONFIG
    settings = json_of(path)
    if not model.random:
        return settings, str(path)
    check_pin(path.parent, KEY, found=digest(settings, ()), planned=pin_of(config, 0))
    return {**settings, **model.options}, str(path)


def is_random(config: Config) -> bool:
    """Whether the weights are drawn from the seed."""
    return config.model.random or config.model.path is None


@cache
def folder(path: str, download: bool) -> Path:
    """Return the folder of a model: `path` itself, or the cached (or downloaded) folder for a name of the hub.

    Raises UserError if it is neither.
    """
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        return Path(
            snapshot_download(
                path, local_files_only=not download, allow_patterns=patterns
            )
        )
    except Exception as error:
        raise UserError(
            f"{KEY}: there is no such folder, and no such model "
            + ("could be fetched" if download else "in the cache of huggingface_hub"),
            got=f"{path} ({type(error).__name__})",
            allowed=f"a folder with {CONFIG} and *.safetensors; a name of the hub with model.download=true",
            remedy="check the path, or save a model there: model.save_pretrained(DIR); for trained encoders: python "
            "scripts/fetch_trained.py outputs/trained",
        ) from error


def json_of(path: Path, form: str = _FORM) -> dict[str, Any]:
    """Return the content of config.json; `form` describes its folder. Raises UserError if it is not a JSON object."""
    if not is_file(path):
        raise UserError(
            f"{KEY}: the folder has no {path.name}",
            got=path.parent,
            allowed=form,
            remedy="name the folder itself, or save the model with its config",
        )
    try:
        content = _parsed(path, identity(path))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(
            f"{KEY}: {path} cannot be read",
            got=str(error)[:200],
            allowed="JSON",
            remedy="save it again",
        ) from error
    if not isinstance(content, dict):
        raise UserError(
            f"{KEY}: {path} is not an object",
            got=type(content).__name__,
            allowed=form,
            remedy="save it again",
        )
    return dict(content)


def files(config: Config) -> str:
    """Return a hash of the files in model.path: config.json and weights, and the tokenizer for a text."""
    if config.model.path is None:
        return ""
    place = folder(str(config.model.path), config.model.download)
    weights = () if config.model.random else map(content, weight_files(place))
    return joined(config, place, digest(json_of(place / CONFIG), weights))


def fingerprint(config: Config) -> str:
    """Return a hash of everything that determines the weights: settings, and the contents of files."""
    if not is_random(config):
        return pin_of(config, 0) or files(config).partition("+")[0]
    return digest(settings_of(config)[0], ())


def digest(settings: Any, weights: Iterable[str]) -> str:
    """Return one hash of the settings and of the hashes of files."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for hashed in weights:
        digest.update(hashed.encode())
    return digest.hexdigest()


def joined(config: Config, place: Path, own: str) -> str:
    """Return the hash of the files of a model, joined with that of its tokenizer if the task is a text."""
    if not is_text(config.task):
        return own
    return f"{own}+{hash_of_tokenizer(tokenizer_files(place))}"


def pin_of(config: Config, place: int) -> str | None:
    """Return a part of the joined hash that planning stored: of the files of the model (0), or of its tokenizer (1)."""
    return [*(config.model.sha256 or "").split("+"), ""][place] or None


def tokenizer_files(place: Path | None) -> dict[str, bytes]:
    """Return the files of the tokenizer in a folder by name; empty if there is no vocabulary.

    From config.json, only the settings that choose the class of the tokenizer are kept.
    """
    if place is None or not any(is_file(place / name) for name in _VOCABULARIES):
        return {}
    own = json_of(place / CONFIG)
    chosen = {
        key: own[key]
        for key in ("model_type", "tokenizer_class")
        if isinstance(own.get(key), str)
    }
    files = {
        name: (place / name).read_bytes()
        for name in _TOKENIZER
        if is_file(place / name)
    }
    return {CONFIG: json.dumps(chosen).encode(), **files}


def hash_of_tokenizer(files: dict[str, bytes]) -> str:
    """Return one hash of `tokenizer_files`."""
    return digest(
        [[name, hashlib.sha256(files[name]).hexdigest()] for name in sorted(files)], ()
    )


def weight_files(place: Path) -> list[Path]:
    """Return the files of weights in a folder, in the same order of preference as transformers.

    model.safetensors, else the files in model.safetensors.index.json, else
    pytorch_model.bin, else the files in its index. Raises UserError if there are none,
    and for an index that names files outside the folder.
    """
    for path in (place / name for name in _CHOICES):
        if is_file(path):
            if path.name.endswith(_INDEX):
                return _indexed(path)
            return [path]
    others = sorted(
        path.name
        for end in ("safetensors", "bin", "pt", "pth")
        for path in place.glob(f"*.{end}")
    )
    raise UserError(
        f"{KEY}: the folder has no weights",
        got=f"{place}: {first_few(others)}",
        allowed=", ".join(_CHOICES),
        remedy="model.random=true for random weights of this config.json, or save the model there",
    )


def _indexed(index: Path) -> list[Path]:
    weight_map = json_of(index).get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    odd = [name for name in names if not _is_plain(name, index)]
    if odd or not names:
        raise UserError(
            f"{KEY}: {index} is not an index of weights",
            got=first_few([repr(name) for name in odd])
            if odd
            else "no weight_map {weight: file}",
            allowed=f"names of *{_suffix(index)} files in the same folder",
            remedy="save the model again: model.save_pretrained(DIR)",
        )
    paths = [index.parent / name for name in sorted(set(names))]
    if missing := [path.name for path in paths if not is_file(path)]:
        raise UserError(
            f"{KEY}: the folder lacks files that {index.name} names",
            got=first_few(missing),
            allowed=f"all {len(paths)} files",
            remedy="copy them too, or save the model again",
        )
    return paths


def _is_plain(name: object, index: Path) -> bool:
    """Whether a name is that of a file next to the index: without separators of any system, drives or folders."""
    return (
        isinstance(name, str)
        and name.endswith(_suffix(index))
        and not set(name) & set("/\\:\0")
    )


def _suffix(index: Path) -> str:
    return Path(index.name.removesuffix(_INDEX)).suffix


@cache
def _parsed(path: Path, identity: tuple[int, ...]) -> Any:
    """Return the JSON in a file, parsed once per process for hash, layout and network."""
    del identity
    if path.stat().st_size > _LONGEST:
        raise ValueError(f"{path.stat().st_size} bytes, more than {_LONGEST}")
    return json.loads(path.read_bytes().decode("utf-8"))


def _sized(config: Config) -> dict[str, Any]:
    """Return settings for random weights of the configured size, with a context as long as sequences of the task."""
    model = config.model
    names = ("n_layers", "n_heads", "d_model", "d_head", "vocabulary")
    given = {
        **{name: getattr(model, name) for name in names},
        "n_kv_heads": model.n_heads,
        "d_mlp": model.d_mlp or 4 * model.d_model,
        "context": config.task.length,
    }
    named = given_sizes(model.architecture, given, "model.architecture")
    return {"model_type": model.architecture, **named}
