"""Files of tensors that vouch for themselves: safetensors with the key, the step and a checksum of their numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hessfig.files import write_bytes

_ABOUT, _VERSION = "hessfig", 2
Tensors = dict[str, Tensor]


class Damaged(Exception):
    """A checkpoint that cannot be trusted: truncated, altered, or of another training or step."""


def write(path: Path, tensors: Mapping[str, Tensor], *, key: str, step: int) -> None:
    """Write tensors under their names, all or nothing."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    about = {"key": key, "step": step, "version": _VERSION, "checksum": _checksum(plain, key, step)}
    write_bytes(path, save(plain, {_ABOUT: json.dumps(about, sort_keys=True)}))


def read(path: Path, *, key: str, step: int | None = None) -> tuple[Tensors, int] | None:
    """Return the tensors and their step; None where there is no file.

    Raises Damaged, naming the file, when it is not what this training wrote (at `step`, if one is given).
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as handle:
            about = json.loads((handle.metadata() or {})[_ABOUT])
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        found = int(about["step"])
        vouched = (key, found) if "version" in about else ()  # by 0.2.0, the numbers alone
        sound = about["key"] == key and about["checksum"] == _checksum(tensors, *vouched)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path}: truncated or no checkpoint of a training ({type(error).__name__})") from error
    if not sound or step not in (None, found):
        raise Damaged(f"{path}: its checksum, key or step is not that of its content")
    return tensors, found


def _checksum(tensors: Mapping[str, Tensor], *about: object) -> str:
    digest = hashlib.sha256(repr(about).encode() if about else b"")
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
