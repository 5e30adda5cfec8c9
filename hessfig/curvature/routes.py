"""Which route a column of blocks takes, and whole Hessians from the columns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config import ModelConfig
from hessfig.config import Products as Choice
from hessfig.curvature.batched import BatchedColumn, SmallNetwork
from hessfig.curvature.column import SPLIT, Column, Products
from hessfig.curvature.differences import DifferencedColumn
from hessfig.curvature.headed import can_take
from hessfig.curvature.problem import OtherNetwork, Problem
from hessfig.curvature.ranks import headed
from hessfig.models.layered import Layered
from hessfig.models.protocol import Weight
from hessfig.terms import Block, Part

if TYPE_CHECKING:
    from hessfig.curvature.exact.exact_blocks import ExactEngine
    from hessfig.curvature.tape.columns import LinearisedNetwork


LARGE = 2**14  # parameters of a column from where on products in float32 take half the time of those in float64


class Engines:
    """The engines of one problem, each built once, when it is first asked for.

    Those that rebuild networks of the package are imported then; networks of others never need them.
    """

    def __init__(self, problem: Problem, model: ModelConfig, products: Choice) -> None:
        self.problem, self.model, self.products = problem, model, products

    @cached_property
    def exact(self) -> ExactEngine:
        """The exact engine, for networks it knows."""
        from hessfig.curvature.exact.exact_blocks import ExactEngine

        return ExactEngine(self.problem, self.model)

    def column(self, layer: int, col: str, blocks: Sequence[Block]) -> Column:
        """Return the blocks of one column as operators, keyed by block; with what weight decay adds to them."""
        column, decay = self._column(layer, col, blocks), self.problem.decay
        return DecayedColumn(column, self.problem, layer, col, _rows(blocks)) if decay else column

    def _column(self, layer: int, col: str, blocks: Sequence[Block]) -> Column:
        rows = _rows(blocks)
        if self.products == Choice.differences:
            return DifferencedColumn(self.problem, layer, col, rows)
        if self.products == Choice.linearised and can_take(self.problem):
            return headed(self.problem, layer, col, rows)
        if self.products == Choice.linearised and SmallNetwork.can_take(self.problem):
            return BatchedColumn(self._small, self.problem, layer, col, rows)
        network = self._linearised if self.products == Choice.linearised else None
        if network is None or not all(network.holds(*side) for side in [(layer, col), *rows.values()]):
            from hessfig.curvature.curvlinops import ColumnOperator

            return ColumnOperator(self.problem, layer, col, rows)
        return network.column(layer, col, rows)

    def low_precision(self, column: Column, layer: int, col: str, blocks: Sequence[Block]) -> Column | None:
        """Return the blocks of `column`, one of these engines', with products in float32.

        None where they would not be much cheaper: half the time on the tape, for columns of LARGE parameters and more
        (smaller ones spend theirs outside matrix products), and only for products in float64.
        """
        if not isinstance(self.problem.network, Layered) or column.dtype != torch.float64:
            return None
        from hessfig.curvature.tape.columns import LinearisedColumn

        if not isinstance(column, LinearisedColumn) or column.dim < LARGE:
            return None
        return self._narrow.column(layer, col, _rows(blocks))

    @cached_property
    def _small(self) -> SmallNetwork:
        return SmallNetwork(self.problem)

    @cached_property
    def _narrow(self) -> LinearisedNetwork:
        from hessfig.curvature.tape.columns import LinearisedNetwork

        return LinearisedNetwork(self.problem, self.model, products=torch.float32)

    @cached_property
    def _linearised(self) -> LinearisedNetwork | None:
        """The tape; None for a network that has none, for several batches, or for something else (which is said)."""
        if self.problem.more or not isinstance(self.problem.network, Layered):
            return None
        from hessfig.curvature.tape.columns import LinearisedNetwork
        from hessfig.curvature.tape.recording import can_build

        if not can_build(self.problem.network, self.model):
            return None
        try:
            return LinearisedNetwork(self.problem, self.model)
        except OtherNetwork as error:
            warnings.warn(f"{error}; taken here", RuntimeWarning, stacklevel=2)
            return None


class DecayedColumn:
    """A column of the Hessian of a loss with decay / 2 |w|^2: H and H_f of a weight with itself have decay I added.

    The term depends on weights directly, not through the outputs, so that it is no part of H_o = J^T B J.
    """

    def __init__(
        self, column: Column, problem: Problem, layer: int, col: str, rows: dict[Block, tuple[int, str]]
    ) -> None:
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
            (key, part): product if part == Part.H_o else self._decayed(product, probes, self.shared[key])  # type: ignore[index]
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


def _rows(blocks: Sequence[Block]) -> dict[Block, tuple[int, str]]:
    return {block: (block.row_layer, str(block.row)) for block in blocks}


_PER_LAYER = {
    "W_Q": "attn.q.weight",
    "W_K": "attn.k.weight",
    "W_V": "attn.v.weight",
    "W_O": "attn.o.weight",
    "W_in": "mlp.fc_in.weight",
    "b_in": "mlp.fc_in.bias",
    "W_out": "mlp.fc_out.weight",
    "b_out": "mlp.fc_out.bias",
}


@dataclass(frozen=True)
class WholeHessian:
    """`matrix` is symmetric; parameter `names[i]` takes `sizes[i]` rows, row by row of its (inputs, outputs) matrix."""

    matrix: Float[Tensor, "parameters parameters"]
    names: list[str]
    sizes: list[int]


def dense_hessian(problem: Problem) -> WholeHessian:
    """Return the full Hessian of a transformer without LayerNorm.

    Order: W_E, W_pos, then W_Q, W_K, W_V, W_O, W_in, b_in, W_out, b_out of each layer, W_U, b_U (Figure 1); the
    attention's biases are left out. Linear maps are stored (outputs, inputs) and transposed here.
    """
    paths = _paths(problem.network)
    parameters = [problem.network.get_parameter(path) for path in paths.values()]
    weights = [Weight(name, path, p.numel()) for (name, path), p in zip(paths.items(), parameters, strict=True)]
    from hessfig.curvature.curvlinops import whole_hessian

    matrix = whole_hessian(problem, weights)
    order = torch.cat(_published_order(list(paths.values()), parameters))
    return WholeHessian(matrix[order][:, order], list(paths), [p.numel() for p in parameters])


def _paths(network: nn.Module) -> dict[str, str]:
    paths = {"W_E": "tok_embed.weight", "W_pos": "pos.weight"}
    held = dict(network.named_parameters())
    for index in range(len(network.layers)):  # type: ignore[arg-type]
        suffix = "" if len(network.layers) == 1 else f"_{index + 1}"  # type: ignore[arg-type]
        paths |= {f"{name}{suffix}": f"layers.{index}.{path}" for name, path in _PER_LAYER.items()}
    paths |= {"W_U": "head.weight", "b_U": "head.bias"}
    return {name: path for name, path in paths.items() if path in held}


def _published_order(paths: list[str], parameters: list[nn.Parameter]) -> list[Tensor]:
    start, order = 0, []
    for path, parameter in zip(paths, parameters, strict=True):
        index = torch.arange(start, start + parameter.numel()).reshape(parameter.shape)
        is_table = path in ("tok_embed.weight", "pos.weight") or parameter.ndim == 1
        order.append((index if is_table else index.T).flatten())
        start += parameter.numel()
    return order
