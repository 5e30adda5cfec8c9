"""Columns of blocks by plain double backward, batch by batch, with graphs that are kept while they fit into memory."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.column import (
    SPLIT,
    Products,
    Rows,
    SidedColumn,
    completed,
    to_multiply,
)
from hessfig.curvature.large.graphs import Graphs, Totals
from hessfig.curvature.large.readouts import Tangents, VocabularyReadout
from hessfig.curvature.problem import Objective
from hessfig.rng import in_turn
from hessfig.terms import Part


@runtime_checkable
class Pieces(Protocol):
    """The batches of a loss, one after the other, each as a function of the weights."""

    @property
    def unembedding(self) -> Sequence[Tensor]:
        """The tensors that map features to outputs: the matrix, and the bias if there is one; may be empty."""

    def __len__(self) -> int:
        """The number of batches."""

    def graphs(self, number: int, at: Mapping[str, Tensor]) -> Graphs:
        """Return the graphs of a batch at the values `at` of parameters, by path."""

    def keeps(self, number: int) -> bool:
        """Whether the graphs of a batch are kept between products; otherwise they are created anew."""


class LargeProducts:
    r"""Products of the parts of the Hessian in given parameters, by plain double backward below the head.

    vmap is not used, since products through LayerNorm are wrong under it (see
    double_backward.verified_or_fallback). With features z, outputs U z, the Hessian B of the
    loss in the outputs and its gradient g, for weights of the features alone,

    .. math:: H_o v = J_z^\top U^\top B U J_z v, \qquad
              H_f v = \sum_i (U^\top g)_i \frac{\partial^2 z_i}{\partial w^2} v;

    the unembedding U adds the terms of readouts.VocabularyReadout. Outputs of a large
    vocabulary are computed in chunks and never stored. Without a head, z are the outputs and
    U is the identity. Per batch and vector, H alone takes one backward pass through kept
    graphs; H_o and H_f take one down (`push`), and one back for each part whose cotangents
    are not zero.

    Parameters
    ----------
    pieces : Pieces
        The batches.
    parameters : dict
        The parameters by path; one of the head may also be below it, as a tied
        embedding is.
    """

    def __init__(self, pieces: Pieces, parameters: Mapping[str, nn.Parameter]) -> None:
        self.pieces = pieces
        self._parameters = list(parameters.values())
        self._places = {path: place for place, path in enumerate(parameters)}
        self._heads = _heads(self._parameters, pieces.unembedding)
        self._body = dict(parameters)
        self._kept = dict[int, Graphs]()

    def of_batches(
        self, numbers: Iterable[int], columns: list[Tensor], wanted: Sequence[Part]
    ) -> dict[Part, Totals]:
        """Return the sums of the products of the batches `numbers`, for columns (*shape, k), one per parameter.

        Products are linear in the loss, whose terms are the batches. Graphs that are not kept
        are freed before those of the next batch are created.
        """
        sums = {part: Totals(columns) for part in wanted}
        for number in numbers:
            graphs = self.graphs(number)
            if wanted == [Part.H] and graphs.paths:
                self._add_whole(sums[Part.H], columns, graphs)
            else:
                self._add(sums, columns, graphs)
            del graphs  # before those of the next batch are created
        return sums

    def graphs(self, number: int) -> Graphs:
        """Return the graphs of a batch: those that were kept, or new ones."""
        if number in self._kept:
            return self._kept[number]
        graphs = self.pieces.graphs(number, self._body)
        if self.pieces.keeps(number):
            self._kept[number] = graphs
        return graphs

    def _add_whole(self, totals: Totals, columns: list[Tensor], graphs: Graphs) -> None:
        """Add H v of one batch for all columns, with a single double backward per column."""
        for k in range(columns[0].shape[-1]):
            weight = self._of_head([column[..., k] for column in columns])
            direction = [columns[self._places[path]][..., k] for path in graphs.paths]
            pieces, to_weight = graphs.multiply(
                direction, weight, with_weight=bool(self._heads)
            )
            self._into(totals, k, graphs, pieces)
            if to_weight is not None:
                self._add_to_head(totals, k, to_weight)

    def _add(
        self, sums: dict[Part, Totals], columns: list[Tensor], graphs: Graphs
    ) -> None:
        r"""Add the products of one batch for all columns to `sums`.

        A part is what the readout sends down, pulled back by (dh/dw)^T, and for H and H_f the
        second derivatives of <c, h> along the direction as well:

        .. math:: H_o v = G(C_o \, dh), \qquad
                  H_f v = G(C_f \, dh) + \sum_i c_i \, d^2 h_i \, v,

        with the second derivatives C_o and C_f of the readout, which include its unembedding
        (C_f is zero in the features alone).
        """
        if not graphs.paths and self._add_head_alone(sums, columns, graphs):
            return
        second = set(sums) != {Part.H_o}
        tangents, seconds = self._pushed(columns, graphs, second=second)
        if tangents is None:
            return
        for part, totals in sums.items():
            down, to_weight = graphs.readout.products(
                graphs.value, tangents, part, with_weight=bool(self._heads)
            )
            if to_weight is not None:
                for k, piece in enumerate(to_weight):
                    self._add_to_head(totals, k, piece)
            if graphs.paths:
                self._pull(totals, down, graphs)
            if part != Part.H_o:
                for k, products in enumerate(seconds):
                    self._into(totals, k, graphs, products)

    def _add_head_alone(
        self, sums: dict[Part, Totals], columns: list[Tensor], graphs: Graphs
    ) -> bool:
        """Add H v of the unembedding alone for one column; return whether this was possible.

        Outputs are linear in the unembedding, so that H = H_o there, and features need no
        derivatives.
        """
        weight = self._of_head([column.movedim(-1, 0) for column in columns])
        readout = graphs.readout
        if (
            weight is None
            or len(weight) > 1
            or list(sums) != [Part.H]
            or not isinstance(readout, VocabularyReadout)
        ):
            return False
        product = readout.product_in_weight(graphs.value, weight)[0]
        self._add_to_head(sums[Part.H], 0, product)
        return True

    def _pushed(
        self, columns: list[Tensor], graphs: Graphs, *, second: bool
    ) -> tuple[Tangents | None, list[list[Tensor]]]:
        """Return tangents of features and unembedding for all columns, and second derivatives by column.

        dh = (dh/dw) v, one backward pass for each column; dW are the entries of v in the
        unembedding, which takes none. None for both if the columns have entries in neither.
        """
        tangents = []
        seconds = []
        if graphs.paths:
            for k in range(columns[0].shape[-1]):
                direction = [
                    columns[self._places[path]][..., k] for path in graphs.paths
                ]
                tangent, products = graphs.push(direction, second=second)
                tangents.append(tangent)
                if second:
                    seconds.append(products)
        features = torch.stack(tangents) if tangents else None
        weight = self._of_head([column.movedim(-1, 0) for column in columns])
        if weight is not None and not weight.any():
            weight = None
        if features is None and weight is None:
            return None, []
        return Tangents(features, weight), seconds

    def _pull(self, totals: Totals, down: Tensor, graphs: Graphs) -> None:
        """Pull the cotangents of all columns back to the weights below the head; exact zeros need no pass."""
        for k, cotangent in enumerate(down):
            if cotangent.any():
                self._into(totals, k, graphs, graphs.pull(cotangent))

    def _of_head(self, columns: Sequence[Tensor]) -> Tensor | None:
        """Return the direction of the unembedding; parts that are not among the parameters are zero.

        `columns` has one direction, or several stacked ones, for every parameter.
        """
        if not self._heads:
            return None
        lead = columns[0].shape[: columns[0].ndim - self._parameters[0].ndim]
        directions = {}
        for place in self._heads:
            directions[id(self._parameters[place])] = columns[place]
        parts = []
        for tensor in self.pieces.unembedding:
            if id(tensor) in directions:
                parts.append(directions[id(tensor)])
            else:
                parts.append(tensor.new_zeros(*lead, *tensor.shape))
        return side_by_side(parts, len(lead))

    def _add_to_head(
        self, totals: Totals, k: int, piece: Float[Tensor, "vocabulary width"]
    ) -> None:
        """Add the product of direction k in the unembedding, to the parameters that it consists of."""
        for place, chosen in self._heads.items():
            totals.add(place, k, piece[:, chosen])

    def _into(
        self, totals: Totals, k: int, graphs: Graphs, pieces: Sequence[Tensor]
    ) -> None:
        """Add the products of direction k in the parameters below the head."""
        for path, piece in zip(graphs.paths, pieces, strict=True):
            totals.add(self._places[path], k, piece)


class LargeColumn(SidedColumn):
    """The blocks of a column by LargeProducts; parameters are those of the column and its rows.

    Parameters
    ----------
    pieces : Pieces
        The batches.
    objective, layer, col, rows
        As in ColumnOperator.
    """

    def __init__(
        self, pieces: Pieces, objective: Objective, layer: int, col: str, rows: Rows
    ) -> None:
        super().__init__(objective, layer, col, rows)
        parameters = dict(zip(self.places, self.parameters, strict=True))
        self.products = LargeProducts(pieces, parameters)

    @property
    def bytes_per_probe(self) -> int:
        """Memory per probe: directions, products of two parts, and the rows selected from them."""
        entries = sum(parameter.numel() for parameter in self.parameters)
        return 4 * entries * self.dtype.itemsize

    @in_turn
    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V by (row, part), for every row and each of `parts`: one double backward per batch and probe."""
        columns = self.spread(probes.to(self.parameters[0].device))
        batches = range(len(self.products.pieces))
        sums = self.products.of_batches(batches, columns, to_multiply(parts))
        del columns  # as large as the products, which are copied next
        products = {part: totals.tensors() for part, totals in sums.items()}
        return completed(self.gathered(products), parts)


def _heads(
    parameters: Sequence[nn.Parameter], unembedding: Sequence[Tensor]
) -> dict[int, slice | int]:
    """Return the columns of [unembedding, bias] that each parameter is, by its index; no entry for other parameters.

    A parameter is one of the head if it is the same tensor, also under another name (a tied
    embedding): then it has products from below the head and from the head, which are added.
    """
    if not unembedding:
        return {}
    width = unembedding[0].shape[1]
    # Of the matrix, and of the bias if there is one.
    columns: list[slice | int] = [slice(0, width), width]
    heads = {}
    for place, parameter in enumerate(parameters):
        for head, chosen in zip(unembedding, columns, strict=False):
            if parameter is head:
                heads[place] = chosen
    return heads


def side_by_side(parts: Sequence[Tensor], lead: int = 0) -> Tensor:
    """Return a matrix with a bias as its last column; both have `lead` further axes in front.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.large.large_column import side_by_side
    >>> side_by_side([torch.eye(2), torch.tensor([3.0, 4.0])]).tolist()
    [[1.0, 0.0, 3.0], [0.0, 1.0, 4.0]]
    """
    if len(parts) == 1:
        return parts[0]
    matrices = []
    for part in parts:
        is_matrix = part.ndim == lead + 2
        matrices.append(part if is_matrix else part.unsqueeze(-1))
    return torch.cat(matrices, dim=-1)
