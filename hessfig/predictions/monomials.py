"""Sums of monomials in the input and two marked weights, of which only the lowest power of the input is kept.

A sum is a table {(power of row, power of col): lowest power of the input}; powers of a weight count up to 2,
which then means `2 or more`. Adding takes the lower entry, multiplying adds the powers (min-plus algebra).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hessfig.terms import Block, Matrix

Powers = tuple[int, int]


@dataclass(frozen=True)
class Monomials:
    """The lowest power of the input for every pair of powers of a block's two weights."""

    table: dict[Powers, int]

    @classmethod
    def one(cls) -> Monomials:
        """Return the constant."""
        return cls({(0, 0): 0})

    @classmethod
    def input(cls) -> Monomials:
        """Return one power of the input."""
        return cls({(0, 0): 1})

    @classmethod
    def weight(cls, block: Block, matrix: Matrix, layer: int) -> Monomials:
        """Return `matrix` of `layer` (0: none), marked if it is the block's row or off-diagonal column."""
        here = layer in (0, block.layer)
        is_row = here and matrix == block.row
        is_col = here and matrix == block.col and not block.is_diagonal
        return cls({(int(is_row), int(is_col)): 0})

    def __add__(self, other: Monomials) -> Monomials:
        table = dict(self.table)
        for key, power in other.table.items():
            table[key] = min(table.get(key, power), power)
        return Monomials(table)

    def __mul__(self, other: Monomials) -> Monomials:
        table: dict[Powers, int] = {}
        for (row, col), power in self.table.items():
            for (other_row, other_col), other_power in other.table.items():
                key = (min(row + other_row, 2), min(col + other_col, 2))
                table[key] = min(table.get(key, power + other_power), power + other_power)
        return Monomials(table)

    def lowest(self, *, row: int = 0, col: int = 0) -> float:
        """Return the lowest input power among monomials with at least these powers of the weights, or inf."""
        powers = (power for (r, c), power in self.table.items() if r >= row and c >= col)
        return float(min(powers, default=math.inf))
