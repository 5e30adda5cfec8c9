"""The weights of a network that nobody knows, as its user names them: parameters, or views of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.errors import UserError, did_you_mean, plain
from hessfig.models.protocol import Layout, Weight, every_parameter

Pair = tuple[Weight, Weight]
_AT = "@"
_MOST_LAYER = 10_000  # as model.n_layers
_REMEDY = 'for example weights={"W_V@1": "layers.0.value.weight"}'


def named_layout(network: nn.Module, weights: Any) -> Layout:
    """Return the layout of `weights`, or every parameter by its own name.

    A parameter that has several names is held under the first of them. Raises UserError for misfits, and for a group
    that holds an entry twice.
    """
    whole = every_parameter(
        (name, p.numel()) for name, p in network.named_parameters() if p.is_floating_point()
    )
    if weights is None:
        return whole
    if not isinstance(weights, Mapping) or not weights:
        raise UserError(
            "weights: no names of weights",
            got=plain(repr(weights)),
            allowed="{name: parameter}, or None for every parameter by its own name",
            remedy=_REMEDY,
        )
    known = _Known(network)
    named = [weight for name, spec in weights.items() for weight in _named(known, name, spec)]
    for name, layer, pair in _overlapping(named, known, "name"):
        raise _twice(f"{name}{_AT}{layer}" if layer else str(name), pair, known)
    shared = [pair for _, layer, pair in _overlapping(named, known, "parameter") if layer]
    return Layout(tuple(named), whole.weights, shared=tuple(shared))


class _Known:
    """The parameters of a network: what each is called first, and which entries a view of it has."""

    def __init__(self, network: nn.Module) -> None:
        self.first = {id(p): name for name, p in network.named_parameters()}
        every = network.named_parameters(remove_duplicate=False)
        self.parameters = {name: p for name, p in every if p.is_floating_point()}
        self.names = [name for name, p in network.named_parameters() if p.is_floating_point()]
        self._entries: dict[str, Tensor] = {}

    def overlap(self, pair: Pair) -> int:
        """Return how many entries two weights have in common."""
        one, other = pair
        if one.parameter != other.parameter:
            return 0
        if one.index is None or other.index is None:
            return min(one.size, other.size)
        return int(torch.isin(self._of(one).flatten(), self._of(other).flatten()).sum())

    def _of(self, weight: Weight) -> Tensor:
        path = weight.parameter
        if path not in self._entries:
            parameter = self.parameters[path]
            self._entries[path] = torch.arange(parameter.numel()).view(parameter.shape)
        return self._entries[path][weight.index]


def _overlapping(named: Sequence[Weight], known: _Known, alike: str) -> Iterator[tuple[str, int, Pair]]:
    """Yield the pairs of weights that share entries, of those alike in layer, parameter and `alike`."""
    groups = defaultdict(list)
    for weight in named:
        groups[getattr(weight, alike), weight.layer, weight.parameter].append(weight)
    for (name, layer, _), members in groups.items():
        yield from ((name, layer, pair) for pair in combinations(members, 2) if known.overlap(pair))


def _twice(name: str, pair: Pair, known: _Known) -> UserError:
    """Return the error of a group that counts entries twice: its norm would be that of another matrix."""
    views = [one.parameter if one.index is None else f"{one.parameter}{_shown(one.index)}" for one in pair]
    return UserError(
        f"weights: the group {name} holds entries twice",
        got=f"{' and '.join(views)} have {known.overlap(pair)} entries in common",
        allowed="parameters or slices without a common entry",
        remedy="name every entry once in a group; other names may overlap with it",
    )


def _shown(index: Any) -> str:
    return f"[{index}]" if not isinstance(index, tuple) else str(list(index))


def _named(known: _Known, name: Any, spec: Any) -> list[Weight]:
    bare, at, layer = name.partition(_AT) if isinstance(name, str) else ("", "", "")
    if not bare or any(letter in name for letter in ",'\"[]{}$\\") or (at and not _is_layer(layer)):
        raise UserError(
            "weights: a name is plain text, perhaps with its layer behind @",
            got=plain(repr(name)),
            allowed=f"no commas, quotes, brackets, $ or backslashes; W_V, W_V@2, with a layer up to {_MOST_LAYER}",
            remedy="rename it",
        )
    specs = spec if isinstance(spec, list) else [spec]
    if not specs:
        raise UserError(
            f"weights: the group {name} is empty", got="[]", allowed="a list of parameters", remedy=_REMEDY
        )
    return [_weight(known, bare, int(layer or 0), one) for one in specs]


def _is_layer(text: str) -> bool:
    return (
        text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_LAYER)) and int(text) <= _MOST_LAYER
    )


def _weight(known: _Known, name: str, layer: int, spec: Any) -> Weight:
    path, index = spec if isinstance(spec, tuple) and len(spec) == 2 else (spec, None)
    if not isinstance(path, str) or path not in known.parameters:
        held = known.names
        raise UserError(
            f"weights: the network has no parameter {plain(repr(path))}",
            got=plain(f"{name}: {path}"),
            allowed=", ".join(held[:12]) + ", ..." * (len(held) > 12),
            remedy=did_you_mean(str(path)[:200], held) or "see network.named_parameters()",
        )
    parameter = known.parameters[path]
    size = _size(name, parameter, index)
    return Weight(name, known.first[id(parameter)], size, layer, index=_from_the_front(index, parameter.ndim))


def _size(name: str, parameter: Tensor, index: Any) -> int:
    """Return the entries of the view. Raises UserError where it lies outside its parameter, or is no view."""
    try:
        view = parameter if index is None else parameter[index]
        inside = view.numel() > 0 and _within(parameter, index)
        shared = inside and view.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
    except (IndexError, TypeError, RuntimeError, ValueError, OverflowError):
        inside = shared = False
    if not (inside and shared):
        raise UserError(
            f"weights: the slice of {name} is not one of its parameter",
            got=plain(repr(index)),
            allowed=f"a slice within shape {tuple(parameter.shape)}, e.g. numpy.s_[:4, :]",
            remedy="count rows and columns again: PyTorch's Linear stores (outputs, inputs)",
        )
    return int(view.numel())


def _from_the_front(index: Any, ndim: int) -> Any:
    """Return an index without an ellipsis, with an axis at least: products have the probes on an axis of their own."""
    if not (index is Ellipsis or isinstance(index, tuple | int)):
        return index
    given: list[Any] = list(index) if isinstance(index, tuple) else [index]
    places = list(given)
    if Ellipsis in places:
        at, missing = places.index(Ellipsis), ndim + 1 - sum(one is not None for one in places)
        places[at : at + 1] = [slice(None)] * missing
    if len(places) == ndim and all(isinstance(one, int) for one in places):
        places[-1] = slice(places[-1], places[-1] + 1 or None)
    return index if places == given else tuple(places)


def _within(parameter: Tensor, index: Any) -> bool:
    """Whether the slices end inside the parameter: Python's slices would be cut short silently."""
    slices = index if isinstance(index, tuple) else (index,)
    ends = zip(slices, parameter.shape, strict=False)
    return all(not isinstance(one, slice) or one.stop is None or -n <= one.stop <= n for one, n in ends)
