"""Columns of the Hessian as operators: the interface between networks and estimators.

For two weights row and col, the block of A = H, H_o or H_f is A[row, col]. A column
holds the blocks of one col and several rows. It multiplies vectors in the space of col,
several at a time, in chunks that bound memory.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
# Unit vectors that are multiplied together where a block is made dense.
COLUMNS_AT_ONCE = 64
# Bytes that the products of one chunk of probes may take.
MEMORY_BOUND = 1 * 2**30
SPLIT = AT_OUTPUTS
# A V by (row, part); V has k columns.
Products = dict[tuple[Hashable, Part], Float[Tensor, "n k"]]
# (layer, name) of every row of a column.
Rows = Mapping[Any, tuple[int, str]]


def rows_of(layer: int, rows: Sequence[str] | Rows) -> Rows:
    """Return {key: (layer, name)} of the rows of a column; a name alone is its own key, in the layer of the column.

    Examples
    --------
    >>> from hessfig.curvature.column import rows_of
    >>> rows_of(2, ["W_Q", "W_K"])
    {'W_Q': (2, 'W_Q'), 'W_K': (2, 'W_K')}
    """
    if isinstance(rows, Mapping):
        return rows
    return {row: (layer, row) for row in rows}


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
    r"""Split the columns of `probes` into chunks of `at_once`, or fewer if their products would exceed MEMORY_BOUND.

    With b the `bytes_per_probe` of the column, a chunk has

    .. math:: k = \max\left(1, \min\left(\text{at\_once},
              \lfloor 2^{30} / b \rfloor\right)\right)

    columns. The size of a chunk depends on the problem, never on the machine: matrix
    products of different shapes may round differently, and the same settings must give
    the same bits everywhere. Five probes at a time are also the fastest choice
    (scripts/benchmarks/norms.py), because their tangents fit into the cache.

    Examples
    --------
    Two probes of 2^29 bytes each reach the bound:

    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator
    >>> from hessfig.curvature.column import chunks
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 1), torch.eye(3), torch.zeros(3, 1), "mse").objective("float64")
    >>> column = ColumnOperator(problem, 0, "weight", ["weight"])
    >>> column.bytes_per_probe = 2**29
    >>> [tuple(one.shape) for one in chunks(torch.ones(3, 5), column, 5)]
    [(3, 2), (3, 2), (3, 1)]
    """
    within_bound = int(MEMORY_BOUND / column.bytes_per_probe)
    yield from probes.split(max(1, min(at_once, within_bound)), dim=1)


def cast_chunks(
    probes: Shaped[Tensor, "dim k"], column: Column
) -> Iterator[Float[Tensor, "dim k"]]:
    """Split `probes` (signs in int8) into chunks of at most PROBES_AT_ONCE, in the type and on the device of products.

    Only one chunk at a time takes the memory of its type.
    """
    for chunk in chunks(probes, column, PROBES_AT_ONCE):
        yield cast_probes(chunk, column)


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
    """Return A V by (row, part), for every row and each of `parts`, computed for `at_once` vectors at a time.

    A V = [A V_1, A V_2, ...] for the chunks V = [V_1, V_2, ...], so that the joined
    result is the product; its last bits are those of the chunks. Every chunk is written
    into the result at once, which is held a single time. Vectors are cast to the type of
    the column before they are cut.
    """
    joined: Products = {}
    begin = 0
    total = vectors.shape[1]
    for chunk in chunks(vectors.to(column.dtype), column, at_once):
        piece = column.split_matmat(chunk, parts)
        end = begin + chunk.shape[1]
        if chunk.shape[1] == total:
            # Row by row in memory, as joined ones are: norms depend on the order of sums.
            return {key: product.contiguous() for key, product in piece.items()}
        for key, product in piece.items():
            if begin == 0:
                joined[key] = product.new_empty(len(product), total)
            joined[key][:, begin:end] = product
        begin = end
    return joined


@dataclass(frozen=True)
class Squares:
    r"""Squared lengths ||A v_k||^2 / unit^2, one per vector, and the unit that they are measured in.

    The unit is 1 unless the squares would under- or overflow: a product with entries of
    1e-30 has squares of 1e-60, which float32 cannot represent.

    With a power of two as unit, the division and the multiplication back are exact:
    :math:`|A v|^2 = \text{unit}^2 \, \text{values}` has the error of the sum alone, n u
    relative to the value for n terms with roundoff u, since all terms have one sign.
    """

    values: Float[Tensor, " k"]
    unit: float = 1.0

    @classmethod
    def joined(cls, pieces: Sequence["Squares"]) -> "Squares":
        r"""Return the squared lengths of several chunks in the largest of their units.

        For a piece with the values s in the unit a, the values in the unit b are

        .. math:: s' = s \, (a / b)^2, \qquad s' b^2 = s a^2.

        In the largest unit no value overflows, and one that underflows there does not count
        beside the largest one. Pieces that are zero have no unit of their own, and take no
        part in the choice.

        Examples
        --------
        >>> import torch
        >>> from hessfig.curvature.column import Squares
        >>> joined = Squares.joined([Squares(torch.tensor([8.0])), Squares(torch.tensor([3.0]), 2.0)])
        >>> joined.values.tolist(), joined.unit
        ([2.0, 3.0], 2.0)
        """
        unit = max((piece.unit for piece in pieces if piece._is_nonzero), default=1.0)
        return cls(torch.cat([piece._over(unit) for piece in pieces]), unit)

    @property
    def _is_nonzero(self) -> bool:
        return bool(self.values.any())

    def _over(self, unit: float) -> Tensor:
        """Return the squared lengths in another unit."""
        if unit == self.unit or not self._is_nonzero:
            return self.values
        return self.values * (self.unit / unit) ** 2


def squared_norms(
    column: Column, parts: Sequence[Part], probes: Float[Tensor, "dim k"]
) -> dict[tuple[Hashable, Part], Squares]:
    r"""Return ||A v_k||^2 for every row and part.

    For probes with E[v v^T] = I, these are the samples of Hutchinson's estimator of the
    squared Frobenius norm: with A^T A in place of A in E[v^T A v] = tr A,

    .. math:: E |A v|^2 = E[v^\top A^\top A v] = \mathrm{tr}(A^\top A) = \|A\|_F^2.

    It holds for off-diagonal blocks too, which are not square.
    """
    return lengths(column.split_matmat(probes, products_of(column, parts)), parts)


def products_of(column: Column, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the products that give `parts` in the fewest passes: H alone of a network of one's own takes one product.

    H v by itself is one backward pass per vector, the sum H_o v + H_f v takes four (three
    for H_o, see double_backward.DoubleBackward). Both are the same vector up to rounding
    relative to |H_o v| + |H_f v|, which exceeds |H v| if the two terms cancel. Recorded
    numbers of built-in networks are those of the sum, whose last bits are others.
    """
    engine = column
    if isinstance(column, DecayedColumn):
        engine = column.column
    is_of_user = isinstance(engine, SidedColumn) and not engine.is_recorded
    if tuple(parts) == (Part.H,) and is_of_user:
        return (Part.H,)
    return summands(parts)


def summands(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the products that give `parts` if H V is computed as a sum: H_o V + H_f V, or the split at the scores.

    The split at the scores is used if both of its terms are in `parts` and those at the
    outputs are not.

    H = H_o + H_f (eq. 2) at the outputs, and H = H_oT + H_fT at the scores (Remark D.1):
    two products give all three parts.

    Examples
    --------
    >>> from hessfig.curvature.column import summands
    >>> from hessfig.terms import Part
    >>> [part.value for part in summands([Part.H])]
    ['H_o', 'H_f']
    >>> [part.value for part in summands([Part.H, Part.H_oT, Part.H_fT])]
    ['H_oT', 'H_fT']
    """
    if Part.H not in parts:
        return tuple(parts)
    others = [part for part in parts if part != Part.H and part not in AT_OUTPUTS]
    at_outputs = [part for part in parts if part in AT_OUTPUTS]
    # Each one once, the two terms of H first.
    terms = split_in(parts) or SPLIT
    return tuple(dict.fromkeys([*terms, *others, *at_outputs]))


def to_multiply(parts: Sequence[Part]) -> list[Part]:
    """Return the products to compute for `parts`: H V is left out if both of its summands are computed.

    Examples
    --------
    >>> from hessfig.curvature.column import to_multiply
    >>> from hessfig.terms import Part
    >>> [part.value for part in to_multiply([Part.H, Part.H_o, Part.H_f])]
    ['H_o', 'H_f']
    >>> [part.value for part in to_multiply([Part.H, Part.H_o])]
    ['H', 'H_o']
    """
    needed = list(dict.fromkeys(parts))
    if Part.H in needed and split_in(parts):
        needed.remove(Part.H)
    return needed


def completed(products: Products, parts: Sequence[Part]) -> Products:
    """Return `products` with H V added as a sum, if `parts` contains H and both of its summands."""
    complete = {}
    for row in _rows_in(products):
        for part in parts:
            complete[row, part] = _part_of(products, row, part)
    return complete


def lengths(
    products: Products, parts: Sequence[Part]
) -> dict[tuple[Hashable, Part], Squares]:
    """Return the squared lengths of the products for every row and part; H v is the sum of its two terms.

    The sum is formed before it is squared: |H v|^2 = |H_o v|^2 + |H_f v|^2 + 2 <H_o v, H_f v>,
    whose last term two lengths do not show.
    """
    squares = {}
    for row in _rows_in(products):
        for part in parts:
            squares[row, part] = _columnwise(_part_of(products, row, part))
    return squares


def _rows_in(products: Products) -> list[Hashable]:
    """Return the rows of products, each once, in their order."""
    return list(dict.fromkeys(row for row, _ in products))


def _part_of(products: Products, row: Hashable, part: Part) -> Tensor:
    """Return A V of a row; H V is the sum of two terms if it was not computed itself."""
    if part == Part.H and (row, part) not in products:
        computed = [other for key, other in products if key == row]
        first, second = split_in(computed)
        return products[row, first] + products[row, second]
    return products[row, part]


def _columnwise(products: Float[Tensor, "n k"]) -> Squares:
    """Return the squared length of each column, summed over contiguous memory.

    Over strided columns, the order of summation would depend on the number of columns.
    The plain sums are kept if the largest of them is a normal number. Otherwise squares
    under- or overflowed, and the entries are divided by a power of two (rounding.unit_of),
    in float64, before they are squared.
    """
    rows = products.T.contiguous()
    sums = rows.square().sum(dim=1)
    if torch.finfo(sums.dtype).tiny <= float(sums.max()) < math.inf:
        return Squares(sums)
    unit = unit_of(rows)
    if unit == 1.0:
        return Squares(sums)
    return Squares((rows.double() / unit).square().sum(dim=1), unit)


class SidedColumn:
    r"""The blocks (row, col) for one `col` of `layer` and several rows, acting on vectors in the space of `col`.

    A side of a block is one weight or several (a group); each weight is a parameter or
    a view of one.

    With the matrix E that places the entries of a side into all parameters of the column
    and its rows, and A the part of the Hessian in these parameters,

    .. math:: A[\text{row}, \text{col}] \, V = E_\text{row}^\top A \, (E_\text{col} V).

    `spread` is E_col and `gathered` is E_row^T; engines multiply by A in between. So one
    product with A gives the blocks of all rows of a column. If two weights of a side share
    entries, E is their sum, and the block is still the second derivative in the vector of
    the side, by the chain rule.

    Attributes
    ----------
    objective : Objective
        The loss whose Hessian it is.
    col : sequence of hessfig.weights.Weight
        The weights of the column.
    rows : dict
        The weights of every row, by its key.
    places : dict
        The position of a parameter in `parameters`, by its path.
    parameters : list of torch.nn.Parameter
        The parameters of all sides, each once; derivatives are taken in these.
    dim, shape
        The number of entries of `col`, and the shape of its weight; (dim,) for several
        weights.
    is_recorded : bool
        Whether the network is built in, so that its numbers are those of earlier
        releases.
    """

    def __init__(
        self, objective: Objective, layer: int, col: str, rows: Sequence[str] | Rows
    ) -> None:
        layout, network = objective.layout, objective.network
        self.objective = objective
        self.col = layout.side(layer, col)
        self.rows = {}
        self.weights = list(self.col)
        for key, at in rows_of(layer, rows).items():
            self.rows[key] = layout.side(*at)
            self.weights += self.rows[key]
        paths = dict.fromkeys(weight.parameter for weight in self.weights)
        self.places = {path: place for place, path in enumerate(paths)}
        self.parameters = [network.get_parameter(path) for path in paths]
        self.dim = sum(weight.size for weight in self.col)
        self.dtype = self.parameters[0].dtype
        whole = {weight.parameter for weight in self.col if _is_parameter(weight)}
        # Each weight of the column is a parameter, which no other weight shares.
        self._are_whole = len(whole) == len(self.col)
        self.shape = torch.Size([self.dim])
        if len(self.col) == 1:
            self.shape = view_of(self.parameters[0], self.col[0]).shape
        self.like = recurrence_like(network, self.dtype, self.dim)
        self.is_recorded = is_built_in(network)

    def kept_product(
        self, row: Hashable, part: Part
    ) -> Callable[[Tensor], Tensor] | None:
        """Return v -> A v, the bits of `split_matmat` for one vector, through graphs that are kept; None without these.

        It enters no context: see kept_product.KeptProduct.
        """
        del row, part
        return None

    def shares_graphs(self, part: Part) -> bool:
        """Whether the graphs of a part are those of all columns of the problem, which hold them in any case."""
        del part
        return False

    @property
    def _is_of_whole(self) -> bool:
        """Whether every weight of every side is a parameter."""
        return all(map(_is_parameter, self.weights))

    def spread(self, probes: Float[Tensor, "dim k"]) -> list[Tensor]:
        """Return the probes as tensors (*shape, k), one per parameter: zero outside the weights of the column.

        This is E_col V. If every weight of the column is a parameter of its own, the pieces
        of V are the tensors, and nothing is copied; otherwise they are added into zeros.
        """
        k = probes.shape[1]
        pieces = probes.split([weight.size for weight in self.col])
        if self._are_whole:
            # The pieces are used as they are: no copy.
            paths = [weight.parameter for weight in self.col]
            by_path = dict(zip(paths, pieces, strict=True))
            spread = []
            for path, parameter in zip(self.places, self.parameters, strict=True):
                shape = (*parameter.shape, k)
                if path in by_path:
                    spread.append(by_path[path].reshape(shape))
                else:
                    spread.append(probes.new_zeros(shape))
            return spread
        columns = [probes.new_zeros(*p.shape, k) for p in self.parameters]
        for weight, piece in zip(self.col, pieces, strict=True):
            target = view_of(columns[self.places[weight.parameter]], weight)
            # Weights of one column may overlap: their pieces are added.
            target += piece.reshape(target.shape)
        return columns

    def gathered(self, products: Mapping[Part, Sequence[Tensor]]) -> Products:
        """Select the products of every row from the products of the parameters, by (row, part).

        A row is one weight or several, each a parameter or a view of one. Its product
        E_row^T (A E_col V) contains the entries in these places, one weight after the other.
        """
        by_row: Products = {}
        for key, row in self.rows.items():
            for part, product in products.items():
                by_row[key, part] = self._gather(product, row)
        return by_row

    def _gather(
        self, products: Sequence[Tensor], row: Sequence[Weight]
    ) -> Float[Tensor, "n k"]:
        """Return the products in the entries of one row, flattened: E_row^T, without a copy for a row of one weight."""
        flat = []
        for weight in row:
            view = view_of(products[self.places[weight.parameter]], weight)
            flat.append(view.reshape(prod(view.shape[:-1]), view.shape[-1]))
        if len(flat) == 1:
            return flat[0]
        return torch.cat(flat)


def _is_parameter(weight: Weight) -> bool:
    """Whether a weight is a parameter as it is, not a view of one."""
    return weight.index is None and not weight.axes


def view_of(tensor: Tensor, weight: Weight) -> Tensor:
    """Return the entries of `weight` in a tensor with the shape of its parameter (and further axes at the end).

    A view, not a copy: what is added to it is added to the tensor.

    Examples
    --------
    The queries of two heads are the first two blocks of two rows of a fused projection
    with three such pairs (queries, keys, values); of head 1, the second block:

    >>> import torch
    >>> from hessfig.curvature.column import view_of
    >>> from hessfig.weights import Weight
    >>> fused = torch.arange(12).reshape(12, 1)
    >>> view_of(fused, Weight("W_Q", "qkv", 4, axes=(3, 2, 2), index=0)).flatten().tolist()
    [0, 1, 2, 3]
    >>> view_of(fused, Weight("W_Q^1", "qkv", 2, axes=(3, 2, 2), index=(0, 1))).flatten().tolist()
    [2, 3]
    """
    if weight.axes:
        tensor = tensor.unflatten(0, weight.axes)
    if weight.index is None:
        return tensor
    return tensor[weight.index]


def entries_of(
    tensors: Mapping[str, Tensor], side: Sequence[Weight]
) -> Shaped[Tensor, " n"]:
    """Return the entries of one side of a block as one vector, from tensors with the shapes of the parameters."""
    return torch.cat([view_of(tensors[one.parameter], one).flatten() for one in side])


class DecayedColumn:
    """A column of the Hessian of a loss with weight decay, L(w) + decay / 2 |w|^2.

    The second derivative of the added term is decay I, so that

        H V = H_L V + decay V,    H_f V = (H_f)_L V + decay V,    H_o V = (H_o)_L V

    in the entries that a row shares with the column, which a diagonal block has. The
    term depends on the weights directly, not through the outputs: it is no part of
    H_o = J^T B J.

    The entries of a block of I are those of I[row, col] = E_row^T E_col: ones where row
    and column hold the same weight, zeros elsewhere, so that an off-diagonal block of two
    different weights is unchanged. The sum costs no product.
    """

    def __init__(
        self, column: Column, objective: Objective, layer: int, col: str, rows: Rows
    ) -> None:
        self.column = column
        self.decay = objective.decay
        self.dim = column.dim
        self.shape = column.shape
        self.dtype = column.dtype
        self.bytes_per_probe = column.bytes_per_probe
        self.like = column.like
        # For every row, where a parameter is that it shares with the column: its
        # entries in the row and in the column.
        self.shared: dict[Hashable, list[tuple[slice, slice]]] = {}
        in_column = _spans(objective.layout.side(layer, col))
        for key, at in rows.items():
            self.shared[key] = []
            for path, in_row in _spans(objective.layout.side(*at)).items():
                if path in in_column:
                    self.shared[key].append((in_row, in_column[path]))

    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V by (row, part), for every row and each of `parts`."""
        products = dict(self.column.split_matmat(probes, parts))
        for (key, part), product in products.items():
            if part != Part.H_o:
                products[key, part] = self._decayed(product, probes, self.shared[key])
        return products

    def _decayed(
        self, product: Tensor, probes: Tensor, shared: list[tuple[slice, slice]]
    ) -> Tensor:
        """Return A V + decay V, in the entries that row and column share."""
        decayed = product.clone()
        for in_row, in_column in shared:
            decayed[in_row] += self.decay * probes[in_column].to(decayed)
        return decayed


def _spans(side: Sequence[Weight]) -> dict[str, slice]:
    """Return the slice of every whole parameter among the entries of one side of a block.

    Weights of one side follow each other, so that the one in place p starts at the sum of
    the sizes of those before it.
    """
    spans = {}
    start = 0
    for weight in side:
        spans[weight.parameter] = slice(start, start + weight.size)
        start += weight.size
    return spans
