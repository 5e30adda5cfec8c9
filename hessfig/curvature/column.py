"""Columns of blocks as operators: the interface between networks and estimators, in chunks that bound memory."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from hessfig.curvature.problem import Objective, is_built_in, recurrence_like
from hessfig.curvature.rounding import unit_of
from hessfig.terms import AT_OUTPUTS, Part, split_in
from hessfig.weights import Weight

PROBES_AT_ONCE = 5
MEMORY_BOUND = 1 * 2**30
SPLIT = AT_OUTPUTS
Products = dict[tuple[Hashable, Part], Float[Tensor, "n k"]]
Rows = Mapping[Any, tuple[int, str]]


def rows_of(layer: int, rows: Sequence[str] | Rows) -> Rows:
    """Return {key: (layer, name)} of the rows of a column; a name alone is its own key, in the layer of the column."""
    return rows if isinstance(rows, Mapping) else {row: (layer, row) for row in rows}


@runtime_checkable
class Column(Protocol):
    """Blocks of one column of the Hessian, as operators."""

    @property
    def dim(self) -> int:
        """Number of entries of the weights of the column."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight of the column; (dim,) for several weights, or for a view."""

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the products."""

    @property
    def like(self) -> Tensor:
        """An empty tensor of the type and on the device of vectors of recurrences (see problem.recurrence_like)."""

    @property
    def bytes_per_probe(self) -> int:
        """Upper bound of the memory for the products of one probe."""

    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V by (row, part), for every row of the column and exactly the requested `parts`.

        Other parts are not computed. H V takes one product, which is cheaper than H_o V
        and H_f V together and equals their sum up to rounding; if all three parts are
        requested, H V is exactly that sum.
        """


def chunks(
    probes: Shaped[Tensor, "dim k"], column: Column, at_once: int
) -> Iterator[Tensor]:
    """Split the columns of `probes` into chunks of `at_once`, or fewer if their products would exceed MEMORY_BOUND.

    The size of a chunk depends on the problem, never on the machine: matrix products of
    different shapes may round differently, and the same settings must give the same
    bits everywhere. Five probes at a time are also the fastest choice
    (scripts/benchmarks/norms.py), because their tangents fit into the cache.
    """
    yield from probes.split(
        max(1, min(at_once, int(MEMORY_BOUND / column.bytes_per_probe))), dim=1
    )


def cast_chunks(
    probes: Shaped[Tensor, "dim k"], column: Column
) -> Iterator[Float[Tensor, "dim k"]]:
    """Split `probes` (signs in int8) into chunks of at most PROBES_AT_ONCE, in the type and on the device of products.

    Only one chunk at a time takes the memory of its type.
    """
    yield from (
        cast_probes(chunk, column) for chunk in chunks(probes, column, PROBES_AT_ONCE)
    )


def cast_probes(
    probes: Shaped[Tensor, "dim k"], column: Column
) -> Float[Tensor, "dim k"]:
    """Return `probes` in the type and on the device of the products of `column`."""
    return probes.to(column.like.device).to(column.dtype)


def multiplied(
    column: Column,
    vectors: Float[Tensor, "dim k"],
    parts: Sequence[Part] = SPLIT,
    at_once: int = PROBES_AT_ONCE,
) -> Products:
    """Return A V by (row, part), for every row and each of `parts`, computed for `at_once` vectors at a time."""
    pieces = [
        column.split_matmat(chunk, parts)
        for chunk in chunks(vectors.to(column.dtype), column, at_once)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return {
        key: torch.cat([piece[key] for piece in pieces], dim=1) for key in pieces[0]
    }


@dataclass(frozen=True)
class Squares:
    """Squared lengths divided by the square of `unit`; the unit is 1 unless the squares would under- or overflow."""

    values: Float[Tensor, " k"]
    unit: float = 1.0

    @classmethod
    def joined(cls, pieces: Sequence["Squares"]) -> "Squares":
        """Return the squared lengths of several chunks in the largest of their units."""
        unit = max(
            (piece.unit for piece in pieces if bool(piece.values.any())), default=1.0
        )
        return cls(torch.cat([piece._over(unit) for piece in pieces]), unit)

    def _over(self, unit: float) -> Tensor:
        return (
            self.values
            if unit == self.unit or not bool(self.values.any())
            else self.values * (self.unit / unit) ** 2
        )


def squared_norms(
    column: Column, parts: Sequence[Part], probes: Float[Tensor, "dim k"]
) -> dict[tuple[Hashable, Part], Squares]:
    """Return ||A v_k||^2 for every row and part."""
    return lengths(column.split_matmat(probes, products_of(column, parts)), parts)


def products_of(column: Column, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the products that give `parts` in the fewest passes: H alone of a network of one's own takes one product.

    Recorded numbers of built-in networks are those of the sum H_o V + H_f V, whose last
    bits are others.
    """
    engine = column.column if isinstance(column, DecayedColumn) else column
    if (
        tuple(parts) == (Part.H,)
        and isinstance(engine, SidedColumn)
        and not engine.is_recorded
    ):
        return (Part.H,)
    return summands(parts)


def summands(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the products that give `parts` if H V is computed as a sum: H_o V + H_f V, or the split at the scores.

    The split at the scores is used if both of its terms are in `parts` and those at the
    outputs are not.
    """
    if Part.H not in parts:
        return tuple(parts)
    others = [part for part in parts if part != Part.H and part not in AT_OUTPUTS]
    return tuple(
        dict.fromkeys(
            [
                *(split_in(parts) or SPLIT),
                *others,
                *(p for p in parts if p in AT_OUTPUTS),
            ]
        )
    )


def to_multiply(parts: Sequence[Part]) -> list[Part]:
    """Return the products to compute for `parts`: H V is left out if both of its summands are computed."""
    return [
        part for part in dict.fromkeys(parts) if part != Part.H or not split_in(parts)
    ]


def completed(products: Products, parts: Sequence[Part]) -> Products:
    """Return `products` with H V added as a sum, if `parts` contains H and both of its summands."""
    rows = dict.fromkeys(row for row, _ in products)
    return {
        (row, part): _part_of(products, row, part) for row in rows for part in parts
    }


def lengths(
    products: Products, parts: Sequence[Part]
) -> dict[tuple[Hashable, Part], Squares]:
    """Return the squared lengths of the products for every row and part; H v is the sum of its two terms."""
    rows = dict.fromkeys(row for row, _ in products)
    return {
        (row, part): _columnwise(_part_of(products, row, part))
        for row in rows
        for part in parts
    }


def _part_of(products: Products, row: Hashable, part: Part) -> Tensor:
    if part == Part.H and (row, part) not in products:
        first, second = split_in([there for key, there in products if key == row])
        return products[row, first] + products[row, second]
    return products[row, part]


def _columnwise(products: Float[Tensor, "n k"]) -> Squares:
    """Return the squared length of each column, summed over contiguous memory.

    Over strided columns, the order of summation would depend on the number of columns.
    """
    rows = products.T.contiguous()
    sums = rows.square().sum(dim=1)
    is_usual = torch.finfo(sums.dtype).tiny <= float(sums.max()) < math.inf
    unit = 1.0 if is_usual else unit_of(rows)
    return (
        Squares(sums)
        if unit == 1.0
        else Squares((rows.double() / unit).square().sum(dim=1), unit)
    )


class SidedColumn:
    """The blocks (row, col) for one `col` of `layer` and several rows, acting on vectors in the space of `col`.

    A side of a block is one weight or several (a group); each weight is a parameter or
    a view of one. `parameters` lists the parameters of all sides once; derivatives are
    taken in these. `dim` is the number of entries of `col`, and `shape` the shape of
    its weight, or (dim,) for several weights.
    """

    def __init__(
        self, objective: Objective, layer: int, col: str, rows: Sequence[str] | Rows
    ) -> None:
        self.col = objective.layout.side(layer, col)
        self.rows = {
            key: objective.layout.side(*at) for key, at in rows_of(layer, rows).items()
        }
        self.weights = [
            *self.col,
            *(weight for row in self.rows.values() for weight in row),
        ]
        self.places = {
            path: place
            for place, path in enumerate(
                dict.fromkeys(w.parameter for w in self.weights)
            )
        }
        self.parameters = [
            objective.network.get_parameter(path) for path in self.places
        ]
        self.dim = sum(weight.size for weight in self.col)
        self.dtype = self.parameters[0].dtype
        paths = [
            weight.parameter
            for weight in self.col
            if weight.index is None and not weight.axes
        ]
        # Each weight is a parameter, which no other weight shares.
        self._are_whole = len({*paths}) == len(self.col)
        alone = len(self.col) == 1
        self.shape = (
            view_of(self.parameters[0], self.col[0]).shape
            if alone
            else torch.Size([self.dim])
        )
        self.like = recurrence_like(objective.network, self.dtype, self.dim)
        self.is_recorded = is_built_in(objective.network)

    def kept_product(
        self, row: Hashable, part: Part
    ) -> Callable[[Tensor], Tensor] | None:
        """Return v -> A v, the bits of `split_matmat` for one vector, through graphs that are kept; None without these.

        It enters no context: see kept_product.KeptProduct.
        """
        del row, part
        return None

    @property
    def _is_of_whole(self) -> bool:
        """Whether every weight of every side is a parameter."""
        return all(weight.index is None and not weight.axes for weight in self.weights)

    def spread(self, probes: Float[Tensor, "dim k"]) -> list[Tensor]:
        """Return the probes as tensors (*shape, k), one per parameter: zero outside the weights of the column."""
        k, pieces = probes.shape[1], probes.split([weight.size for weight in self.col])
        if self._are_whole:
            given = {
                one.parameter: piece
                for one, piece in zip(self.col, pieces, strict=True)
            }
            return [
                given[path].reshape(*p.shape, k)
                if path in given
                else probes.new_zeros(*p.shape, k)
                for path, p in zip(self.places, self.parameters, strict=True)
            ]
        columns = [probes.new_zeros(*p.shape, k) for p in self.parameters]
        for weight, piece in zip(self.col, pieces, strict=True):
            target = view_of(columns[self.places[weight.parameter]], weight)
            target += piece.reshape(target.shape)
        return columns

    def gathered(self, products: Mapping[Part, Sequence[Tensor]]) -> Products:
        """Select the products of every row from the products of the parameters, by (row, part)."""
        by_row: dict[tuple[Hashable, Part], Tensor] = {}
        for key, row in self.rows.items():
            for part, product in products.items():
                by_row[key, part] = self._gather(product, row)
        return by_row

    def _gather(
        self, products: Sequence[Tensor], row: Sequence[Weight]
    ) -> Float[Tensor, "n k"]:
        views = [
            view_of(products[self.places[weight.parameter]], weight) for weight in row
        ]
        flat = [view.reshape(prod(view.shape[:-1]), view.shape[-1]) for view in views]
        return flat[0] if len(flat) == 1 else torch.cat(flat)


def view_of(tensor: Tensor, weight: Weight) -> Tensor:
    """Return the entries of `weight` in a tensor with the shape of its parameter (and further axes at the end)."""
    whole = tensor.unflatten(0, weight.axes) if weight.axes else tensor
    return whole if weight.index is None else whole[weight.index]


def entries_of(
    tensors: Mapping[str, Tensor], side: Sequence[Weight]
) -> Shaped[Tensor, " n"]:
    """Return the entries of one side of a block as one vector, from tensors with the shapes of the parameters."""
    return torch.cat([view_of(tensors[one.parameter], one).flatten() for one in side])


class DecayedColumn:
    """A column of the Hessian of a loss with weight decay, decay / 2 |w|^2.

    Weight decay adds decay I to H and H_f of the diagonal blocks. The term depends on
    the weights directly, not through the outputs, so it does not enter H_o = J^T B J.
    """

    def __init__(
        self, column: Column, objective: Objective, layer: int, col: str, rows: Rows
    ) -> None:
        self.column, self.decay = column, objective.decay
        self.dim = column.dim
        self.shape = column.shape
        self.dtype = column.dtype
        self.bytes_per_probe, self.like = column.bytes_per_probe, column.like
        own = _spans(objective.layout.side(layer, col))
        self.shared = {
            key: [
                (there, own[path])
                for path, there in _spans(objective.layout.side(*at)).items()
                if path in own
            ]
            for key, at in rows.items()
        }

    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V by (row, part), for every row and each of `parts`."""
        products = self.column.split_matmat(probes, parts)
        return {
            (key, part): product
            if part == Part.H_o
            else self._decayed(product, probes, self.shared[key])
            for (key, part), product in products.items()
        }

    def _decayed(
        self, product: Tensor, probes: Tensor, shared: list[tuple[slice, slice]]
    ) -> Tensor:
        decayed = product.clone()
        for target, here in shared:
            decayed[target] += self.decay * probes[here].to(decayed)
        return decayed


def _spans(side: Sequence[Weight]) -> dict[str, slice]:
    """Return the slice of every whole parameter among the entries of one side of a block."""
    stops = list(accumulate(weight.size for weight in side))
    return {
        weight.parameter: slice(stop - weight.size, stop)
        for weight, stop in zip(side, stops, strict=True)
    }
