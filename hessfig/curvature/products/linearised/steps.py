"""Steps without weights: sums, row selections, copies and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hessfig.config import MLP
from hessfig.curvature.products.linearised.node import Tangent, plus


class Sum:
    """y = x1 + x2 (a skip connection)."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, values: Sequence[Tensor]) -> None:
        self.inputs, self.output, self.value = inputs, output, values[0] + values[1]

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return plus(dxs[0], dxs[1])

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return [dy_bar if need else None for need in needed]


class Select:
    """y = the rows of x at `positions`."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, positions: slice) -> None:
        self.inputs, self.output, self.positions, self.length = inputs, output, positions, x.shape[1]
        self.value = x[:, positions]

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return None if dxs[0] is None else dxs[0][:, self.positions]

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        if dy_bar is None:
            return [None]
        rows = dy_bar.new_zeros(dy_bar.shape[0], self.length, *dy_bar.shape[2:])
        rows[:, self.positions] = dy_bar
        return [rows]


class Gather:
    """y = the rows of x that `index` names (batch, length); x holds every row once, in a batch of one."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, index: Tensor) -> None:
        self.inputs, self.output, self.number, self.index = inputs, output, x.shape[1], index
        self.value = self._rows(x)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return None if dxs[0] is None else self._rows(dxs[0])

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        if dy_bar is None:
            return [None]
        rows = dy_bar.new_zeros(self.number, *dy_bar.shape[2:])
        return [rows.index_add_(0, self.index.flatten(), dy_bar.flatten(0, 1)).unsqueeze(0)]

    def _rows(self, x: Tensor) -> Tensor:
        return x[0].index_select(0, self.index.flatten()).unflatten(0, self.index.shape)


class Repeat:
    """y = x once per head (the keys of the single-matrix query-key form)."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, heads: int) -> None:
        self.inputs, self.output, self.heads, self.value = inputs, output, heads, x.repeat(1, 1, heads)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return None if dxs[0] is None else dxs[0].repeat(1, 1, 1, self.heads)

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return [None if dy_bar is None else dy_bar.unflatten(-1, (self.heads, -1)).sum(-2)]


class Activate:
    """Elementwise activation of the MLP; `curvature` (phi'') is None when it is piecewise linear."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, z: Tensor, mlp: Any, kind: MLP) -> None:
        self.inputs, self.output, self.value = inputs, output, mlp.act(z)
        slope, self.curvature = _DERIVATIVES[kind](z)
        self.slope = slope.unsqueeze(2)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return None if dxs[0] is None else self.slope * dxs[0]

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        first = None if dy_bar is None else self.slope * dy_bar
        if dxs is None or dxs[0] is None or self.curvature is None or self.cotangent is None:
            return [first]
        return [plus(first, (self.curvature * self.cotangent).unsqueeze(2) * dxs[0])]


def _relu(z: Tensor) -> tuple[Tensor, Tensor | None]:
    return (z > 0).to(z.dtype), None


def _gelu(z: Tensor) -> tuple[Tensor, Tensor | None]:
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(z) + z * density, (2 - z.square()) * density


def _linear(z: Tensor) -> tuple[Tensor, Tensor | None]:
    return torch.ones_like(z[..., :1]), None


_DERIVATIVES = {MLP.relu: _relu, MLP.gelu: _gelu, MLP.linear: _linear}
