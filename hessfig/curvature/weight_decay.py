"""What weight decay adds to the products of a column: a multiple of the identity."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.column import SPLIT, Column, Products, Rows
from hessfig.curvature.problem import Objective
from hessfig.terms import Part
from hessfig.weights import Weight


class DecayedColumn:
    """A column of the Hessian of a loss with decay / 2 |w|^2: H and H_f of a weight with itself have decay I added.

    The term depends on weights directly, not through the outputs, so that it is no part of H_o = J^T B J.
    """

    def __init__(self, column: Column, problem: Objective, layer: int, col: str, rows: Rows) -> None:
        self.column, self.decay = column, problem.decay
        self.dim, self.shape, self.dtype = column.dim, column.shape, column.dtype
        own = _spans(problem.layout.side(layer, col))
        self.shared = {
            key: [(there, own[path]) for path, there in _spans(problem.layout.side(*at)).items() if path in own]
            for key, at in rows.items()
        }

    @property
    def bytes_per_probe(self) -> int:
        """Memory the products of one probe take, counted from above."""
        return self.column.bytes_per_probe

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V, keyed (row, part), for every row and each of `parts`."""
        products = self.column.split_matmat(probes, parts)
        return {
            (key, part): product if part == Part.H_o else self._decayed(product, probes, self.shared[key])
            for (key, part), product in products.items()
        }

    def _decayed(self, product: Tensor, probes: Tensor, shared: list[tuple[slice, slice]]) -> Tensor:
        found = product.clone()
        for there, here in shared:
            found[there] += self.decay * probes[here].to(found)
        return found


def _spans(side: Sequence[Weight]) -> dict[str, slice]:
    """Return where every whole parameter stands among the entries of one side of a block."""
    stops = list(accumulate(weight.size for weight in side))
    return {weight.parameter: slice(stop - weight.size, stop) for weight, stop in zip(side, stops, strict=True)}
