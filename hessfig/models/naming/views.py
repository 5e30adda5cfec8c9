"""Views of the parameters of a transformer, named by role: fused weights, heads, experts, biases and norms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hessfig.errors import UserError
from hessfig.models.blocks import attention_groups
from hessfig.models.naming.suggested import QKV, Held
from hessfig.terms import Group, Matrix
from hessfig.weights import Weight, bias_of

_ALL = slice(None)


@dataclass(frozen=True)
class _View:
    """The outputs `cut` of `total` along `axis`, distributed over `blocks` equal pieces of the axis."""

    axis: int
    total: int
    blocks: int
    cut: slice
    is_whole: bool

    @property
    def axes(self) -> tuple[int, ...]:
        if self.blocks == 1 or self.axis:
            return ()
        return (self.blocks, self.total // self.blocks)

    @property
    def indices(self) -> list[Any]:
        """Indices of these outputs: one, or one per piece of an axis that is not the first."""
        if self.is_whole:
            return [None]
        if self.blocks == 1:
            return [_at(self.axis, self.cut)]
        start, stop = self.cut.start // self.blocks, self.cut.stop // self.blocks
        if not self.axis:
            return [(_ALL, slice(start, stop))]
        return [self._in_block(block, start, stop) for block in range(self.blocks)]

    def head(self, at: int, heads: int, width: int) -> Any:
        """Return the index of one of the `heads` of these outputs."""
        block, place = divmod(at, heads // self.blocks)
        start = self.cut.start // self.blocks + place * width
        return self._in_block(block, start, start + width)

    def _in_block(self, block: int, start: int, stop: int) -> Any:
        if self.axes:
            return (block, slice(start, stop))
        below = block * (self.total // self.blocks)
        return _at(self.axis, slice(below + start, below + stop))


def named(held: Held) -> Iterator[Weight]:
    """Yield the weights along the outputs of a map, with their heads and experts.

    Raises UserError if the number of heads does not divide the outputs.
    """
    axis = held.outputs
    total = 0
    sizes = _sizes(held, held.shape[axis])
    by = held.role.partition(" by ")[2]
    blocks = int(by) if by.isdigit() else 1
    if by == "heads":
        blocks = _groups(held, sizes)
    for place, (name, size) in enumerate(zip(held.names, sizes, strict=True)):
        cut = slice(total, total + size)
        if by == "entries":
            cut = slice(place, None, len(sizes))
        view = _View(axis, held.shape[axis], blocks, cut, is_whole=len(sizes) == 1)
        yield from _parts(held, f"{name}{held.suffix}", size, view)
        total += size


def _parts(held: Held, name: str, size: int, view: _View) -> Iterator[Weight]:
    """Yield one weight or bias, and its heads and experts, which count from 1."""
    entries = held.size // held.shape[view.axis] * size
    axes = view.axes
    indices = view.indices
    if held.is_of_attention:
        groups = attention_groups(name)
    else:
        groups = (Group.mlp.value,)
    whole = Weight(
        name, held.path, entries // len(indices), held.layer, groups, axes=axes
    )
    if held.is_bias:
        whole = replace(
            bias_of(name, held.path, whole.size, held.layer, Group(groups[0])),
            axes=axes,
        )
    yield from (replace(whole, index=index) for index in indices)
    if held.is_bias:
        return
    finer = replace(whole, groups=(), is_main=False, is_finer=True)
    pieces = {
        "head": _heads_of(held, name, size, view),
        "expert": _experts_of(held, view),
    }
    for word, parts in pieces.items():
        for at, index in parts.items():
            called = f"{name}.{word}{at + 1}"
            yield replace(finer, name=called, size=entries // len(parts), index=index)


def _heads_of(held: Held, name: str, size: int, view: _View) -> dict[int, Any]:
    """Return the index of every head in a matrix of queries, keys or values, and in W_O."""
    head = held.width
    if len(held.shape) != 2 or not head or not held.has_heads:
        return {}
    if name in QKV and size % head == 0:
        return {at: view.head(at, size // head, head) for at in range(size // head)}
    if name == Matrix.W_O and held.shape[1 - held.outputs] == held.heads * head:
        return {
            at: _at(1 - held.outputs, slice(at * head, (at + 1) * head))
            for at in range(held.heads)
        }
    return {}


def _groups(held: Held, sizes: list[int]) -> int:
    """Return the number of groups of heads, which is the number of heads of keys."""
    if Matrix.W_K not in held.names or not held.width:
        return held.heads or 1
    return sizes[held.names.index(Matrix.W_K)] // held.width


def _sizes(held: Held, total: int) -> list[int]:
    """Return the number of outputs of each weight of a map. Raises UserError if the heads do not divide it."""
    if not {*held.names} >= {*QKV}:
        return [total // len(held.names)] * len(held.names)
    queries = held.heads * held.width
    shared = (total - queries) // 2
    if not queries or shared <= 0 or shared % held.width:
        raise UserError(
            f"weights: the outputs of {held.path} are not those of queries, and as many keys as values, in heads",
            got=f"{total} outputs, {held.heads} heads of width {held.width} by the configuration",
            allowed="network.config with num_attention_heads (and head_dim) that fit",
            remedy="weights={NAME: (PARAMETER, SLICE)} for your own names",
        )
    return [queries if name == Matrix.W_Q else shared for name in held.names]


def _experts_of(held: Held, view: _View) -> dict[int, Any]:
    """Return the index of every expert in a map of all experts, or of the expert to which the map belongs."""
    if number := re.search(r"experts\.(\d+)\.", held.path):
        return {int(number[1]): view.indices[0]}
    if ".experts." not in held.where or len(held.shape) != 3:
        return {}
    rest = (view.indices[0] or (_ALL,))[1:]
    return {at: (at, *rest) if rest else at for at in range(held.shape[0])}


def columns_of(weight: Weight, shape: tuple[int, ...], axis: int) -> Tensor:
    """Return the indices of a weight along an axis of its parameter."""
    numbers = torch.arange(shape[axis], device="cpu").reshape(
        [-1 if at == axis else 1 for at in range(len(shape))]
    )
    shaped = numbers.unflatten(0, weight.axes) if weight.axes else numbers
    return (shaped if weight.index is None else shaped[weight.index]).flatten()


def _at(axis: int, cut: slice) -> Any:
    if axis:
        return (_ALL,) * axis + (cut,)
    return cut


def own(held: Held) -> Weight:
    """Return a parameter under its own name: gains and shifts of norms, and parameters without a role."""
    if held.layer:
        place = held.where.partition(".")[2] or held.where
    else:
        place = held.where
    if held.is_of_norm:
        name = f"{place}_{'shift' if held.is_bias else 'gain'}"
        return Weight(
            name, held.path, held.size, held.layer, (Group.norms.value,), is_main=False
        )
    groups = (Group.biases.value,) * held.is_bias
    return Weight(
        place + ".bias" * held.is_bias,
        held.path,
        held.size,
        held.layer,
        groups,
        is_main=len(held.shape) > 1,
    )
