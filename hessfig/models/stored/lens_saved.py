"""A saved state of TransformerLens, opened by TransformerLens itself as a native bridge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hessfig.config.schema import Config
from hessfig.errors import UserError, plain
from hessfig.files import check_pin
from hessfig.files import fingerprint as content
from hessfig.models.stored.lens_settings import digest, served, settings_of, weights_of
from hessfig.models.stored.model_folder import KEY, pin_of
from hessfig.models.stored.stored_weights import check_finite, in_words
from hessfig.models.weight_files import FLOATING, hashed, tensors_of

if TYPE_CHECKING:
    from transformer_lens.config import TransformerBridgeConfig

_BUFFERS = (".mask", ".IGNORE", ".causal_mask")  # entries that are not parameters
_NATIVE = "TransformerLensNative"
_HOOKED, _BIAS = "embed.W_E", "unembed.bias"
_SAVE = "torch.save(dict(bridge.tl_parameters()), FILE), or HookedTransformer's state_dict()"


def saved_bridge(config: Config) -> Any:
    """Return a bridge with the weights of model.path, in config.dtype.

    Raises UserError if the files have changed since planning, or do not contain such a
    network.
    """
    (settings, where), path = settings_of(config), weights_of(config)
    built = served(settings, where)
    own = content(path)
    check_pin(path, KEY, found=digest(built, own), planned=pin_of(config, 0))
    architecture = settings.get("architecture") or _NATIVE
    return _opened(
        json.dumps(built), str(architecture), str(path), own, str(config.dtype)
    )


@lru_cache(maxsize=1)  # planning asks for names, and measuring for names and network
def _opened(
    settings: str, architecture: str, where: str, sha256: str, dtype: str
) -> Any:
    path, number = Path(where), getattr(torch, dtype)
    found, own = hashed(path, KEY)
    check_pin(path, KEY, found=own, planned=sha256)
    stored = tensors_of(found, path, KEY)
    state = {name: one for name, one in stored.items() if not name.endswith(_BUFFERS)}
    is_hooked = _HOOKED in state
    if architecture != _NATIVE and not is_hooked:
        raise _of_transformers(where, architecture)
    state = {
        name: one.to(number) if one.dtype in FLOATING else one
        for name, one in state.items()
    }
    check_finite(state, where, dtype)
    return _booted(json.loads(settings), state, where, is_hooked=is_hooked)


def _booted(
    settings: dict[str, Any], state: dict[str, Tensor], where: str, *, is_hooked: bool
) -> Any:
    """Return a native bridge with the weights of `state`, whose shapes are compared before anything is allocated."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import boot
    from transformer_lens.utilities.tl_checkpoint_conversion import (
        convert_tl_checkpoint,
    )

    try:
        made = TransformerBridgeConfig.from_dict(
            {**settings, "architecture": _NATIVE, "init_weights": False}
        )
        if is_hooked:
            state = convert_tl_checkpoint(_without_fillings(state, made), made)
        with torch.device("meta"):
            shapes = {
                name: tuple(one.shape) for name, one in boot(made).state_dict().items()
            }
        state.setdefault(_BIAS, torch.zeros(1).expand(shapes[_BIAS]))
        _check_shapes(state, shapes, where)
        bridge = boot(made, dtype=next(iter(state.values())).dtype)
        bridge.load_state_dict(state, strict=True)
    except UserError:
        raise
    except (ValueError, RuntimeError) as error:
        raise _misfit(where, plain(str(error), most=300)) from error
    head = bridge.unembed.original_component
    # The bridge holds b_U as a constant.
    head.register_parameter("bias", nn.Parameter(head._buffers.pop("bias")))
    return bridge.eval()


def _without_fillings(
    state: dict[str, Tensor], made: TransformerBridgeConfig
) -> dict[str, Tensor]:
    """Return the state without the zeros that bridge.tl_parameters() adds for MLPs that do not exist."""
    if not made.attn_only:
        return state
    return {
        name: one for name, one in state.items() if ".mlp." not in name or one.any()
    }


def _check_shapes(
    state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str
) -> None:
    missing = [name for name in shapes if name not in state]
    surplus = [name for name in state if name not in shapes]
    other = [
        f"{name} {tuple(one.shape)} for {shapes[name]}"
        for name, one in state.items()
        if name in shapes and one.shape != shapes[name]
    ]
    if missing or surplus or other:
        lists = {"missing": missing, "surplus": surplus, "of another shape": other}
        raise _misfit(where, in_words(lists))


def _misfit(where: str, got: str) -> UserError:
    return UserError(
        f"{KEY}: the state in {where} is not that of its config.json",
        got=got,
        allowed="the names and shapes of HookedTransformer, or of boot_native's bridge",
        remedy=_SAVE,
    )


def _of_transformers(where: str, architecture: str) -> UserError:
    return UserError(
        f"{KEY}: {where} is the state of a bridge around a model of transformers, whose axes are that model's",
        got=f"architecture {architecture} in its config.json",
        allowed="HookedTransformer's names and shapes, which bridge.tl_parameters() gives",
        remedy=f"{_SAVE}; or model=huggingface for the model itself",
    )
