"""Blocks of the Hessian, of its Gauss-Newton part or of its functional part, as operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

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
    """The weights of one side of a block, in order and each row by row: the entries of its vectors."""

    @in_turn
    def __init__(self, objective: Objective, layer: int, name: str) -> None:
        weights = objective.layout.side(layer, name)
        labels = [
            f"{one.name}@{one.layer}" if one.layer else one.name for one in weights
        ]
        self.names = (
            labels
            if len(set(labels)) == len(labels)
            else [one.parameter for one in weights]
        )
        parameter = objective.network.get_parameter
        self.shapes = [view_of(parameter(one.parameter), one).shape for one in weights]
        self.sizes, self.dtype = [prod(shape) for shape in self.shapes], objective.dtype

    def unflatten(self, vector: Any) -> dict[str, Tensor]:
        """Return the entries of every weight, in the shape of the weight. Raises UserError for any other vector."""
        size = sum(self.sizes)
        if not isinstance(vector, Tensor) or vector.shape != (size,):
            shape = (
                f" of shape {tuple(vector.shape)}" if hasattr(vector, "shape") else ""
            )
            raise UserError(
                "operator.unflatten: this is not one vector of the block's weights",
                got=plain(f"{type(vector).__name__}{shape}"),
                allowed=f"a tensor of shape ({size},)",
                remedy="one column of several, products[:, k]; torch.from_numpy(array) of an array",
            )
        pieces = vector.split(self.sizes)
        return {
            name: one.reshape(shape)
            for name, one, shape in zip(self.names, pieces, self.shapes, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Any]) -> Float[Tensor, " n"]:
        """Return tensors by name as one vector; omitted weights are zero. Raises UserError for misfits."""
        known = dict(zip(self.names, self.shapes, strict=True))
        wrong = [
            name for name, one in tensors.items() if not _fits(one, known.get(name))
        ]
        if wrong or not tensors:
            raise UserError(
                "operator.flatten: these are not tensors of the block's weights",
                got=first_few(
                    [f"{name}: {_described(tensors[name])}" for name in wrong]
                )
                if wrong
                else "no tensor",
                allowed=first_few(
                    [f"{name}: {tuple(shape)}" for name, shape in known.items()]
                ),
                remedy="see operator.names and operator.unflatten(vector) for names and shapes",
            )
        like = next(iter(tensors.values()))
        wide = reduce(
            torch.promote_types, [one.dtype for one in tensors.values()], self.dtype
        )
        return torch.cat(
            [
                tensors[name].flatten().to(wide)
                if name in tensors
                else like.new_zeros(prod(known[name]), dtype=wide)
                for name in self.names
            ]
        )


def _fits(given: Any, shape: torch.Size | None) -> bool:
    return isinstance(given, Tensor) and given.shape == shape and not given.is_complex()


def _described(given: Any) -> str:
    if not isinstance(given, Tensor):
        return plain(f"{type(given).__name__}")
    return f"{tuple(given.shape)}{' of complex numbers' * given.is_complex()}"


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
    ) -> None:
        self.block, self.part = block, part
        self._problem, self._column_of = objective, column
        self.rows = Entries(objective, block.row_layer, block.row)
        self.columns = Entries(objective, block.layer, block.col)
        self.names, self.sizes = self.columns.names, self.columns.sizes
        self._made: Column | None = None
        self._kept: KeptProduct | None = None
        self._transposed: BlockOperator | None = self if block.is_diagonal else None
        device = next(objective.network.parameters()).device
        super().__init__(
            (sum(self.rows.sizes), sum(self.columns.sizes)), objective.dtype, device
        )

    def __repr__(self) -> str:
        return f"BlockOperator({self.part} of {self.block}, {self.shape[0]} x {self.shape[1]}, {self.dtype})"

    @property
    def T(self) -> BlockOperator:
        """The transposed block, which is the block (b, a) by the symmetry of second derivatives."""
        if self._transposed is None:
            block = self.block
            mirrored = Block(block.row_layer, block.col, block.row, block.layer)
            self._transposed = BlockOperator(
                self._problem, mirrored, self.part, self._column_of
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
        """Whether the block is a diagonal block of H_o, which is positive semi-definite for a convex loss."""
        return self.part == Part.H_o and self.block.is_diagonal

    def split(
        self, x: Vectors, parts: Sequence[str] = ("H_o", "H_f", "H")
    ) -> dict[str, Vectors]:
        """Return A x for several parts A at once; they share evaluations, and H x is the sum of the other two.

        Raises UserError for an unknown part.
        """
        known = [part.value for part in (Part.H, *AT_OUTPUTS)]
        if isinstance(parts, str) or not set(parts) <= set(known) or not parts:
            raise UserError(
                "operator.split: there is no such part",
                got=repr(parts),
                allowed=f"a list of {', '.join(known)}",
                remedy='parts=("H_o", "H_f")',
            )
        wanted = list(dict.fromkeys(map(Part, parts)))

        def forth(columns: Tensor) -> Tensor:
            return torch.cat(list(self._products(columns, wanted).values()))

        def back(slopes: Tensor) -> Tensor:
            pieces = zip(wanted, slopes.split(self.shape[0]), strict=True)
            return torch.stack(
                [self.T._products(piece, [part])[part] for part, piece in pieces]
            ).sum(dim=0)

        products = self._applied(x, forth, back, count=len(wanted))
        return {
            part.value: product for part, product in zip(wanted, products, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Any]) -> Float[Tensor, " m"]:
        """Return the vector x of tensors by the names of the weights of the columns."""
        return self.columns.flatten(tensors)

    def unflatten(self, vector: Any) -> dict[str, Tensor]:
        """Return a product (n,) as tensors by the names of the weights of the rows, in their shapes."""
        return self.rows.unflatten(vector)

    def __matmul__(self, x: Vectors) -> Vectors:
        """Return A x for x (m,), or A X for X (m, k). Raises UserError for other shapes and for complex numbers."""
        kept = self._kept
        if (
            isinstance(x, Tensor)
            and kept is not None
            and kept.needs_no_context(x)
            and len(x) == self.shape[1]
        ):
            return kept.alone(x)
        return super().__matmul__(x)

    def _multiplied(self, vectors: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
        if vectors.shape[1] > 1:
            return self._products(vectors, [self.part])[self.part]
        if self._kept is not None:
            return self._kept(vectors[:, 0])[:, None]
        product = self._products(vectors, [self.part])[self.part]  # creates the graphs
        self._kept = self._kept_product()
        return product

    def _kept_product(self) -> KeptProduct | None:
        """Return the product with one vector, if its graphs are kept."""
        column = self._made_column()
        multiply = (
            column.kept_product(self.block, self.part)
            if isinstance(column, SidedColumn)
            else None
        )
        return None if multiply is None else KeptProduct(multiply, self._problem)

    def _products(
        self, vectors: Float[Tensor, "m k"], parts: Sequence[Part]
    ) -> dict[Part, Tensor]:
        column = self._made_column()
        with undisturbed(self._problem):
            products, errors = multiplied_with_errors(column, vectors, parts)
            for (block, part), error in errors.items():
                check_errors(
                    column, (block, part), vectors, products[block, part], error
                )
        self.last_errors = (
            torch.stack(list(errors.values())).amax(dim=0) if errors else None
        )
        return {part: products[self.block, part].detach() for part in parts}

    def _made_column(self) -> Column:
        """Return the column that contains the block, created on first use."""
        if self._made is None:
            with undisturbed(self._problem):
                self._made = self._column_of(self.block)
        return self._made
