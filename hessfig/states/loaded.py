"""Weights read from a file: safetensors, or a state_dict saved by torch and read without executing code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hessfig.errors import UserError, did_you_mean
from hessfig.files import is_file

_FORMS = "a .safetensors file, or a state_dict saved by torch.save"
_NAMED = 5


def load_weights(network: nn.Module, path: Path) -> None:
    """Copy the tensors of `path` into `network`, rounded to its type.

    Raises UserError when the file is missing or holds anything but tensors, and when names, shapes or numbers do not
    fit: missing and surplus names are listed, and nothing is copied.
    """
    found, held = read_weights(path), network.state_dict()
    _check_names(path, found, [name for name, _ in network.named_parameters()], list(held))
    for name, tensor in found.items():
        _check_tensor(path, name, tensor, held[name])
    network.load_state_dict(found, strict=False)  # constants such as masks need not be in the file


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Raises UserError when it is not such a file."""
    if not is_file(path):
        raise UserError(
            "state.path: there is no such file", got=path, allowed=_FORMS, remedy="check the path"
        )
    found = _safetensors(path) if path.suffix == ".safetensors" else _state_dict(path)
    if not isinstance(found, Mapping) or not found or not all(isinstance(t, Tensor) for t in found.values()):
        raise _unreadable(path, "it holds something else than named tensors")
    return {str(name): tensor for name, tensor in found.items()}


def _safetensors(path: Path) -> object:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error


def _state_dict(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, OSError) as error:
        raise _unreadable(path, str(error).partition("\n")[0]) from error


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"state.path: {path} cannot be read as weights",
        got=why[:300],
        allowed=_FORMS,
        remedy="save the network with safetensors.torch.save_file(network.state_dict(), FILE)",
    )


def _check_names(path: Path, found: Mapping[str, Tensor], needed: list[str], held: list[str]) -> None:
    missing = [name for name in needed if name not in found]
    surplus = [name for name in found if name not in held]
    if missing or surplus:
        hint = did_you_mean(missing[0], surplus) if missing and surplus else ""
        raise UserError(
            f"state.path: the names in {path} are not those of this network",
            got=f"missing: {_some(missing)}; surplus: {_some(surplus)}",
            allowed=f"the network's {len(needed)} names: {_some(needed)}",
            remedy=f"for {missing[0]!r}: {hint}"
            if hint
            else "give the model settings that the file was saved with",
        )


def _check_tensor(path: Path, name: str, tensor: Tensor, held: Tensor) -> None:
    if tensor.shape != held.shape:
        raise UserError(
            f"state.path: {name} in {path} has another shape",
            got=tuple(tensor.shape),
            allowed=str(tuple(held.shape)),
            remedy="give the model settings that the file was saved with (model.d_model, model.n_layers, ...)",
        )
    if tensor.is_floating_point() != held.is_floating_point() or not tensor.isfinite().all():
        raise UserError(
            f"state.path: {name} in {path} holds numbers that are not finite, or not of a floating-point type",
            got=f"{int((~tensor.isfinite()).sum())} of {tensor.numel()} not finite, {tensor.dtype}",
            allowed="finite floating-point numbers",
            remedy="save the weights again, from before the training diverged",
        )


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
