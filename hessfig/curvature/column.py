"""A column of blocks as operators: what every estimator sees of a network, in chunks that bound memory."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from hessfig.curvature.problem import Objective
from hessfig.curvature.rounding import unit_of
from hessfig.terms import AT_OUTPUTS, Part, split_in
from hessfig.weights import Weight

PROBES_AT_ONCE = 5
MEMORY_BOUND = 1 * 2**30
SPLIT = AT_OUTPUTS
Products = dict[tuple[Hashable, Part], Float[Tensor, "n k"]]
Rows = Mapping[Any, tuple[int, str]]


def rows_of(layer: int, rows: Sequence[str] | Rows) -> Rows:
    """Return {key: (layer, name)} of a column's rows; names alone are keys themselves, of the column's layer."""
    return rows if isinstance(rows, Mapping) else {row: (layer, row) for row in rows}


@runtime_checkable
class Column(Protocol):
    """Blocks of one column of the Hessian, as operators."""

    @property
    def dim(self) -> int:
        """Entries of the column's weights."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the column's weight; (dim,) for several, or for a view."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the products."""

    @property
    def bytes_per_probe(self) -> int:
        """Memory the products of one probe take, counted from above."""

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V, keyed (row, part), for every row of the column and exactly the `parts` asked for.

        What is not asked for is not computed. H V comes from one product of its own, cheaper than H_o V and H_f V
        together and equal to their sum up to rounding; where all three are asked for it is that sum, to the bit.
        """


def chunks(probes: Float[Tensor, "dim k"], column: Column, at_once: int) -> Iterator[Tensor]:
    """Split the columns of `probes` into chunks of `at_once`, fewer where their products would exceed MEMORY_BOUND.

    The size of a chunk follows from the problem alone, never from the machine: matrix products of another shape
    may round differently, and the same settings must give the same bits everywhere. Five probes at once are also
    the fastest (scripts/benchmarks/norms.py): their tangents still fit the cache.
    """
    yield from probes.split(max(1, min(at_once, int(MEMORY_BOUND / column.bytes_per_probe))), dim=1)


def multiplied(
    column: Column, vectors: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT, at_once: int = PROBES_AT_ONCE
) -> Products:
    """Return A V, keyed (row, part), for every row and each of `parts`, `at_once` of the vectors at a time."""
    pieces = [column.split_matmat(chunk, parts) for chunk in chunks(vectors.to(column.dtype), column, at_once)]
    return {key: torch.cat([piece[key] for piece in pieces], dim=1) for key in pieces[0]}


@dataclass(frozen=True)
class Squares:
    """Squared lengths over the square of a `unit`, which is 1 where they are neither too small nor too large."""

    values: Float[Tensor, " k"]
    unit: float = 1.0

    @classmethod
    def joined(cls, pieces: Sequence["Squares"]) -> "Squares":
        """Return those of several chunks in the largest of their units."""
        unit = max((piece.unit for piece in pieces if bool(piece.values.any())), default=1.0)
        return cls(torch.cat([piece._over(unit) for piece in pieces]), unit)

    def _over(self, unit: float) -> Tensor:
        return (
            self.values if unit == self.unit or not bool(self.values.any()) else self.values * (self.unit / unit) ** 2
        )


def squared_norms(
    column: Column, parts: Sequence[Part], probes: Float[Tensor, "dim k"]
) -> dict[tuple[Hashable, Part], Squares]:
    """Return ||A v_k||^2 for every row and part."""
    return lengths(column.split_matmat(probes, summands(parts)), parts)


def summands(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the products that give `parts` when H V is taken as the sum of two: H_o V + H_f V, or those at the scores.

    The sum is at the scores where both of its terms are asked for there and not both at the outputs.
    """
    if Part.H not in parts:
        return tuple(parts)
    others = [part for part in parts if part != Part.H and part not in AT_OUTPUTS]
    return tuple(dict.fromkeys([*(split_in(parts) or SPLIT), *others, *(p for p in parts if p in AT_OUTPUTS)]))


def to_multiply(parts: Sequence[Part]) -> list[Part]:
    """Return the products an engine makes for `parts`: H V is not made where both of its summands are."""
    return [part for part in dict.fromkeys(parts) if part != Part.H or not split_in(parts)]


def completed(products: Products, parts: Sequence[Part]) -> Products:
    """Return `products` with the sums H V that `parts` has besides its summands."""
    rows = dict.fromkeys(row for row, _ in products)
    return {(row, part): _part_of(products, row, part) for row in rows for part in parts}


def lengths(products: Products, parts: Sequence[Part]) -> dict[tuple[Hashable, Part], Squares]:
    """Return the squared lengths of products for every row and part; H v is the sum of its two terms."""
    rows = dict.fromkeys(row for row, _ in products)
    return {(row, part): _columnwise(_part_of(products, row, part)) for row in rows for part in parts}


def _part_of(products: Products, row: Hashable, part: Part) -> Tensor:
    if part == Part.H and (row, part) not in products:
        first, second = split_in([there for key, there in products if key == row])
        return products[row, first] + products[row, second]
    return products[row, part]


def _columnwise(products: Float[Tensor, "n k"]) -> Squares:
    """Sum over contiguous memory: over strided columns the order of the sum would depend on their number."""
    rows = products.T.contiguous()
    sums = rows.square().sum(dim=1)
    is_usual = torch.finfo(sums.dtype).tiny <= float(sums.max()) < math.inf
    unit = 1.0 if is_usual else unit_of(rows)
    return Squares(sums) if unit == 1.0 else Squares((rows.double() / unit).square().sum(dim=1), unit)


class SidedColumn:
    """The blocks (row, col) for one `col` of `layer` and several rows, acting on vectors in col's space.

    A side of a block is one weight or several (a group), each a parameter or a view of one. `parameters` are those
    that hold the weights of all sides, each once: what is differentiated. `dim` counts the entries of `col`; `shape` is
    that of its weight, (dim,) for several.
    """

    def __init__(self, objective: Objective, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        self.col = objective.layout.side(layer, col)
        self.rows = {key: objective.layout.side(*at) for key, at in rows_of(layer, rows).items()}
        self.weights = [*self.col, *(weight for row in self.rows.values() for weight in row)]
        self.places = {path: place for place, path in enumerate(dict.fromkeys(w.parameter for w in self.weights))}
        self.parameters = [objective.network.get_parameter(path) for path in self.places]
        self.dim, self.dtype = sum(weight.size for weight in self.col), self.parameters[0].dtype
        alone = len(self.col) == 1
        self.shape = view_of(self.parameters[0], self.col[0]).shape if alone else torch.Size([self.dim])

    def spread(self, probes: Float[Tensor, "dim k"]) -> list[Tensor]:
        """Put the probes where the column's weights stand in their parameters, zeros elsewhere: (*shape, k) each."""
        k, pieces = probes.shape[1], probes.split([weight.size for weight in self.col])
        columns = [torch.zeros(*p.shape, k, dtype=probes.dtype, device=probes.device) for p in self.parameters]
        for weight, piece in zip(self.col, pieces, strict=True):
            target = view_of(columns[self.places[weight.parameter]], weight)
            target += piece.reshape(target.shape)
        return columns

    def gathered(self, products: Mapping[Part, Sequence[Tensor]]) -> Products:
        """Read the products of every row off those of the parameters, keyed (row, part)."""
        by_row: dict[tuple[Hashable, Part], Tensor] = {}
        for key, row in self.rows.items():
            for part, product in products.items():
                by_row[key, part] = self._gather(product, row)
        return by_row

    def _gather(self, products: Sequence[Tensor], row: Sequence[Weight]) -> Float[Tensor, "n k"]:
        views = [view_of(products[self.places[weight.parameter]], weight) for weight in row]
        flat = [view.reshape(prod(view.shape[:-1]), view.shape[-1]) for view in views]
        return flat[0] if len(flat) == 1 else torch.cat(flat)


def view_of(tensor: Tensor, weight: Weight) -> Tensor:
    """Return the entries of `weight` in a tensor of its parameter's shape (further axes behind)."""
    whole = tensor.unflatten(0, weight.axes) if weight.axes else tensor
    return whole if weight.index is None else whole[weight.index]


def entries_of(tensors: Mapping[str, Tensor], side: Sequence[Weight]) -> Shaped[Tensor, " n"]:
    """Return the entries of one side of a block, as one vector, of tensors that are shaped as the parameters."""
    return torch.cat([view_of(tensors[one.parameter], one).flatten() for one in side])


class DecayedColumn:
    """A column of the Hessian of a loss with decay / 2 |w|^2: H and H_f of a weight with itself have decay I added.

    The term depends on weights directly, not through the outputs, so that it is no part of H_o = J^T B J.
    """

    def __init__(self, column: Column, objective: Objective, layer: int, col: str, rows: Rows) -> None:
        self.column, self.decay = column, objective.decay
        self.dim, self.shape, self.dtype = column.dim, column.shape, column.dtype
        self.bytes_per_probe = column.bytes_per_probe
        own = _spans(objective.layout.side(layer, col))
        self.shared = {
            key: [(there, own[path]) for path, there in _spans(objective.layout.side(*at)).items() if path in own]
            for key, at in rows.items()
        }

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V, keyed (row, part), for every row and each of `parts`."""
        products = self.column.split_matmat(probes, parts)
        return {
            (key, part): product if part == Part.H_o else self._decayed(product, probes, self.shared[key])
            for (key, part), product in products.items()
        }

    def _decayed(self, product: Tensor, probes: Tensor, shared: list[tuple[slice, slice]]) -> Tensor:
        decayed = product.clone()
        for target, here in shared:
            decayed[target] += self.decay * probes[here].to(decayed)
        return decayed


def _spans(side: Sequence[Weight]) -> dict[str, slice]:
    """Return where every whole parameter stands among the entries of one side of a block."""
    stops = list(accumulate(weight.size for weight in side))
    return {weight.parameter: slice(stop - weight.size, stop) for weight, stop in zip(side, stops, strict=True)}
