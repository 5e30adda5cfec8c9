"""Steps without weights of interest: sums, row selections, copies, LayerNorm and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

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


class Normalise:
    """LayerNorm: n = C x / s, y = w n + b, with C the centring matrix and s^2 = |C x|^2 / d + eps."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, norm: nn.LayerNorm) -> None:
        self.inputs, self.output, self.value, self.weight = inputs, output, norm(x), norm.weight
        centred = x - x.mean(-1, keepdim=True)
        self.s = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt().unsqueeze(2)
        self.n = centred.unsqueeze(2) / self.s

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Apply w (C - n n^T / d) / s."""
        return None if dxs[0] is None else self.weight * self._project(dxs[0])

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        first = None if dy_bar is None else self._project(self.weight * dy_bar)
        return [first if dxs is None or dxs[0] is None else plus(first, self._second_order(dxs[0]))]

    def _second_order(self, dx: Float[Tensor, "batch length k d"]) -> Float[Tensor, "batch length k d"]:
        """Apply the second derivative contracted with r = w ybar (theory.md, ln2).

        Lambda = (3 (r.n) n n^T / d - (r.n) C - n (C r)^T - (C r) n^T) / (d s^2).
        """
        assert self.cotangent is not None
        r = (self.weight * self.cotangent).unsqueeze(2)
        centred_r, d = r - r.mean(-1, keepdim=True), r.shape[-1]
        rn, ndx = (r * self.n).sum(-1, keepdim=True), (self.n * dx).sum(-1, keepdim=True)
        along_n = 3 * rn * ndx / d - (centred_r * dx).sum(-1, keepdim=True)
        centred_dx = dx - dx.mean(-1, keepdim=True)
        return (along_n * self.n - rn * centred_dx - ndx * centred_r) / (d * self.s.square())

    def _project(self, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(-1, keepdim=True)
        return (centred - self.n * (self.n * rows).mean(-1, keepdim=True)) / self.s


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
