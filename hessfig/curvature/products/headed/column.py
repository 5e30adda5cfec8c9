"""A column of blocks of a network with a head: suffix only, batch by batch, logits a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.column import SPLIT, Products, Rows, completed, to_multiply
from hessfig.curvature.problem import Problem
from hessfig.curvature.products.headed.graphs import Features, Graphs
from hessfig.curvature.products.headed.readout import Readout, Tangents
from hessfig.curvature.products.sides import Sides
from hessfig.models.layered import Headed
from hessfig.tasks.losses import CrossEntropy
from hessfig.tasks.weights import IGNORED
from hessfig.terms import Part


class Totals:
    """Sums of products, one tensor (*shape, k) a parameter, made when something is first added to them.

    Nothing is added in place to what autograd returned: two weights may have been given the same tensor. A single
    direction's pieces are taken as they are, for those of a whole network are as large as it.
    """

    def __init__(self, columns: Sequence[Tensor]) -> None:
        self._empty = [
            partial(torch.zeros, column.shape, dtype=column.dtype, device=column.device) for column in columns
        ]
        self._width = columns[0].shape[-1]
        self._sums: list[Tensor | None] = [None for _ in columns]

    def add(self, place: int, k: int, piece: Tensor) -> None:
        """Add direction k's piece."""
        held = self._sums[place]
        if self._width == 1:
            self._sums[place] = piece.unsqueeze(-1) if held is None else held + piece.unsqueeze(-1)
            return
        if held is None:
            held = self._sums[place] = self._empty[place]()
        held[..., k] += piece

    def tensors(self) -> list[Tensor]:
        """Return the sums, zeros where nothing was added."""
        pairs = zip(self._sums, self._empty, strict=True)
        return [empty() if held is None else held for held, empty in pairs]


def can_take(problem: Problem) -> bool:
    """Whether this engine serves a problem: a network with a head under cross-entropy of every scored token."""
    return (
        isinstance(problem.network, Headed)
        and type(problem.loss) is CrossEntropy
        and not any(bool((batch.targets == IGNORED).any()) for batch in problem.batches)
    )


class HeadedColumn:
    """The blocks (row, col) for one `col` of `layer` and several rows, by plain double backward below the head.

    Batches come one after the other, so memory is that of one; the graphs of a single batch are kept between calls.
    No vmap is used, under which products through LayerNorm are wrong (see products.belief).
    """

    def __init__(self, problem: Problem, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        network = problem.network
        assert isinstance(network, Headed)
        self.sides, self._network = Sides(problem, layer, col, rows), network
        places = enumerate(zip(self.sides.places, self.sides.parameters, strict=True))
        # A tied embedding stands in both lists: it is reached from below and from above.
        self._head = next((i for i, p in enumerate(self.sides.parameters) if p is network.unembedding), None)
        is_tied = problem.depth(self.sides.weights) is None
        self._body = {i: path for i, (path, _) in places if i != self._head or is_tied}
        self._features = Features(network, problem.depth(self.sides.weights), problem.batch.scored)
        self._batches = [
            (self._features.start(batch.inputs), batch.targets) for batch in (problem.batch, *problem.more)
        ]
        self._total = sum(targets.numel() for _, targets in self._batches)
        self._kept: Graphs | None = None

    @property
    def dim(self) -> int:
        """Entries of the column's weights."""
        return self.sides.dim

    @property
    def shape(self) -> torch.Size:
        """Shape of the column's weight; (dim,) for several."""
        return self.sides.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.sides.parameters[0].dtype

    @property
    def bytes_per_probe(self) -> int:
        """Memory that grows with the probes: directions, products of two parts, and rows read off them."""
        entries = sum(parameter.numel() for parameter in self.sides.parameters)
        return 4 * entries * self.dtype.itemsize

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V, keyed (row, part), for every row and each of `parts`: one double backward a batch and probe."""
        columns = self.sides.spread(probes.to(self.sides.parameters[0].device))
        wanted = to_multiply(parts)
        found = {part: Totals(columns) for part in wanted}
        for number in range(len(self._batches)):
            graphs = self._graphs(number)
            if wanted == [Part.H] and self._body:
                self._add_whole(found[Part.H], columns, graphs)
            else:
                self._add(found, columns, graphs)
        del columns  # as large as the products, which are read off next
        products = {part: totals.tensors() for part, totals in found.items()}
        return completed(self.sides.gathered(products), parts)

    def _graphs(self, number: int) -> Graphs:
        """Return the graphs of a batch: kept where it is the only one, made anew else."""
        if self._kept is not None:
            return self._kept
        start, targets = self._batches[number]
        at = {path: self.sides.parameters[place] for place, path in self._body.items()}
        readout = Readout(self._network.unembedding.detach(), targets.flatten(), self._total)
        graphs = Graphs(self._features, at, start, readout)
        self._kept = graphs if len(self._batches) == 1 else None
        return graphs

    def _add_whole(self, totals: Totals, columns: list[Tensor], graphs: Graphs) -> None:
        """Add one batch's H v of all columns: a single double backward each."""
        for k in range(columns[0].shape[-1]):
            weight = None if self._head is None else columns[self._head][..., k]
            direction = [columns[place][..., k] for place in self._body]
            pieces, to_weight = graphs.multiply(direction, weight, with_weight=self._head is not None)
            self._into(totals, k, pieces)
            if to_weight is not None and self._head is not None:
                totals.add(self._head, k, to_weight)

    def _add(self, found: dict[Part, Totals], columns: list[Tensor], graphs: Graphs) -> None:
        """Add one batch's products of all columns to `found`."""
        tangents, seconds = self._pushed(columns, graphs, second=set(found) != {Part.H_o})
        if tangents is None:
            return
        for part, totals in found.items():
            down, to_weight = graphs.readout.products(
                graphs.value, tangents, part, with_weight=self._head is not None
            )
            if to_weight is not None and self._head is not None:
                for k, piece in enumerate(to_weight):
                    totals.add(self._head, k, piece)
            if self._body:
                self._pull(totals, down, graphs)
            if part != Part.H_o:
                for k, second in enumerate(seconds):
                    self._into(totals, k, second)

    def _pushed(
        self, columns: list[Tensor], graphs: Graphs, *, second: bool
    ) -> tuple[Tangents | None, list[list[Tensor]]]:
        """Send every column up: tangents of features and unembedding, and second derivatives by column."""
        pushed = [
            graphs.push([columns[place][..., k] for place in self._body], second=second)
            for k in range(columns[0].shape[-1])
            if self._body
        ]
        features = torch.stack([dh for dh, _ in pushed]) if pushed else None
        weight = None if self._head is None else columns[self._head].movedim(-1, 0)
        if weight is not None and not weight.any():
            weight = None
        if features is None and weight is None:
            return None, []
        return Tangents(features, weight), [found for _, found in pushed if second]

    def _pull(self, totals: Totals, down: Tensor, graphs: Graphs) -> None:
        """Send every column's cotangent down to the weights below the head; exact zeros need no pass."""
        for k, cotangent in enumerate(down):
            if cotangent.any():
                self._into(totals, k, graphs.pull(cotangent))

    def _into(self, totals: Totals, k: int, pieces: Sequence[Tensor]) -> None:
        for place, piece in zip(self._body, pieces, strict=True):
            totals.add(place, k, piece)
