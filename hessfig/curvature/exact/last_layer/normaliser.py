"""LayerNorm at given rows: its Jacobian and its contracted second derivative, each diagonal plus low rank."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Identity:
    """No normalisation."""

    is_curved = False

    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.output = rows

    def push(self, columns: Float[Tensor, "#n d k"]) -> Float[Tensor, "#n d k"]:
        """Return J columns."""
        return columns

    def pull(self, rows: Float[Tensor, "#n r d"]) -> Float[Tensor, "#n r d"]:
        """Return rows J."""
        return rows


class LayerNormAt:
    """LayerNorm y = g o n + b, n = C x / s, s^2 = |C x|^2 / d + eps, C = I - 1 1^T / d, at rows x.

    J = diag(g / s) (I - B B^T) with B = [1, n] / sqrt(d) (theory: ln1).
    """

    is_curved = True

    def __init__(self, norm: nn.LayerNorm, rows: Float[Tensor, "n d"]) -> None:
        self.gain, self.dim = norm.weight, rows.shape[-1]
        centred = rows - rows.mean(dim=-1, keepdim=True)
        self.scale = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
        self.direction = centred / self.scale
        self.output = self.gain * self.direction + norm.bias
        self._ones = torch.ones_like(rows)
        self._basis = torch.stack([self._ones, self.direction], dim=-1) / self.dim**0.5
        self._stretch = self.gain / self.scale

    def push(self, columns: Float[Tensor, "#n d k"]) -> Float[Tensor, "#n d k"]:
        """Return J columns (columns may have one item for all)."""
        columns = columns.expand(len(self.scale), -1, -1)
        tangent = torch.baddbmm(columns, self._basis, self._basis.mT @ columns, alpha=-1)
        return tangent.mul_(self._stretch[:, :, None])

    def pull(self, rows: Float[Tensor, "#n r d"]) -> Float[Tensor, "#n r d"]:
        """Return rows J (rows may have one item for all)."""
        stretched = rows * self._stretch[:, None]
        return stretched.baddbmm_(stretched @ self._basis, self._basis.mT, alpha=-1)

    def bend(
        self, gradient: Float[Tensor, "n d"], columns: Float[Tensor, "#n d k"]
    ) -> Float[Tensor, "#n d k"]:
        """Return Lambda columns: Lambda is the second derivative contracted with the output's gradient (theory: ln2).

        Lambda = -[(r.n) C + n (C r)^T + (C r) n^T] / (d s^2) + 3 (r.n) n n^T / (d^2 s^2) with r = g o gradient,
        written as a I + W S W^T with W = [1, n, C r].
        """
        pulled, square = gradient * self.gain, self.dim * self.scale.square()
        along = (pulled * self.direction).sum(dim=-1, keepdim=True)
        directions = torch.stack(
            [self._ones, self.direction, pulled - pulled.mean(dim=-1, keepdim=True)], dim=-1
        )
        small = torch.zeros(len(square), 3, 3).to(square)
        small[:, 0, 0], small[:, 1, 1] = (
            (along / square / self.dim)[:, 0],
            (3 * along / square / self.dim)[:, 0],
        )
        small[:, 1, 2] = small[:, 2, 1] = -1 / square[:, 0]
        bent = columns * (-along / square)[:, :, None]
        return bent.baddbmm_(directions, small @ (directions.mT @ columns))


Normaliser = Identity | LayerNormAt
