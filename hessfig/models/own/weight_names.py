"""Names of weights given by a user: parameters, slices of parameters and groups, with their layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from hessfig.curvature.problem import real_parameters
from hessfig.errors import UserError, did_you_mean, plain
from hessfig.weights import Layout, Weight, every_parameter

TRAINABLE = "trainable"
FOUND = "found"
Pair = tuple[Weight, Weight]
_AT = "@"
_TAKEN = {"all": "the whole network", "each": "every weight by itself"}
_MOST_LAYER = 10_000  # as model.n_layers
_REMEDY = 'for example weights={"W_V@1": "layers.0.value.weight"}'


def named_layout(network: nn.Module, weights: Any) -> Layout:
    """Return the layout of `weights`; by default, every parameter by its own name.

    A parameter with several names is listed under the first; a parameter without
    entries (LoRA of rank 0) is not listed. Raises UserError for names that do not fit,
    and for a group that contains an entry twice.
    """
    sizes = {name: one.numel() for name, one in real_parameters(network).items()}
    empty = tuple(name for name, size in sizes.items() if not size)
    filled = ((name, size) for name, size in sizes.items() if size)
    whole = replace(every_parameter(filled), empty=empty)
    if weights is None or weights == TRAINABLE:
        for weight in whole.weights:
            _check_free(
                weight.name,
                f'weights={{"mine": "{weight.name}", ...}}, with a name for every weight',
            )
        return whole
    if isinstance(weights, Layout):
        return weights
    if not isinstance(weights, Mapping) or not weights:
        raise UserError(
            "weights: no names of weights",
            got=plain(repr(weights)),
            allowed="{name: parameter}, None for every parameter by its own name, 'trainable' for those trained, or "
            "'found' for those of a transformer by what they do",
            remedy=_REMEDY,
        )
    known = _Known(network)
    named = [
        weight for name, spec in weights.items() for weight in _named(known, name, spec)
    ]
    for name, layer, pair in _overlapping(named, known, "name"):
        raise _twice(f"{name}{_AT}{layer}" if layer else str(name), pair, known)
    shared = [
        pair for _, layer, pair in _overlapping(named, known, "parameter") if layer
    ]
    return Layout(tuple(named), whole.weights, shared=tuple(shared), empty=whole.empty)


class _Known:
    """The parameters of a network: the first name of each, and the entries of its views."""

    def __init__(self, network: nn.Module) -> None:
        self.first = {id(p): name for name, p in network.named_parameters()}
        every = network.named_parameters(remove_duplicate=False)
        self.parameters = {name: p for name, p in every if p.is_floating_point()}
        self.names = [*real_parameters(network)]
        self._entries: dict[str, Tensor] = {}

    def overlap(self, pair: Pair) -> int:
        """Return the number of entries that two weights share."""
        first, second = pair
        if first.parameter != second.parameter:
            return 0
        return int(
            torch.isin(self._of(first).flatten(), self._of(second).flatten()).sum()
        )

    def are_apart(self, weights: Sequence[Weight]) -> bool:
        """Whether no two weights of one parameter share an entry, checked once for all weights."""
        entries = torch.cat([self._of(one).flatten() for one in weights])
        return len(entries.unique()) == len(entries)

    def _of(self, weight: Weight) -> Tensor:
        path = weight.parameter
        if path not in self._entries:
            parameter = self.parameters[path]
            self._entries[path] = torch.arange(parameter.numel()).view(parameter.shape)
        return self._entries[path][weight.index]


def _overlapping(
    named: Sequence[Weight], known: _Known, alike: str
) -> Iterator[tuple[str, int, Pair]]:
    """Yield the pairs of weights that share entries, among those with equal layer, parameter and `alike`."""
    groups = defaultdict(list)
    for weight in named:
        groups[getattr(weight, alike), weight.layer, weight.parameter].append(weight)
    for (name, layer, _), members in groups.items():
        if len(members) > 1 and not known.are_apart(members):
            yield from (
                (name, layer, pair)
                for pair in combinations(members, 2)
                if known.overlap(pair)
            )


def _twice(name: str, pair: Pair, known: _Known) -> UserError:
    """Return the error for a group that counts entries twice, whose norm would be that of another matrix."""
    views = [
        one.parameter if one.index is None else f"{one.parameter}{_shown(one.index)}"
        for one in pair
    ]
    return UserError(
        f"weights: the group {name} contains entries twice",
        got=f"{' and '.join(views)} have {known.overlap(pair)} entries in common",
        allowed="parameters or slices without a common entry",
        remedy="name every entry once in a group; other names may overlap with it",
    )


def _shown(index: Any) -> str:
    if not isinstance(index, tuple):
        return f"[{index}]"
    return str(list(index))


def _check_free(name: str, remedy: str) -> None:
    if name in _TAKEN:
        what = f"weights: the name {name} is taken: blocks={name} is {_TAKEN[name]}"
        raise UserError(what, got=name, allowed="any other name", remedy=remedy)


def _named(known: _Known, name: Any, spec: Any) -> list[Weight]:
    bare, at, layer = name.partition(_AT) if isinstance(name, str) else ("", "", "")
    if (
        not bare
        or any(letter in name for letter in ",'\"[]{}$\\")
        or (at and not _is_layer(layer))
    ):
        raise UserError(
            "weights: a name is plain text, optionally with its layer after @",
            got=plain(repr(name)),
            allowed=f"no commas, quotes, brackets, $ or backslashes; W_V, W_V@2, with a layer up to {_MOST_LAYER}",
            remedy="rename it",
        )
    _check_free(bare, "rename it")
    specs = [one for part in _members(spec) for one in _by_rows(known, part)]
    if not specs:
        raise UserError(
            f"weights: the group {name} is empty",
            got="[]",
            allowed="a list of parameters",
            remedy=_REMEDY,
        )
    return [_weight(known, bare, int(layer or 0), one) for one in specs]


def _members(spec: Any) -> list[Any]:
    """Return the members of a group, a list or tuple of names and pairs; a single pair (name, index) is one member."""
    is_pair = (
        isinstance(spec, tuple)
        and len(spec) == 2
        and isinstance(spec[0], str)
        and not _is_named(spec[1])
    )
    if isinstance(spec, list | tuple) and not is_pair:
        return list(spec)
    return [spec]


def _is_named(spec: Any) -> bool:
    return isinstance(spec, str) or (
        isinstance(spec, list | tuple) and len(spec) > 0 and isinstance(spec[0], str)
    )


def _by_rows(known: _Known, spec: Any) -> list[Any]:
    """Return the slices for a list of rows: ("emb.weight", [0, 2, 3]) means the slices [0:1] and [2:4]."""
    if not isinstance(spec, tuple) or len(spec) != 2 or spec[0] not in known.parameters:
        return [spec]
    path, index = spec
    if isinstance(index, Tensor | numpy.ndarray) and index.ndim == 1:
        numbers = index.tolist()
    else:
        numbers = index
    is_rows = isinstance(numbers, list | range) and all(
        isinstance(one, int | numpy.integer) for one in numbers
    )
    if not is_rows or any(isinstance(one, bool) for one in numbers):
        return [spec]
    count = len(known.parameters[path]) if known.parameters[path].ndim else 0
    spans = list[list[int]]()
    for row in numbers:
        if not -count <= row < count:
            return [spec]
        place = int(row) % count
        if spans and spans[-1][1] == place:
            spans[-1][1] += 1
        else:
            spans.append([place, place + 1])
    return [(path, slice(*span)) for span in spans]


def _is_layer(text: str) -> bool:
    return (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(_MOST_LAYER))
        and int(text) <= _MOST_LAYER
    )


def _weight(known: _Known, name: str, layer: int, spec: Any) -> Weight:
    path, index = spec if isinstance(spec, tuple) and len(spec) == 2 else (spec, None)
    if not isinstance(path, str) or path not in known.parameters:
        names = known.names
        raise UserError(
            f"weights: the network has no parameter {plain(repr(path))}",
            got=plain(f"{name}: {path}"),
            allowed=", ".join(names[:12]) + ", ..." * (len(names) > 12),
            remedy=did_you_mean(str(path)[:200], names)
            or "see network.named_parameters()",
        )
    parameter = known.parameters[path]
    size = _size(name, parameter, index)
    return Weight(
        name,
        known.first[id(parameter)],
        size,
        layer,
        index=_from_the_front(index, parameter.ndim),
    )


def _size(name: str, parameter: Tensor, index: Any) -> int:
    """Return the number of entries of a view. Raises UserError if it exceeds its parameter, or is not a view."""
    size = 0
    with suppress(IndexError, TypeError, RuntimeError, ValueError, OverflowError):
        view = parameter if index is None else parameter[index]
        memory, own = (one.untyped_storage() for one in (view, parameter))
        if _within(parameter, index) and memory.data_ptr() == own.data_ptr():
            size = int(view.numel())
    if not parameter.numel():
        raise UserError(
            f"weights: the parameter of {name} has no entries",
            got=f"shape {tuple(parameter.shape)}",
            allowed="parameters with one entry or more",
            remedy="leave it out",
        )
    if _steps_back(index):
        raise UserError(
            f"weights: the slice of {name} has a negative step, which torch does not have",
            got=plain(repr(index)),
            allowed="slices with a positive step",
            remedy="the same entries in ascending order, such as numpy.s_[1:5] for numpy.s_[4:0:-1]: order changes no "
            "norm and no eigenvalue",
        )
    if not size:
        raise UserError(
            f"weights: the slice of {name} is not one of its parameter",
            got=plain(repr(index)),
            allowed=f"a slice within shape {tuple(parameter.shape)}, such as numpy.s_[:4, :], or rows: [0, 2, 5]",
            remedy="count rows and columns again: PyTorch's Linear stores (outputs, inputs)",
        )
    return size


def _from_the_front(index: Any, ndim: int) -> Any:
    """Return an index without an ellipsis and with at least one axis, since products have a further axis for probes."""
    if not ndim or not (index is Ellipsis or isinstance(index, tuple | int)):
        if ndim:
            return index
        return None
    given: list[Any] = list(index) if isinstance(index, tuple) else [index]
    places = list(given)
    if Ellipsis in places:
        at = places.index(Ellipsis)
        missing = ndim + 1 - sum(one is not None for one in places)
        places[at : at + 1] = [slice(None)] * missing
    if len(places) == ndim and all(isinstance(one, int) for one in places):
        places[-1] = slice(places[-1], places[-1] + 1 or None)
    if places == given:
        return index
    return tuple(places)


def _steps_back(index: Any) -> bool:
    """Whether a slice of an index has a negative step."""
    places = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, slice) and (one.step or 1) < 0 for one in places)


def _within(parameter: Tensor, index: Any) -> bool:
    """Whether all slices start and end inside the parameter; Python would silently shorten others."""
    full = _from_the_front(index, parameter.ndim)
    places = full if isinstance(full, tuple) else (full,)
    axes = [one for one in places if one is not None]
    for one, length in zip(axes, parameter.shape, strict=False):
        if not isinstance(one, slice):
            continue
        for end in (one.start, one.stop):
            if end is not None and not -length <= end <= length:
                return False
    return True
