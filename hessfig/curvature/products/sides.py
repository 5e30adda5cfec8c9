"""The sides of a column of blocks: where its weights stand in their parameters, and products read off there."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.column import Products, Rows, rows_of
from hessfig.curvature.problem import Problem
from hessfig.models.protocol import Weight
from hessfig.terms import Part


class Sides:
    """A column's weights and its rows', each a parameter or a view of one, one weight or several (a group).

    `parameters` are those that hold them, each once: what is differentiated.
    """

    def __init__(self, problem: Problem, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        self.col = problem.layout.side(layer, col)
        self.rows = {key: problem.layout.side(*at) for key, at in rows_of(layer, rows).items()}
        self.weights = [*self.col, *(weight for row in self.rows.values() for weight in row)]
        self.places = {
            path: place for place, path in enumerate(dict.fromkeys(w.parameter for w in self.weights))
        }
        self.parameters = [problem.network.get_parameter(path) for path in self.places]

    @property
    def dim(self) -> int:
        """Number of columns: entries of `col`."""
        return sum(weight.size for weight in self.col)

    @property
    def shape(self) -> torch.Size:
        """Shape of the column's weight; (dim,) for several."""
        if len(self.col) > 1:
            return torch.Size([self.dim])
        return view_of(self.parameters[0], self.col[0]).shape

    def spread(self, probes: Float[Tensor, "dim k"]) -> list[Tensor]:
        """Put the probes where the column's weights stand in their parameters, zeros elsewhere: (*shape, k) each."""
        k, pieces = probes.shape[1], probes.split([weight.size for weight in self.col])
        columns = [
            torch.zeros(*p.shape, k, dtype=probes.dtype, device=probes.device) for p in self.parameters
        ]
        for weight, piece in zip(self.col, pieces, strict=True):
            target = view_of(columns[self.places[weight.parameter]], weight)
            target += piece.unflatten(0, target.shape[:-1])
        return columns

    def gathered(self, products: Mapping[Part, Sequence[Tensor]]) -> Products:
        """Read the products of every row off those of the parameters, keyed (row, part)."""
        found: dict[tuple[Hashable, Part], Tensor] = {}
        for key, row in self.rows.items():
            for part, product in products.items():
                found[key, part] = self._gather(product, row)
        return found

    def _gather(self, products: Sequence[Tensor], row: Sequence[Weight]) -> Float[Tensor, "n k"]:
        views = [view_of(products[self.places[weight.parameter]], weight) for weight in row]
        flat = [view.reshape(prod(view.shape[:-1]), -1) for view in views]
        return flat[0] if len(flat) == 1 else torch.cat(flat)


def view_of(tensor: Tensor, weight: Weight) -> Tensor:
    """Return the entries of `weight` in a tensor of its parameter's shape (further axes behind)."""
    whole = tensor.unflatten(0, weight.axes) if weight.axes else tensor
    return whole if weight.index is None else whole[weight.index]
