"""Tensors read from a file (safetensors, or a state_dict read without executing code)."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from hessfig.errors import UserError, first_few
from hessfig.files import check_pin, existing_file
from hessfig.rng import row_major

FORMS = "a .safetensors file, or a state_dict saved by torch.save"
FILE = "state.path"
_DAMAGES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    safetensors.SafetensorError,
)
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def read_weights(
    path: Path, key: str = FILE, *, sha256: str | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a file by name; `key` is the setting that names the file.

    Raises UserError if it is not such a file, or if its SHA-256 is not `sha256`.
    """
    content, sha256_read = hashed(path, key)
    check_pin(path, key, found=sha256_read, planned=sha256)
    return tensors_of(content, path, key)


def hashed(path: Path, key: str = FILE) -> tuple[bytes, str]:
    """Return the bytes of a file of weights and their SHA-256. Raises UserError if it cannot be read."""
    file = existing_file(key, FORMS, path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _unreadable(path, key, str(error)) from error
    return content, hashlib.sha256(content).hexdigest()


def tensors_of(content: bytes, path: Path, key: str = FILE) -> dict[str, Tensor]:
    """Return the tensors in the content of `path`. Raises UserError for any other content."""
    try:
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load(content)
        else:
            file = io.BytesIO(content)
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        why = "a pickle of more than tensors, or no pickle at all"
        raise _unreadable(path, key, why) from error
    except _DAMAGES as error:
        raise _unreadable(path, key, str(error).partition("\n")[0]) from error
    if (
        not isinstance(tensors, Mapping)
        or not tensors
        or not all(isinstance(t, Tensor) for t in tensors.values())
    ):
        raise _unreadable(path, key, "it does not contain named tensors")
    if odd := [name for name, tensor in tensors.items() if not _is_whole(tensor)]:
        raise _unreadable(path, key, f"{odd[0]} is not stored entry by entry")
    return {str(name): row_major(tensor) for name, tensor in tensors.items()}


def _is_whole(tensor: Tensor) -> bool:
    """Whether every entry is stored: not sparse, quantised, on the meta device, or expanded."""
    plain = (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
    )
    return (
        plain
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    )


def _unreadable(path: Path, key: str, why: str) -> UserError:
    return UserError(
        f"{key}: {path} cannot be read as weights",
        got=why[:300] or "it is empty, or cut short",
        allowed=FORMS,
        remedy="save the network with safetensors.torch.save_file(network.state_dict(), FILE)",
    )


def in_words(lists: Mapping[str, list[str]]) -> str:
    """Return lists of names under what is wrong with them."""
    return "; ".join(f"{what}: {first_few(names)}" for what, names in lists.items())


def check_finite(
    weights: Mapping[str, Tensor], place: str, dtype: str, key: str
) -> None:
    """Raise UserError for weights in `dtype` that are not finite, or not of a floating-point type."""
    bad = [
        name
        for name, weight in weights.items()
        if not (weight.dtype in FLOATING and weight.isfinite().all())
    ]
    if bad:
        raise UserError(
            f"{key}: {place} contains numbers that are not finite in torch.{dtype}, "
            "or not of a floating-point type",
            got=first_few(bad),
            allowed="finite floating-point numbers",
            remedy="save the weights again, from before the training diverged; or dtype=float64",
        )
