"""Tensors read from a file: safetensors, or a state_dict saved by torch and read without executing code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hessfig.errors import UserError
from hessfig.files import is_file, read_pinned

FORMS = "a .safetensors file, or a state_dict saved by torch.save"
FILE = "state.path"


def read_weights(path: Path, key: str = FILE, *, sha256: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file by name; `key` is the setting that names it.

    Raises UserError when it is not such a file, or when its SHA-256 is not `sha256`.
    """
    if not is_file(path):
        raise UserError(f"{key}: there is no such file", got=path, allowed=FORMS, remedy="check the path")
    try:
        content = read_pinned(path, key, sha256)
    except OSError as error:
        raise _unreadable(path, key, str(error)) from error
    read = _safetensors if path.suffix == ".safetensors" else _state_dict
    found = read(content, path, key)
    if not isinstance(found, Mapping) or not found or not all(isinstance(t, Tensor) for t in found.values()):
        raise _unreadable(path, key, "it holds something else than named tensors")
    return {str(name): tensor for name, tensor in found.items()}


def _safetensors(content: bytes, path: Path, key: str) -> object:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError) as error:
        raise _unreadable(path, key, str(error)) from error


def _state_dict(content: bytes, path: Path, key: str) -> object:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, OSError) as error:
        raise _unreadable(path, key, str(error).partition("\n")[0]) from error


def _unreadable(path: Path, key: str, why: str) -> UserError:
    return UserError(
        f"{key}: {path} cannot be read as weights",
        got=why[:300],
        allowed=FORMS,
        remedy="save the network with safetensors.torch.save_file(network.state_dict(), FILE)",
    )
