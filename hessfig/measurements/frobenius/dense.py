"""Blocks as matrices, column by column, for models small enough."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.column import Column, chunks
from hessfig.measurements.estimate import Estimate
from hessfig.terms import Part

COLUMNS_AT_ONCE = 64


def dense_blocks(column: Column) -> dict[tuple[Hashable, Part], Float[Tensor, "n dim"]]:
    """Return H_o and H_f of every row of `column` by multiplying with the identity, chunk by chunk."""
    identity = torch.eye(column.dim, dtype=column.dtype)
    pieces = [column.split_matmat(chunk) for chunk in chunks(identity, column, COLUMNS_AT_ONCE)]
    return {key: torch.cat([piece[key] for piece in pieces], dim=1) for key in pieces[0]}


def dense_norms(column: Column, parts: Sequence[Part]) -> dict[tuple[Hashable, Part], Estimate]:
    """Return the exact ||.||_F of every row and part of `column`."""
    blocks = dense_blocks(column)
    for row in dict.fromkeys(row for row, _ in blocks):
        blocks[row, Part.H] = blocks[row, Part.H_o] + blocks[row, Part.H_f]
    return {
        (row, part): Estimate(float(block.norm()), 0.0, 0) for (row, part), block in blocks.items() if part in parts
    }
