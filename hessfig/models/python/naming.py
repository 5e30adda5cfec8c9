"""The weights of a network that nobody knows, as its user names them: parameters, or views of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hessfig.errors import UserError, did_you_mean
from hessfig.models.protocol import Layout, Weight, every_parameter

Spec = str | tuple[str, Any] | list[Any]
_AT = "@"


def named_layout(network: nn.Module, weights: Mapping[str, Spec] | None) -> Layout:
    """Return the layout of `weights`, or every parameter by its own name. Raises UserError for misfits."""
    held = {name: p.numel() for name, p in network.named_parameters() if p.is_floating_point()}
    whole = every_parameter(held.items())
    if weights is None:
        return whole
    named = [weight for name, spec in weights.items() for weight in _named(network, str(name), spec, held)]
    return Layout(tuple(named), whole.weights)


def _named(network: nn.Module, name: str, spec: Spec, held: Iterable[str]) -> list[Weight]:
    bare, at, layer = name.partition(_AT)
    if not bare or any(letter in name for letter in ",'\"[]{}$\\") or (at and not layer.isdigit()):
        raise UserError(
            "weights: a name is plain text, perhaps with its layer behind @",
            got=name,
            allowed="no commas, quotes, brackets, $ or backslashes; W_V, W_V@2",
            remedy="rename it",
        )
    specs = spec if isinstance(spec, list) else [spec]
    return [_weight(network, bare, int(layer or 0), one, list(held)) for one in specs]


def _weight(network: nn.Module, name: str, layer: int, spec: Any, held: Sequence[str]) -> Weight:
    path, index = spec if isinstance(spec, tuple) and len(spec) == 2 else (spec, None)
    try:
        parameter = network.get_parameter(str(path))
    except AttributeError as error:
        raise UserError(
            f"weights: the network has no parameter {path!r}",
            got=f"{name}: {path}",
            allowed=", ".join(held[:12]) + ", ..." * (len(held) > 12),
            remedy=did_you_mean(str(path), held) or "see network.named_parameters()",
        ) from error
    return Weight(name, str(path), _size(name, parameter, index), layer, index=index)


def _size(name: str, parameter: Tensor, index: Any) -> int:
    """Return the entries of the view. Raises UserError where it lies outside its parameter, or is no view."""
    try:
        view = parameter if index is None else parameter[index]
        inside = view.numel() > 0 and _within(parameter, index)
        shared = inside and view.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
    except (IndexError, TypeError, RuntimeError):
        inside = shared = False
    if not (inside and shared):
        raise UserError(
            f"weights: the slice of {name} is not one of its parameter",
            got=index,
            allowed=f"a slice within shape {tuple(parameter.shape)}, e.g. numpy.s_[:4, :]",
            remedy="count rows and columns again: PyTorch's Linear stores (outputs, inputs)",
        )
    return int(view.numel())


def _within(parameter: Tensor, index: Any) -> bool:
    """Whether the slices end inside the parameter: Python's slices would be cut short silently."""
    slices = index if isinstance(index, tuple) else (index,)
    ends = zip(slices, parameter.shape, strict=False)
    return all(not isinstance(one, slice) or one.stop is None or -n <= one.stop <= n for one, n in ends)
