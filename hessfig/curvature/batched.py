"""Products of small networks of users: double backward of many vectors at once, with graphs that are kept.

Forward mode is not used, because torch would import its compiler for it (seconds), and
curvlinops is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.column import (
    SPLIT,
    Column,
    Products,
    Rows,
    SidedColumn,
    completed,
    to_multiply,
)
from hessfig.curvature.double_backward import (
    DoubleBackward,
    TensorsOperator,
    differentiable_twice,
    differentiating,
    fault,
    gradients,
    of_second_order,
    summed,
)
from hessfig.curvature.large.memory import live_bytes
from hessfig.curvature.problem import Layered, Objective, Scalar
from hessfig.curvature.rounding import OUTPUTS, norm
from hessfig.errors import UserError
from hessfig.rng import in_turn, kept_draws, made_on, one_thread
from hessfig.terms import Part
from hessfig.weights import SMALL

AT_ONCE = 256  # vectors per batched backward pass
# Graphs of several batches that are kept between products, unless memory= gives another
# bound.
KEPT_BYTES = 2**26


def is_small(network: nn.Module) -> bool:
    """Whether a network has at most SMALL parameters; then graphs are kept, and one thread is fastest."""
    return sum(parameter.numel() for parameter in network.parameters()) <= SMALL


@contextmanager
def undisturbed(objective: Objective) -> Iterator[None]:
    """Enable gradients whatever mode the caller is in, keep random generators, and use one thread if small."""
    device = next(objective.network.parameters()).device
    is_limited = torch.get_num_threads() > 1 and is_small(objective.network)
    with (
        differentiating(),
        kept_draws(),
        made_on(device),
        one_thread() if is_limited else nullcontext(),
    ):
        yield


class SmallNetwork:
    """The Hessian of a small network of a user in all of its parameters; all columns share the same graphs.

    The products of a part are checked once, for all parameters together: they must be
    symmetric and agree with plain double backward. If they do not, or if a backward
    pass cannot be batched, `holds` is false for the part. Graphs of the first batch are
    kept, and those of further batches up to a bound.

    Another SmallNetwork of the same objective takes over what this one evaluated and
    checked, and its graphs if these take at most KEPT_BYTES.
    """

    def __init__(self, objective: Objective) -> None:
        self._shared: _Shared = objective.once("small", partial(_Shared, objective))
        self._suffix = self._shared.suffix
        self.names = self._shared.names
        self.at = self._shared.at
        self._bound = KEPT_BYTES if objective.memory is None else objective.memory
        self._own = dict[Part, _Graphs]()
        self.bytes_per_probe = self._suffix.bytes_per_probe

    @staticmethod
    def can_take(objective: Objective) -> bool:
        """Whether the network is a user's own and small."""
        return not isinstance(objective.network, Layered) and is_small(
            objective.network
        )

    def products(
        self, part: Part, columns: dict[str, Tensor], rows: Sequence[str]
    ) -> list[Tensor]:
        """Return A V in the parameters `rows`, (k, *shape) each; `columns` has the nonzero entries of V, likewise."""
        with torch.enable_grad(), differentiable_twice():
            return self.graphs(part).products(columns, rows)

    def holds(self, part: Part) -> bool:
        """Whether products of a part are right."""
        verdicts = self._shared.verdicts
        if part not in verdicts:
            verdicts[part] = self._holds(part)
        return verdicts[part]

    def kept_product(
        self, part: Part, columns: Sequence[str], rows: Sequence[str]
    ) -> Callable[[Tensor], Tensor] | None:
        """Return the product with one flat vector in the parameters `columns`, in `rows`, if graphs of H are kept."""
        graphs = [one for one in self.graphs(part).kept if isinstance(one, _Curved)]
        if not graphs:
            return None
        return _OneVector(
            [one.product(columns, rows) for one in graphs],
            [self.at[name] for name in columns],
        )

    def graphs(self, part: Part) -> _Graphs:
        """Return the graphs of a part, which are created once."""
        graphs = self._shared.graphs.get(part) or self._own.get(part)
        if graphs is None:
            graphs = self._graphs(part)
            (self._shared.graphs if graphs.size <= KEPT_BYTES else self._own)[part] = (
                graphs
            )
        return graphs

    def _graphs(self, part: Part) -> _Graphs:
        kind, terms = _Outer if part == Part.H_o else _Curved, self._suffix.terms(part)

        def graph(number: int) -> _Curved | _Outer:
            start, scalar = terms[number]
            with torch.enable_grad(), differentiable_twice():
                return kind(self._outputs(number, start), self.at, scalar)

        return _Graphs(
            graph, [start for start, _ in terms], list(self.at.values()), self._bound
        )

    def _outputs(self, number: int, start: Tensor) -> Tensor:
        outputs = self._suffix.at(self.at, start)
        self._suffix.check_held(number, outputs)
        return outputs

    def _holds(self, part: Part) -> bool:
        """Whether products of a part are right; a part that vanishes up to rounding is compared beside another one."""
        reliable = DoubleBackward(self._suffix, part, list(self.names))
        other_part: TensorsOperator = reliable
        if part == Part.H_f:
            other_part = _Whole(self, Part.H_o)
        if part == Part.H_o:  # of a loss that is linear in the outputs
            other_part = DoubleBackward(self._suffix, Part.H, list(self.names))
        try:
            return not fault(
                _Whole(self, part),
                reliable,
                other_part,
                {name: p for p, name in self.names.items()},
            )
        except UserError:
            raise
        except Exception:
            return False  # ColumnOperator raises the error that says why


class _Shared:
    """What every SmallNetwork of an objective has in common."""

    def __init__(self, objective: Objective) -> None:
        self.suffix = objective.suffix(objective.layout.weights)
        self.names = {
            p: name
            for name, p in self.suffix.named_parameters()
            if p.is_floating_point()
        }
        self.at = {
            name: p.detach().clone().requires_grad_() for p, name in self.names.items()
        }
        self.verdicts, self.graphs = dict[Part, bool](), dict[Part, _Graphs]()


class _Graphs:
    """The graphs of a part for every batch: the first ones are kept, the others are created anew for every product.

    `size` are the bytes of those that are kept.
    """

    def __init__(
        self,
        graph: Callable[[int], _Curved | _Outer],
        inputs: list[Tensor],
        at: list[Tensor],
        bound: float,
    ) -> None:
        self._graph, self._sizes = graph, [len(one) for one in inputs]
        self._kept = list[_Curved | _Outer]()
        _, first = live_bytes(lambda: self._kept.append(graph(0)), [*inputs, *at])
        most = bound * self._sizes[0] / max(first, 1)  # samples
        self._count = max(
            1, sum(samples <= most for samples in accumulate(self._sizes))
        )
        self.size = first * sum(self._sizes[: self._count]) / self._sizes[0]

    def products(self, columns: dict[str, Tensor], rows: Sequence[str]) -> list[Tensor]:
        """Return the sum of the products of all batches in `rows`; no graph is held while the next one is created."""
        return summed(
            self._of(number).products(columns, rows)
            for number in range(len(self._sizes))
        )

    @property
    def kept(self) -> list[_Curved | _Outer]:
        """The graphs of all batches, if all are kept; else none."""
        return self._kept if len(self._kept) == len(self._sizes) else []

    def _of(self, number: int) -> _Curved | _Outer:
        if number < len(self._kept):
            return self._kept[number]
        graph = self._graph(number)
        if number < self._count:
            self._kept.append(graph)
        return graph


class _Whole:
    """A part of the Hessian in all parameters of a network, with the interface that the checks of operators need."""

    def __init__(self, network: SmallNetwork, part: Part) -> None:
        self._network, self._part = network, part

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        paths = list(self._network.at)
        vectors = {
            path: column.movedim(-1, 0)
            for path, column in zip(paths, columns, strict=True)
        }
        return [
            found.movedim(0, -1)
            for found in self._network.products(self._part, vectors, paths)
        ]


class _Curved:
    """The Hessian of a scalar function of the outputs: H v is the gradient of <gradient, v>."""

    def __init__(self, outputs: Tensor, at: dict[str, Tensor], scalar: Scalar) -> None:
        self._at = at
        slopes = of_second_order(
            gradients(scalar(outputs), list(at.values()), create_graph=True)
        )
        self._slopes = dict(zip(at, slopes, strict=True))

    def products(self, columns: dict[str, Tensor], rows: Sequence[str]) -> list[Tensor]:
        """Return H V in `rows`."""
        return _pulled(
            [self._slopes[name] for name in columns],
            list(columns.values()),
            [self._at[row] for row in rows],
        )

    def product(self, columns: Sequence[str], rows: Sequence[str]) -> _Pulled:
        """Return the product with one vector, one tensor for each of `columns`, in `rows`."""
        kept = [
            place
            for place, name in enumerate(columns)
            if self._slopes[name].requires_grad
        ]
        slopes = [self._slopes[columns[place]] for place in kept]
        return _Pulled(kept, slopes, [self._at[row] for row in rows])


@dataclass(frozen=True)
class _Pulled:
    """Returns the gradient of <slopes, v> in `leaves`, for one vector v; `places` are those of the slopes in it."""

    places: Sequence[int]
    slopes: Sequence[Tensor]
    leaves: Sequence[Tensor]

    def __call__(self, along: Sequence[Tensor]) -> list[Tensor]:
        """Return one tensor per leaf, from one tensor per parameter of the vector."""
        if not self.slopes:
            return [torch.zeros_like(leaf) for leaf in self.leaves]
        vectors = [along[place] for place in self.places]
        grads = torch.autograd.grad(
            self.slopes, self.leaves, vectors, retain_graph=True, allow_unused=True
        )
        return [
            torch.zeros_like(leaf) if one is None else one
            for leaf, one in zip(self.leaves, grads, strict=True)
        ]


class _OneVector:
    """The sum of products of batches with one flat vector in the parameters `places`."""

    def __init__(self, batches: list[_Pulled], places: Sequence[Tensor]) -> None:
        self._batches = batches
        self._sizes = [one.numel() for one in places]
        self._shapes = [one.shape for one in places]

    def __call__(self, vector: Tensor) -> Tensor:
        """Return A v, flat."""
        split = zip(vector.split_with_sizes(self._sizes), self._shapes, strict=True)
        along = [piece.reshape(shape) for piece, shape in split]
        pieces = (
            self._batches[0](along)
            if len(self._batches) == 1
            else summed([one(along) for one in self._batches])
        )
        return (
            pieces[0].flatten()
            if len(pieces) == 1
            else torch.cat([piece.flatten() for piece in pieces])
        )


class _Outer:
    """J^T B J with the Hessian B of a scalar in the outputs; J v is the gradient of <J^T c, v> in c."""

    def __init__(self, outputs: Tensor, at: dict[str, Tensor], scalar: Scalar) -> None:
        self._at, self._outputs = at, outputs
        self._leaf = self._outputs.detach().requires_grad_()
        self._cotangent = torch.zeros_like(self._outputs).requires_grad_()
        (self._slope,) = gradients(scalar(self._leaf), [self._leaf], create_graph=True)
        pulled = of_second_order(
            gradients(
                self._outputs, list(at.values()), self._cotangent, create_graph=True
            )
        )
        self._pulled = dict(zip(at, pulled, strict=True))

    def products(self, columns: dict[str, Tensor], rows: Sequence[str]) -> list[Tensor]:
        """Return J^T B J V in `rows`."""
        tangents = _pulled(
            [self._pulled[name] for name in columns],
            list(columns.values()),
            [self._cotangent],
        )
        return _pulled(
            [self._outputs],
            _pulled([self._slope], tangents, [self._leaf]),
            [self._at[row] for row in rows],
        )


def _pulled(
    values: Sequence[Tensor],
    vectors: Sequence[Float[Tensor, "k ..."]],
    at: Sequence[Tensor],
) -> list[Tensor]:
    """Return the gradients of <values, v> in `at` for all k vectors at once, (k, *shape) each; graphs are kept.

    A single vector needs no vmap, which takes a third of the time for small networks;
    the bits are the same.
    """
    pairs = [
        (value, vector)
        for value, vector in zip(values, vectors, strict=True)
        if value.requires_grad
    ]
    grads: Sequence[Tensor | None] = [None] * len(at)
    if pairs:
        kept, along = zip(*pairs, strict=True)
        several = len(along[0]) > 1
        along = along if several else tuple(vector[0] for vector in along)
        grads = torch.autograd.grad(
            kept,
            at,
            along,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=several,
        )
        grads = (
            grads
            if several
            else [None if grad is None else grad[None] for grad in grads]
        )
    count = len(vectors[0])
    return [
        leaf.new_zeros(count, *leaf.shape) if grad is None else grad
        for leaf, grad in zip(at, grads, strict=True)
    ]


def pulled_back(
    outputs: Tensor, at: Sequence[Tensor], vectors: Float[Tensor, "k m"]
) -> Float[Tensor, "k n"]:
    """Return V d(outputs) / d(at), in batches of AT_ONCE vectors; graphs are kept.

    A combination of the vectors is also pulled back without vmap. If the results differ
    (LayerNorm under vmap, see docs/accuracy.md), every vector is pulled back without
    vmap.
    """

    def together(chunk: Float[Tensor, "k m"]) -> Float[Tensor, "k n"]:
        return torch.cat(
            [
                one.flatten(1)
                for one in _pulled([outputs], [chunk.view(-1, *outputs.shape)], at)
            ],
            dim=1,
        )

    def alone(vector: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
        return torch.cat(
            [
                piece.flatten()
                for piece in gradients(outputs, at, vector.view(outputs.shape))
            ]
        )

    pulled = torch.cat([together(chunk) for chunk in vectors.split(AT_ONCE)])
    factors = torch.linspace(-1, 1, len(vectors)).to(vectors)
    off = norm(factors @ pulled - alone(factors @ vectors))
    return (
        pulled
        if off <= OUTPUTS.of(pulled.dtype) * norm(pulled)
        else torch.stack([*map(alone, vectors)])
    )


class BatchedColumn(SidedColumn):
    """The blocks of a column of a SmallNetwork: H v = d/dw <g, v> and H_o v = J^T B J v, for all vectors at once.

    ColumnOperator computes the products of a part whose batched products do not agree
    with plain double backward.

    Parameters
    ----------
    network : SmallNetwork
        The graphs, which all columns of a problem share.
    objective, layer, col, rows
        As in ColumnOperator.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature.batched import BatchedColumn, SmallNetwork
    >>> rows = {name: (0, name) for name in ("weight", "bias")}
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> column = BatchedColumn(SmallNetwork(problem), problem, 0, "weight", rows)
    >>> products = column.split_matmat(torch.ones(6, 1).double())
    >>> sorted((row, str(part), tuple(one.shape)) for (row, part), one in products.items())
    [('bias', 'H_f', (2, 1)), ('bias', 'H_o', (2, 1)), ('weight', 'H_f', (6, 1)), ('weight', 'H_o', (6, 1))]
    """

    def __init__(
        self,
        network: SmallNetwork,
        objective: Objective,
        layer: int,
        col: str,
        rows: Rows,
    ) -> None:
        super().__init__(objective, layer, col, rows)
        self._network, self._given = network, (objective, layer, col, rows)
        self.bytes_per_probe = network.bytes_per_probe

    @cached_property
    def _other(self) -> Column:
        from hessfig.curvature.curvlinops import ColumnOperator

        return ColumnOperator(*self._given)

    def kept_product(
        self, row: Hashable, part: Part
    ) -> Callable[[Tensor], Tensor] | None:
        """Return v -> A v, as SidedColumn says; None for views of parameters, and for H_o."""
        if not (self._is_of_whole and self._are_whole and self._network.holds(part)):
            return None
        names = {
            path: self._network.names[one]
            for path, one in zip(self.places, self.parameters, strict=True)
        }
        columns, rows = (
            [names[one.parameter] for one in side]
            for side in (self.col, self.rows[row])
        )
        return self._network.kept_product(part, columns, rows)

    @in_turn
    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V of every row, all columns of `probes` at once for each of `parts`."""
        asked = to_multiply(parts)
        if not all(self._network.holds(part) for part in asked):
            return self._other.split_matmat(probes, parts)
        spread = self.spread(probes.to(self.parameters[0].device))
        names = [self._network.names[parameter] for parameter in self.parameters]
        places = {self.places[weight.parameter] for weight in self.col}
        columns = {
            names[place]: spread[place].movedim(-1, 0) for place in sorted(places)
        }
        products = {
            part: self._network.products(part, columns, names) for part in asked
        }
        return completed(
            self.gathered(
                {part: [p.movedim(0, -1) for p in products[part]] for part in asked}
            ),
            parts,
        )
