"""Products of networks with a large vocabulary: double backward below the head, and the head in chunks of tokens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from hessfig.curvature.column import SPLIT, Products, Rows, SidedColumn, completed, to_multiply
from hessfig.curvature.double_backward import differentiable_twice, gradients
from hessfig.curvature.losses import IGNORED
from hessfig.curvature.problem import Headed, Objective, unembedding_of
from hessfig.terms import Part

CHUNK_BYTES = 2**26  # size of one tensor of logits


@dataclass(frozen=True)
class Tangents:
    """Directions of the features, (k, tokens, width), and of the unembedding, (k, vocabulary, width); each may be None.

    A bias of the unembedding is its last column; the features then have a constant 1 as their last entry.
    """

    features: Tensor | None
    unembedding: Tensor | None


@dataclass
class Readout:
    """The mean loss over `total` scored tokens, of which `targets` are in this batch; W is the `unembedding`.

    In the logits z = W h of a token, the loss has the gradient g = (p - y) / total and the Hessian
    B = (diag(p) - p p^T) / total. A direction has dz = W dh + dW h. H_o is B dz, pulled back to h and W. H_f is g times
    the mixed term dW dh of z, the only second-order term of the unembedding.
    """

    unembedding: Float[Tensor, "vocabulary width"]
    targets: Int[Tensor, " tokens"]
    total: int
    _probabilities: Tensor | None = None

    def cotangent(self, features: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens width"]:
        """Return the gradient of the loss in the features, W^T g."""
        pieces = [self._slope(features, chunk) @ self.unembedding for chunk in self._chunks(1)]
        return torch.cat(pieces)

    def products(
        self, features: Float[Tensor, "tokens width"], tangents: Tangents, part: Part, *, with_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return products of `part` in the features, (k, tokens, width), and, `with_weight`, in the unembedding."""
        k = next(len(one) for one in (tangents.features, tangents.unembedding) if one is not None)
        to_features = torch.zeros(k, *features.shape, dtype=features.dtype, device=features.device)
        to_weight = self.unembedding.new_zeros(k, *self.unembedding.shape) if with_weight else None
        for chunk in self._chunks(k):
            here = Tangents(None if tangents.features is None else tangents.features[:, chunk], tangents.unembedding)
            if part != Part.H_f:
                curved = self._curved(features, chunk, here)
                to_features[:, chunk] += curved @ self.unembedding
                if to_weight is not None:
                    to_weight += curved.transpose(1, 2) @ features[chunk]
            if part != Part.H_o:
                self._mix(self._slope(features, chunk), here, to_features[:, chunk], to_weight)
        return to_features, to_weight

    def _curved(self, features: Tensor, chunk: slice, tangents: Tangents) -> Float[Tensor, "k chunk vocabulary"]:
        """Return B dz of a chunk of tokens."""
        p = self._softmax(features, chunk)
        dz = None if tangents.features is None else tangents.features @ self.unembedding.T
        if tangents.unembedding is not None:
            along = features[chunk] @ tangents.unembedding.transpose(1, 2)
            dz = along if dz is None else dz.add_(along)
        assert dz is not None
        dz -= (p * dz).sum(-1, keepdim=True)
        return dz.mul_(p).div_(self.total)

    def _mix(self, slope: Tensor, tangents: Tangents, to_features: Tensor, to_weight: Tensor | None) -> None:
        """Add the mixed second derivatives of z = W h, weighted with g."""
        if tangents.unembedding is not None:
            to_features += slope @ tangents.unembedding
        if to_weight is not None and tangents.features is not None:
            to_weight += slope.T @ tangents.features

    def _slope(self, features: Tensor, chunk: slice) -> Float[Tensor, "chunk vocabulary"]:
        """Return g of a chunk of tokens."""
        p, targets = self._softmax(features, chunk).clone(), self.targets[chunk]
        p[torch.arange(len(targets), device=p.device), targets] -= 1.0
        return p.div_(self.total)

    def _softmax(self, features: Tensor, chunk: slice) -> Float[Tensor, "chunk vocabulary"]:
        """Return p of a chunk of tokens; if the batch is a single chunk, p is kept."""
        if self._bytes_per_token * len(self.targets) > CHUNK_BYTES:
            return (features[chunk] @ self.unembedding.T).softmax(-1)
        if self._probabilities is None:
            self._probabilities = (features @ self.unembedding.T).softmax(-1)
        return self._probabilities[chunk]

    @property
    def _bytes_per_token(self) -> int:
        return len(self.unembedding) * self.unembedding.element_size()

    def _chunks(self, k: int) -> Iterator[slice]:
        """Yield slices of tokens such that k tensors of their logits take at most CHUNK_BYTES."""
        size = max(1, CHUNK_BYTES // (self._bytes_per_token * k))
        for start in range(0, len(self.targets), size):
            yield slice(start, min(start + size, len(self.targets)))


class Features(nn.Module):
    """The network without its unembedding, starting from the activations after `depth` layers (None: the inputs)."""

    def __init__(self, network: Headed, depth: int | None, scored: slice) -> None:
        super().__init__()
        self.network, self.depth, self.scored = network, depth, scored
        self.ones = len(unembedding_of(network)) - 1

    def start(self, inputs: Tensor) -> Tensor:
        """Return the input of `forward`: the activations below the weights, computed once."""
        with torch.no_grad():
            return inputs if self.depth is None else self.network.hidden(inputs, self.depth)

    def forward(self, start: Tensor, kept: Tensor) -> Tensor:
        """Return the features of the scored tokens that `kept` selects, (tokens, width).

        If the unembedding has a bias, 1 is appended to the features of each token.
        """
        depth = self.depth or 0
        hidden = self.network.hidden(start, 0) if self.depth is None else start
        features = self.network.features(hidden, depth, self.scored).flatten(0, 1)
        features = features if kept.all() else features[kept]
        return F.pad(features, (0, 1), value=1.0) if self.ones else features


class Graphs:
    """Features h(w) at `start`, and the pull-back G(w, c) = (dh/dw)^T c as a function of weights and cotangent.

    For fixed c, the gradient of <G, v> in c is the tangent (dh/dw) v, which H_o needs, and its gradient in w is the
    second derivative of <c, h> along v, which is H_f v. If c is the gradient of the loss at h(w), the gradient in w is
    H v. Each graph is created once for all directions, on first use.
    """

    def __init__(
        self, features: Features, at: Mapping[str, Tensor], start: Tensor, kept: Tensor, readout: Readout
    ) -> None:
        self.readout, self._at = readout, [tensor.detach().requires_grad_() for tensor in at.values()]
        with torch.enable_grad(), differentiable_twice():
            named = dict(zip((f"network.{path}" for path in at), self._at, strict=True))
            self._value = functional_call(features, named, (start, kept))
        self.value = self._value.detach()
        self._split: tuple[Tensor, Sequence[Tensor]] | None = None
        self._whole: tuple[_Direction, Sequence[Tensor]] | None = None

    def push(self, direction: Sequence[Tensor], *, second: bool) -> tuple[Tensor, list[Tensor]]:
        """Return dh along `direction` (one tensor per weight) and, if `second`, the second derivatives of <c, h>."""
        if self._split is None:
            cotangent = self.readout.cotangent(self.value).requires_grad_()
            self._split = (cotangent, self._pulled(cotangent))
        cotangent, pulled = self._split
        slopes = self._along(pulled, direction, [cotangent, *(self._at if second else [])])
        return slopes[0], slopes[1:]

    def multiply(
        self, direction: Sequence[Tensor], unembedding: Tensor | None, *, with_weight: bool
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return H v, one tensor per weight and one for the unembedding, along `direction` and `unembedding`."""
        if self._whole is None:
            seen = _Direction()
            with torch.enable_grad():
                cotangent = _Slope.apply(self._value, self.readout, seen)
            self._whole = (seen, self._pulled(cotangent))
        seen, pulled = self._whole
        seen.unembedding, seen.with_weight, seen.to_weight = unembedding, with_weight, None
        return self._along(pulled, direction, self._at), seen.to_weight

    def pull(self, cotangent: Tensor) -> list[Tensor]:
        """Return (dh/dw)^T `cotangent`, one tensor per weight."""
        with differentiable_twice():
            return gradients(self._value, self._at, cotangent)

    def _pulled(self, cotangent: Tensor) -> Sequence[Tensor]:
        with torch.enable_grad(), differentiable_twice():
            return gradients(self._value, self._at, cotangent, create_graph=True)

    @staticmethod
    def _along(pulled: Sequence[Tensor], direction: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradient of <pulled, direction>."""
        with torch.enable_grad(), differentiable_twice():
            pairs = zip(pulled, direction, strict=True)
            along = sum(
                (torch.dot(g.flatten(), v.flatten()) for g, v in pairs if g.requires_grad), wanted[0].new_zeros(())
            )
            return gradients(along, wanted)


class _Direction:
    """The direction of the unembedding in a product with H, and the product in the unembedding."""

    unembedding: Tensor | None = None
    to_weight: Tensor | None = None
    with_weight: bool = False


class _Slope(torch.autograd.Function):
    """The gradient of the loss in the features; its derivative is the Hessian, computed in chunks of tokens."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, readout: Readout, seen: _Direction) -> Tensor:
        ctx.readout, ctx.seen = readout, seen
        ctx.save_for_backward(features)
        return readout.cotangent(features)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor, None, None]:
        (features,) = ctx.saved_tensors
        weight = None if ctx.seen.unembedding is None else ctx.seen.unembedding.unsqueeze(0)
        tangents = Tangents(tangent.unsqueeze(0), weight)
        with torch.no_grad():
            products, to_weight = ctx.readout.products(features, tangents, Part.H, with_weight=ctx.seen.with_weight)
        ctx.seen.to_weight = None if to_weight is None else to_weight[0]
        return products[0], None, None


class Totals:
    """Sums of products, one tensor (*shape, k) per parameter, allocated on first use.

    Tensors that autograd returned are not modified in place, since two weights may have received the same tensor. For a
    single direction its pieces are used without a copy, since those of a whole network are as large as the network.
    """

    def __init__(self, columns: Sequence[Tensor]) -> None:
        self._empty = [
            partial(torch.zeros, column.shape, dtype=column.dtype, device=column.device) for column in columns
        ]
        self._width = columns[0].shape[-1]
        self._sums: list[Tensor | None] = [None for _ in columns]

    def add(self, place: int, k: int, piece: Tensor) -> None:
        """Add a piece of direction k."""
        total = self._sums[place]
        if self._width == 1:
            self._sums[place] = piece.unsqueeze(-1) if total is None else total + piece.unsqueeze(-1)
            return
        if total is None:
            total = self._sums[place] = self._empty[place]()
        total[..., k] += piece

    def tensors(self) -> list[Tensor]:
        """Return the sums; zero for parameters to which nothing was added."""
        pairs = zip(self._sums, self._empty, strict=True)
        return [empty() if held is None else held for held, empty in pairs]


class HeadedColumn(SidedColumn):
    """The blocks of a column, by plain double backward below the head.

    Batches are evaluated one after the other, so memory is that of one batch; if there is one batch, its graphs are
    kept between calls. vmap is not used, since products through LayerNorm are wrong under it (see
    double_backward.verified_or_fallback). With features z, outputs U z and the Hessian B of the loss in the outputs,
    H_o v = J_z^T U^T B U J_z v: outputs of a large vocabulary are computed in chunks and never stored.

    Parameters
    ----------
    objective : Objective
        The loss; its network is Headed, with methods `hidden` and `features` and an `unembedding`.
    layer, col, rows
        As in ColumnOperator.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature import Batch, HeadedColumn, Objective
    >>> from hessfig.curvature.losses import CrossEntropy
    >>> from hessfig.weights import Layout, Weight
    >>> class Words(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed, self.head = torch.nn.Embedding(7, 3), torch.nn.Linear(3, 7, bias=False)
    ...     unembedding = property(lambda self: self.head.weight)
    ...     def hidden(self, inputs, depth):
    ...         return self.embed(inputs)
    ...     def features(self, hidden, depth, scored):
    ...         return hidden[:, scored].tanh()
    ...     def from_hidden(self, hidden, depth, scored):
    ...         return self.head(self.features(hidden, depth, scored))
    >>> tokens, layout = torch.arange(6).view(2, 3), Layout((Weight("W_E", "embed.weight", 21),))
    >>> problem = Objective(Words().double(), Batch(tokens, tokens, slice(None)), CrossEntropy(), layout)
    >>> products = HeadedColumn(problem, 0, "W_E", ["W_E"]).split_matmat(torch.ones(21, 1).double())
    >>> [(row, str(part), tuple(one.shape)) for (row, part), one in products.items()]
    [('W_E', 'H_o', (21, 1)), ('W_E', 'H_f', (21, 1))]
    """

    def __init__(self, objective: Objective, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        super().__init__(objective, layer, col, rows)
        network = objective.network
        assert isinstance(network, Headed)
        self._network = network
        places = enumerate(zip(self.places, self.parameters, strict=True))
        # A tied embedding is in both lists, since the loss depends on it as an input and as an output weight.
        self._heads = _heads(self.parameters, network)
        is_tied = objective.depth(self.weights) is None
        self._body = {i: path for i, (path, _) in places if i not in self._heads or is_tied}
        self._features = Features(network, objective.depth(self.weights), objective.batch.scored)
        self._batches = [(self._features.start(batch.inputs), batch.targets) for batch in objective.batches]
        self._total = sum(int((targets != IGNORED).sum()) for _, targets in self._batches)
        self._kept: Graphs | None = None

    @property
    def bytes_per_probe(self) -> int:
        """Memory per probe: directions, products of two parts, and the rows selected from them."""
        entries = sum(parameter.numel() for parameter in self.parameters)
        return 4 * entries * self.dtype.itemsize

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V by (row, part), for every row and each of `parts`: one double backward per batch and probe."""
        columns = self.spread(probes.to(self.parameters[0].device))
        wanted = to_multiply(parts)
        sums = self._of_batches(range(len(self._batches)), columns, wanted)
        del columns  # as large as the products, which are copied next
        products = {part: totals.tensors() for part, totals in sums.items()}
        return completed(self.gathered(products), parts)

    def _of_batches(self, numbers: Iterable[int], columns: list[Tensor], wanted: Sequence[Part]) -> dict[Part, Totals]:
        """Return the sums of the products of the batches `numbers`."""
        sums = {part: Totals(columns) for part in wanted}
        for number in numbers:
            graphs = self._graphs(number)
            if wanted == [Part.H] and self._body:
                self._add_whole(sums[Part.H], columns, graphs)
            else:
                self._add(sums, columns, graphs)
        return sums

    def _graphs(self, number: int) -> Graphs:
        """Return the graphs of a batch; they are kept if it is the only batch, and otherwise recreated."""
        if self._kept is not None:
            return self._kept
        start, targets = self._batches[number]
        at = {path: self.parameters[place] for place, path in self._body.items()}
        matrices = [parameter.detach() for parameter in unembedding_of(self._network)]
        kept = targets.flatten() != IGNORED
        readout = Readout(_side_by_side(matrices), targets.flatten()[kept], self._total)
        graphs = Graphs(self._features, at, start, kept, readout)
        self._kept = graphs if len(self._batches) == 1 else None
        return graphs

    def _add_whole(self, totals: Totals, columns: list[Tensor], graphs: Graphs) -> None:
        """Add H v of one batch for all columns, with a single double backward per column."""
        for k in range(columns[0].shape[-1]):
            weight = self._of_head([column[..., k] for column in columns])
            direction = [columns[place][..., k] for place in self._body]
            pieces, to_weight = graphs.multiply(direction, weight, with_weight=bool(self._heads))
            self._into(totals, k, pieces)
            if to_weight is not None:
                self._add_to_head(totals, k, to_weight)

    def _add(self, sums: dict[Part, Totals], columns: list[Tensor], graphs: Graphs) -> None:
        """Add the products of one batch for all columns to `sums`."""
        tangents, seconds = self._pushed(columns, graphs, second=set(sums) != {Part.H_o})
        if tangents is None:
            return
        for part, totals in sums.items():
            down, to_weight = graphs.readout.products(graphs.value, tangents, part, with_weight=bool(self._heads))
            if to_weight is not None:
                for k, piece in enumerate(to_weight):
                    self._add_to_head(totals, k, piece)
            if self._body:
                self._pull(totals, down, graphs)
            if part != Part.H_o:
                for k, second in enumerate(seconds):
                    self._into(totals, k, second)

    def _pushed(
        self, columns: list[Tensor], graphs: Graphs, *, second: bool
    ) -> tuple[Tangents | None, list[list[Tensor]]]:
        """Return tangents of features and unembedding for all columns, and second derivatives by column."""
        pushed = [
            graphs.push([columns[place][..., k] for place in self._body], second=second)
            for k in range(columns[0].shape[-1])
            if self._body
        ]
        features = torch.stack([dh for dh, _ in pushed]) if pushed else None
        weight = self._of_head([column.movedim(-1, 0) for column in columns])
        if weight is not None and not weight.any():
            weight = None
        if features is None and weight is None:
            return None, []
        return Tangents(features, weight), [found for _, found in pushed if second]

    def _pull(self, totals: Totals, down: Tensor, graphs: Graphs) -> None:
        """Pull the cotangents of all columns back to the weights below the head; exact zeros need no pass."""
        for k, cotangent in enumerate(down):
            if cotangent.any():
                self._into(totals, k, graphs.pull(cotangent))

    def _of_head(self, columns: Sequence[Tensor]) -> Tensor | None:
        """Return the direction of the unembedding; parts that are not among the parameters are zero.

        `columns` has one direction, or several stacked ones, for every parameter.
        """
        if not self._heads:
            return None
        lead = columns[0].shape[: columns[0].ndim - self.parameters[0].ndim]
        directions = {id(self.parameters[place]): columns[place] for place in self._heads}
        parts = [
            directions[id(parameter)] if id(parameter) in directions else parameter.new_zeros(*lead, *parameter.shape)
            for parameter in unembedding_of(self._network)
        ]
        return _side_by_side(parts, len(lead))

    def _add_to_head(self, totals: Totals, k: int, piece: Float[Tensor, "vocabulary width"]) -> None:
        for place, chosen in self._heads.items():
            totals.add(place, k, piece[:, chosen])

    def _into(self, totals: Totals, k: int, pieces: Sequence[Tensor]) -> None:
        for place, piece in zip(self._body, pieces, strict=True):
            totals.add(place, k, piece)


def _heads(parameters: Sequence[nn.Parameter], network: Headed) -> dict[int, slice | int]:
    """Return the columns of [unembedding, bias] that each parameter is, by its index; no entry for other parameters."""
    width = network.unembedding.shape[1]
    chosen: list[slice | int] = [slice(0, width), width]
    heads = list(zip(unembedding_of(network), chosen, strict=False))
    return {place: columns for place, one in enumerate(parameters) for head, columns in heads if one is head}


def _side_by_side(parts: Sequence[Tensor], lead: int = 0) -> Tensor:
    """Return a matrix with a bias as its last column; both have `lead` further axes in front."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part if part.ndim == lead + 2 else part.unsqueeze(-1) for part in parts], dim=-1)
