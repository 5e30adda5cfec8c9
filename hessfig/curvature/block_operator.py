"""Blocks of the Hessian, of its Gauss-Newton part or of its functional part, as operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.batched import undisturbed
from hessfig.curvature.column import Column, SidedColumn, view_of
from hessfig.curvature.differences import check_errors, multiplied_with_errors
from hessfig.curvature.implicit_matrix import ImplicitMatrix, Vectors
from hessfig.curvature.kept_product import KeptProduct
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, first_few, plain
from hessfig.rng import in_turn
from hessfig.terms import AT_OUTPUTS, Block, Part


class Entries:
    r"""The weights of one side of a block, in order and each row by row: the entries of its vectors.

    The vector of weights W_1, W_2, ... is their stacked row-wise vectorisation,

    .. math:: x = (\mathrm{vec}_r W_1, \mathrm{vec}_r W_2, \dots),

    in the paper's convention: entry (i, j) of an m x n matrix is entry i n + j of its piece
    (counted from 0). `flatten` and `unflatten` are this map and its inverse.

    Attributes
    ----------
    names : list of str
        NAME@LAYER of a weight in a layer, NAME outside the layers; the names of the
        parameters if these are not unique.
    shapes, sizes : list
        The shape of every weight, and its number of entries.
    """

    @in_turn
    def __init__(self, objective: Objective, layer: int, name: str) -> None:
        self.dtype = objective.dtype
        self.names = []
        self.shapes = []
        weights = objective.layout.side(layer, name)
        for weight in weights:
            label = f"{weight.name}@{weight.layer}" if weight.layer else weight.name
            self.names.append(label)
            parameter = objective.network.get_parameter(weight.parameter)
            self.shapes.append(view_of(parameter, weight).shape)
        self.sizes = [prod(shape) for shape in self.shapes]
        if len(set(self.names)) < len(self.names):
            self.names = [weight.parameter for weight in weights]

    def unflatten(self, vector: Any) -> dict[str, Tensor]:
        """Return the entries of every weight, in the shape of the weight. Raises UserError for any other vector."""
        size = sum(self.sizes)
        if not isinstance(vector, Tensor) or vector.shape != (size,):
            got = type(vector).__name__
            if hasattr(vector, "shape"):
                got += f" of shape {tuple(vector.shape)}"
            raise UserError(
                "operator.unflatten: this is not one vector of the block's weights",
                got=plain(got),
                allowed=f"a tensor of shape ({size},)",
                remedy="one column of several, products[:, k]; torch.from_numpy(array) of an array",
            )
        tensors = {}
        pieces = vector.split(self.sizes)
        for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True):
            tensors[name] = piece.reshape(shape)
        return tensors

    def flatten(self, tensors: Mapping[str, Any]) -> Float[Tensor, " n"]:
        """Return tensors by name as one vector; omitted weights are zero. Raises UserError for misfits.

        The type of the vector is the widest of the types of the tensors and of the block.
        """
        shapes = dict(zip(self.names, self.shapes, strict=True))
        wrong = []
        for name, tensor in tensors.items():
            if not _fits(tensor, shapes.get(name)):
                wrong.append(f"{name}: {_described(tensor)}")
        if wrong or not tensors:
            allowed = [f"{name}: {tuple(shape)}" for name, shape in shapes.items()]
            raise UserError(
                "operator.flatten: these are not tensors of the block's weights",
                got=first_few(wrong) if wrong else "no tensor",
                allowed=first_few(allowed),
                remedy="see operator.names and operator.unflatten(vector) for names and shapes",
            )
        like = next(iter(tensors.values()))
        types = [tensor.dtype for tensor in tensors.values()]
        wide = reduce(torch.promote_types, types, self.dtype)
        pieces = []
        for name, size in zip(self.names, self.sizes, strict=True):
            if name in tensors:
                pieces.append(tensors[name].flatten().to(wide))
            else:
                pieces.append(like.new_zeros(size, dtype=wide))
        return torch.cat(pieces)


def _fits(tensor: Any, shape: torch.Size | None) -> bool:
    """Whether an argument is a real tensor of a shape."""
    if not isinstance(tensor, Tensor) or tensor.is_complex():
        return False
    return tensor.shape == shape


def _described(tensor: Any) -> str:
    """Return an argument in words."""
    if not isinstance(tensor, Tensor):
        return plain(type(tensor).__name__)
    complex_numbers = " of complex numbers" if tensor.is_complex() else ""
    return f"{tuple(tensor.shape)}{complex_numbers}"


class Made(NamedTuple):
    """What an operator made, for operators of the same block and part that come later."""

    rows: Entries
    columns: Entries
    column: Column
    product: KeptProduct | None


class BlockOperator(ImplicitMatrix):
    r"""A block A of the Hessian as an operator, for products and for solvers of other libraries.

    For a loss L(w) = l(f(w)) and weights a (rows) and b (columns), H = d^2 L / (da db)
    is split at the outputs f,

    .. math:: H = H_o + H_f, \quad H_o = J_a^T B J_b, \quad H_f = \sum_i (\partial l / \partial f_i) \, \partial_a
              \partial_b f_i,

    with the Jacobians J of the outputs and the Hessian B of l in the outputs (eq. 2 of
    the paper). H v is computed as the derivative of <gradient, v>. Products are
    computed in chunks that bound memory, and checked, as in hessfig.measure. The
    operator keeps the weights that the network had when the operator was created.

    Attributes
    ----------
    block, part
        The block, and which part of the Hessian.
    names, sizes : list
        The weights of a vector that is multiplied, in order, and the number of entries
        of each.
    rows, columns : Entries
        Both sides of the block, with names, shapes and sizes.
    last_errors : tensor, (k,), or None
        With products="differences": the estimated error `|A v - product|` of each of
        the last products, in `split` of the part with the largest one. A product with
        an error above a tenth of its size raises UserError.

    Examples
    --------
    >>> import torch, hessfig
    >>> network = torch.nn.Linear(3, 2).double()
    >>> problem = hessfig.Problem(network, torch.eye(3), torch.tensor([0, 1, 1]))
    >>> operator = problem.operator("weight", "H_o")
    >>> operator.shape
    (6, 6)
    >>> bool(torch.allclose(operator @ torch.ones(6), operator.dense() @ torch.ones(6, dtype=torch.float64)))
    True
    """

    def __init__(
        self,
        objective: Objective,
        block: Block,
        part: Part,
        column: Callable[[Block], Column],
        made: dict[tuple[Block, Part], Made] | None = None,
    ) -> None:
        self.block = block
        self.part = part
        self._problem = objective
        self._column_of = column
        self._made: Column | None = None
        self._kept: KeptProduct | None = None
        self._shared = {} if made is None else made
        before = self._shared.get((block, part))
        if before is not None:
            self.rows, self.columns, self._made, self._kept = before
        else:
            self.rows = Entries(objective, block.row_layer, block.row)
            # Both sides of a diagonal block are the same weights.
            self.columns = self.rows
            if not block.is_diagonal:
                self.columns = Entries(objective, block.layer, block.col)
        self.names = self.columns.names
        self.sizes = self.columns.sizes
        self._transposed: BlockOperator | None = self if block.is_diagonal else None
        shape = (sum(self.rows.sizes), sum(self.columns.sizes))
        device = next(objective.network.parameters()).device
        super().__init__(shape, objective.dtype, device)

    def __repr__(self) -> str:
        return f"BlockOperator({self.part} of {self.block}, {self.shape[0]} x {self.shape[1]}, {self.dtype})"

    @property
    def T(self) -> BlockOperator:
        """The transposed block, which is the block (b, a) by the symmetry of second derivatives.

        For second derivatives that are continuous, (d^2 L / da db)^T = d^2 L / db da, and the
        same holds for both terms: (J_a^T B J_b)^T = J_b^T B J_a since B is symmetric. So no
        transposed product is needed: A^T x is a product with the block of the other column.
        """
        if self._transposed is None:
            block = self.block
            mirrored = Block(block.row_layer, block.col, block.row, block.layer)
            self._transposed = BlockOperator(
                self._problem, mirrored, self.part, self._column_of, self._shared
            )
            self._transposed._transposed = self
        return self._transposed

    @property
    def memory(self) -> float | None:
        """The bytes that a product takes, if the network is large: those of H in all weights, estimated from above."""
        network = getattr(self._made_column(), "network", None)
        return getattr(network, "expected", None)

    @property
    def is_semidefinite(self) -> bool:
        """Whether the block is a diagonal block of H_o, which is positive semi-definite for a convex loss.

        v^T H_o v = (J v)^T B (J v) >= 0 where B is. `solve` then takes conjugate gradients.
        """
        return self.part == Part.H_o and self.block.is_diagonal

    def split(
        self, x: Vectors, parts: Sequence[str] = ("H_o", "H_f", "H")
    ) -> dict[str, Vectors]:
        """Return A x for several parts A at once; they share evaluations, and H x is the sum of the other two.

        For autograd the parts are the rows of one linear map: x is sent to (A_1 x, A_2 x, ...),
        and cotangents (s_1, s_2, ...) are sent back to sum_p A_p^T s_p.

        Parameters
        ----------
        x : tensor or array, (m,) or (m, k)
        parts : sequence of str
            Some of "H_o", "H_f", "H".

        Returns
        -------
        dict
            A x by the name of the part, in the form of `x`.

        Raises
        ------
        UserError
            For an unknown part, or a vector that does not fit.

        Examples
        --------
        >>> import torch, hessfig
        >>> network = torch.nn.Linear(3, 2).double()
        >>> problem = hessfig.Problem(network, torch.eye(3), torch.tensor([0, 1, 1]))
        >>> found = problem.operator("weight").split(torch.ones(6).double())
        >>> bool((found["H"] == found["H_o"] + found["H_f"]).all())
        True
        """
        names = [part.value for part in (Part.H, *AT_OUTPUTS)]
        if isinstance(parts, str) or not set(parts) <= set(names) or not parts:
            raise UserError(
                "operator.split: there is no such part",
                got=repr(parts),
                allowed=f"a list of {', '.join(names)}",
                remedy='parts=("H_o", "H_f")',
            )
        wanted = list(dict.fromkeys(map(Part, parts)))

        def forth(columns: Tensor) -> Tensor:
            return torch.cat(list(self._products(columns, wanted).values()))

        def back(slopes: Tensor) -> Tensor:
            products = []
            pieces = slopes.split(self.shape[0])
            for part, piece in zip(wanted, pieces, strict=True):
                products.append(self.T._products(piece, [part])[part])
            return torch.stack(products).sum(dim=0)

        products = self._applied(x, forth, back, count=len(wanted))
        return dict(zip([part.value for part in wanted], products, strict=True))

    def flatten(self, tensors: Mapping[str, Any]) -> Float[Tensor, " m"]:
        """Return the vector x of tensors by the names of the weights of the columns."""
        return self.columns.flatten(tensors)

    def unflatten(self, vector: Any) -> dict[str, Tensor]:
        """Return a product (n,) as tensors by the names of the weights of the rows, in their shapes."""
        return self.rows.unflatten(vector)

    def __matmul__(self, x: Vectors) -> Vectors:
        """Return A x for x (m,), or A X for X (m, k). Raises UserError for other shapes and for complex numbers."""
        kept = self._kept
        # The shortest way for one vector: a small network's product takes microseconds.
        if (
            isinstance(x, Tensor)
            and kept is not None
            and kept.needs_no_context(x)
            and len(x) == self.shape[1]
        ):
            return kept.alone(x)
        return super().__matmul__(x)

    def _multiplied(self, vectors: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
        """Return A V; a single vector goes through the kept graphs, once a first product has created them."""
        is_single = vectors.shape[1] == 1
        if is_single and self._kept is not None:
            return self._kept(vectors[:, 0])[:, None]
        product = self._products(vectors, [self.part])[self.part]
        if is_single:
            # The product has created the graphs.
            self._kept = self._kept_product()
            self._share()
        return product

    def _share(self) -> None:
        """Leave column and kept product to later operators, if they hold no graphs of their own."""
        column = self._made_column()
        if isinstance(column, SidedColumn) and column.shares_graphs(self.part):
            made = Made(self.rows, self.columns, column, self._kept)
            self._shared[self.block, self.part] = made

    def _kept_product(self) -> KeptProduct | None:
        """Return the product with one vector, if its graphs are kept."""
        column = self._made_column()
        if not isinstance(column, SidedColumn):
            return None
        multiply = column.kept_product(self.block, self.part)
        if multiply is None:
            return None
        return KeptProduct(multiply, self._problem)

    def _products(
        self, vectors: Float[Tensor, "m k"], parts: Sequence[Part]
    ) -> dict[Part, Tensor]:
        """Return A V by part; the errors of products by differences are kept and checked.

        The modes of the caller (no gradients, autocast, a device context) do not reach the
        product, and its random draws do not reach the caller (batched.undisturbed).
        """
        column = self._made_column()
        with undisturbed(self._problem):
            products, errors = multiplied_with_errors(column, vectors, parts)
            for key, error in errors.items():
                check_errors(column, key, vectors, products[key], error)
        self.last_errors = None
        if errors:
            self.last_errors = torch.stack(list(errors.values())).amax(dim=0)
        return {part: products[self.block, part].detach() for part in parts}

    def _made_column(self) -> Column:
        """Return the column that contains the block, created on first use."""
        if self._made is None:
            with undisturbed(self._problem):
                self._made = self._column_of(self.block)
        return self._made
