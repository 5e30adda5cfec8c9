"""From a TransformerLens state, by HookedTransformer's names or the native bridge's, to the network's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from hessfig.errors import UserError, first_few
from hessfig.models.stored import FLOATING
from hessfig.models.transformer_lens.layout import HEAD
from hessfig.models.transformer_lens.settings import Sizes

_BUFFERS = (".mask", ".IGNORE", ".causal_mask")  # no parameters
# How names end with the bridge, and with HookedTransformer.
_BRIDGE = {
    **{"unembed.weight": "unembed.W_U", "unembed.bias": "unembed.b_U"},
    **{"pos_embed.weight": "pos_embed.W_pos", "embed.weight": "embed.W_E"},
    **{f".attn.{name.lower()}.weight": f".attn.W_{name}" for name in "QKVO"},
    **{f".attn.{name.lower()}.bias": f".attn.b_{name}" for name in "QKVO"},
    **{f".mlp.{name}.weight": f".mlp.W_{name}" for name in ("in", "out")},
    **{f".mlp.{name}.bias": f".mlp.b_{name}" for name in ("in", "out")},
    **{f"{name}.weight": f"{name}.w" for name in ("ln1", "ln2", "ln_final")},
    **{f"{name}.bias": f"{name}.b" for name in ("ln1", "ln2", "ln_final")},
}
_MAPS = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "W_U")  # which the bridge has as (outputs, inputs)
_NATIVE = (None, "TransformerLensNative")
_SAVE = "torch.save(dict(bridge.tl_parameters()), FILE), or HookedTransformer's state_dict()"
_FOLDED_IN = "unembed.b_U"  # zero where the state has none


def converted(
    found: Mapping[str, Tensor], sizes: Sizes, where: str, architecture: str | None = None
) -> dict[str, Tensor]:
    """Return the tensors of HookedNetwork by name; `architecture` is what the configuration says it is.

    The native bridge's maps are stored (outputs, inputs), heads one behind the other. A bridge around a model of
    transformers has the same names, and that model's own order of axes: its state is refused. So are names that are
    missing or not known, other shapes, and numbers that are not finite, by UserError.
    """
    if architecture not in _NATIVE and any(_of_bridge(name) for name in found):
        raise _of_transformers(where, str(architecture))
    named = dict(_named(found, sizes))
    shapes = shapes_of(sizes)
    _check(
        named, {name: shape for name, shape in shapes.items() if name != _FOLDED_IN or name in named}, where
    )
    words = named.pop("unembed.W_U")
    bias = named.pop(_FOLDED_IN, torch.zeros(shapes[_FOLDED_IN]))
    return {**named, HEAD: torch.cat([words.T, bias.unsqueeze(1).to(words)], dim=1)}


def shapes_of(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return every parameter of HookedTransformer by name, with its shape."""
    width, heads, inner = sizes.d_model, sizes.n_heads, sizes.d_head
    found: dict[str, tuple[int, ...]] = {
        "embed.W_E": (sizes.vocabulary, width),
        "pos_embed.W_pos": (sizes.context, width),
    }
    for place in (f"blocks.{layer}" for layer in range(sizes.n_layers)):
        found |= _norm(f"{place}.ln1", sizes)
        for name in "QKV":
            found |= {
                f"{place}.attn.W_{name}": (heads, width, inner),
                f"{place}.attn.b_{name}": (heads, inner),
            }
        found |= {f"{place}.attn.W_O": (heads, inner, width), f"{place}.attn.b_O": (width,)}
        if sizes.d_mlp:
            found |= _norm(f"{place}.ln2", sizes)
            found |= {f"{place}.mlp.W_in": (width, sizes.d_mlp), f"{place}.mlp.b_in": (sizes.d_mlp,)}
            found |= {f"{place}.mlp.W_out": (sizes.d_mlp, width), f"{place}.mlp.b_out": (width,)}
    found |= _norm("ln_final", sizes)
    return found | {"unembed.W_U": (width, sizes.vocabulary), _FOLDED_IN: (sizes.vocabulary,)}


def _norm(place: str, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    return {f"{place}.{name}": (sizes.d_model,) for name in "wb"} if sizes.norm == "LN" else {}


def _named(found: Mapping[str, Tensor], sizes: Sizes) -> Iterable[tuple[str, Tensor]]:
    """Yield tensors under HookedTransformer's names, in its shapes."""
    for name, tensor in found.items():
        # bridge.tl_parameters() fills in MLPs that are not there
        filled = not sizes.d_mlp and ".mlp." in name and tensor.dtype in FLOATING and not tensor.any()
        if not name.endswith(_BUFFERS) and not filled:
            known = _of_bridge(name)
            yield (name, tensor) if known is None else (known, _turned(known, tensor, sizes))


def _of_bridge(name: str) -> str | None:
    """Return HookedTransformer's name for one of the bridge's; None for other names."""
    found = next((last for last in _BRIDGE if name.endswith(last)), None)
    return None if found is None else name.removesuffix(found) + _BRIDGE[found]


def _turned(name: str, tensor: Tensor, sizes: Sizes) -> Tensor:
    """Return a tensor of the bridge as HookedTransformer has it; one that does not fit as it is, to be refused."""
    last, heads = name.rpartition(".")[2], (sizes.n_heads, sizes.d_head)
    inner = sizes.n_heads * sizes.d_head
    if last in ("b_Q", "b_K", "b_V") and tensor.shape == (inner,):
        return tensor.unflatten(0, heads)
    if last not in _MAPS or tensor.ndim != 2:
        return tensor
    if last in ("W_Q", "W_K", "W_V") and len(tensor) == inner:
        return tensor.T.unflatten(1, heads).transpose(0, 1)
    return tensor.T.unflatten(0, heads) if last == "W_O" and tensor.shape[1] == inner else tensor.T


def _of_transformers(where: str, architecture: str) -> UserError:
    return UserError(
        f"model.path: {where} is the state of a bridge around a model of transformers, whose axes are that model's",
        got=f"architecture {architecture} in its config.json",
        allowed="HookedTransformer's names and shapes, which bridge.tl_parameters() gives",
        remedy=f"{_SAVE}; or model=huggingface for the model itself",
    )


def _check(named: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    missing = [name for name in shapes if name not in named]
    surplus = [name for name in named if name not in shapes]
    other = [name for name in shapes if name in named and named[name].shape != shapes[name]]
    if missing or surplus or other:
        raise UserError(
            f"model.path: the state in {where} is not that of its config.json",
            got=f"missing: {first_few(missing)}; surplus: {first_few(surplus)}; of another shape: "
            + first_few([f"{name} {tuple(named[name].shape)} for {shapes[name]}" for name in other]),
            allowed=f"HookedTransformer's {len(shapes)} names: {first_few(list(shapes))}; "
            "or those of boot_native's bridge",
            remedy=_SAVE,
        )
    bad = [
        name for name, tensor in named.items() if not (tensor.dtype in FLOATING and tensor.isfinite().all())
    ]
    if bad:
        raise UserError(
            f"model.path: {where} holds numbers that are not finite, or not of a floating-point type",
            got=first_few(bad),
            allowed="finite floating-point numbers",
            remedy="save the weights again, from before the training diverged",
        )
