"""Products of small networks of users: double backward of many vectors at once, with graphs that are kept.

With g the gradient of the loss, H v = d<g, v>/dw: one backward pass through the graph
of g, which is created once. H_o v = J^T B J v takes three passes, since J v is the
gradient of <J^T c, v> in c. Forward mode is not used, because torch would import its
compiler for it (seconds), and curvlinops is not imported.
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
from hessfig.weights import SMALL, Weight

AT_ONCE = 256  # vectors per batched backward pass
# Graphs of several batches that are kept between products, unless memory= gives another
# bound.
KEPT_BYTES = 2**26


def is_small(network: nn.Module) -> bool:
    """Whether a network has at most SMALL parameters; then graphs are kept, and one thread is fastest."""
    return sum(parameter.numel() for parameter in network.parameters()) <= SMALL


@contextmanager
def undisturbed(objective: Objective) -> Iterator[None]:
    """Enable gradients whatever mode the caller is in, keep random generators, and use one thread if small.

    A product then depends on the problem and the vector alone: not on autocast, inference
    mode, TF32, a default device or draws of the caller, and small networks have the same
    bits for any number of threads.
    """
    device = next(objective.network.parameters()).device
    is_limited = torch.get_num_threads() > 1 and is_small(objective.network)
    threads = one_thread() if is_limited else nullcontext()
    with differentiating(), kept_draws(), made_on(device), threads:
        yield


class SmallNetwork:
    """The Hessian of a small network of a user in all of its parameters; all columns share the same graphs.

    H and H_f are d<g, v>/dw with the graph of the gradient g of a scalar of the outputs,
    and H_o is J^T B J with those of J^T c and of the slope in the outputs (`_WholeGraph`,
    `_OuterGraph`). vmap over the vectors makes one batched backward pass of k passes.

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
        self._bound: float = KEPT_BYTES
        if objective.memory is not None:
            self._bound = objective.memory
        # Graphs that are too large to be shared.
        self._large_graphs = dict[Part, _Graphs]()
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
        """Return A V in the parameters `rows`, (k, *shape) each; `columns` has the nonzero entries of V, likewise.

        Parameters that are not in `columns` have no part in <g, v>, and need no zeros.
        """
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
        """Return the product with one flat vector in the parameters `columns`, in `rows`, if graphs of H are kept.

        None for H_o, and if the graphs of some batch are not kept.
        """
        batches = []
        for graph in self.graphs(part).kept:
            if isinstance(graph, _WholeGraph):
                batches.append(graph.product(columns, rows))
        if not batches:
            return None
        return _OneVector(batches, [self.at[name] for name in columns])

    def shares_graphs(self, part: Part) -> bool:
        """Whether the graphs of a part exist, and are those of every SmallNetwork of the objective."""
        return part in self._shared.graphs

    def graphs(self, part: Part) -> _Graphs:
        """Return the graphs of a part, which are created once."""
        for place in (self._shared.graphs, self._large_graphs):
            if part in place:
                return place[part]
        graphs = self._graphs(part)
        place = self._shared.graphs if graphs.size <= KEPT_BYTES else self._large_graphs
        place[part] = graphs
        return graphs

    def _graphs(self, part: Part) -> _Graphs:
        """Return new graphs of a part: of J^T B J for H_o, of the gradient for H and for H_f.

        H_f is the Hessian of the loss linearised in the outputs, so that both are second
        derivatives of a scalar of the outputs (see Suffix.terms).
        """
        kind = _OuterGraph if part == Part.H_o else _WholeGraph
        terms = self._suffix.terms(part)

        def graph(number: int) -> _WholeGraph | _OuterGraph:
            start, scalar = terms[number]
            with torch.enable_grad(), differentiable_twice():
                return kind(self._outputs(number, start), self.at, scalar)

        starts = [start for start, _ in terms]
        return _Graphs(graph, starts, list(self.at.values()), self._bound)

    def _outputs(self, number: int, start: Tensor) -> Tensor:
        """Return the outputs of a batch; raises UserError if the loss has changed since."""
        outputs = self._suffix.at(self.at, start)
        self._suffix.check_held(number, outputs)
        return outputs

    def _holds(self, part: Part) -> bool:
        """Whether products of a part are right; a part that vanishes up to rounding is compared beside another one.

        The test is double_backward.fault for all parameters at once. H_f is zero for a network
        that is linear in its weights, and H_o for a loss that is linear in the outputs. Rounding
        errors have no relative size then, and are compared with the products of the other part:
        H_o for H_f, H for H_o.
        """
        reliable = DoubleBackward(self._suffix, part, list(self.names))
        other_part: TensorsOperator = reliable
        if part == Part.H_f:
            other_part = _AllParameters(self, Part.H_o)
        if part == Part.H_o:
            other_part = DoubleBackward(self._suffix, Part.H, list(self.names))
        parameters = {name: parameter for parameter, name in self.names.items()}
        try:
            return not fault(
                _AllParameters(self, part), reliable, other_part, parameters
            )
        except UserError:
            raise
        except Exception:
            return False  # ColumnOperator raises the error that says why


class _Shared:
    """What every SmallNetwork of an objective has in common.

    Attributes
    ----------
    names : dict
        The name of every parameter in the suffix.
    at : dict
        A copy of every parameter, by name: the leaves of all graphs.
    verdicts : dict
        Whether the products of a part are right, for the parts that were checked.
    graphs : dict
        The graphs of a part, if they take at most KEPT_BYTES.
    """

    def __init__(self, objective: Objective) -> None:
        self.suffix = objective.suffix(objective.layout.weights)
        self.names = {}
        self.at = {}
        for name, parameter in self.suffix.named_parameters():
            if parameter.is_floating_point():
                self.names[parameter] = name
                self.at[name] = parameter.detach().clone().requires_grad_()
        self.verdicts = dict[Part, bool]()
        self.graphs = dict[Part, _Graphs]()


class _Graphs:
    """The graphs of a part for every batch: the first ones are kept, the others are created anew for every product.

    With the measured bytes b_1 of the graph of the first batch of n_1 samples, graphs of
    n samples are taken to have b_1 n / n_1 bytes: activations are proportional to the
    samples. The first batches are kept whose samples together have at most `bound` bytes,
    the first one in any case. `size` are the bytes of those that are kept.
    """

    def __init__(
        self,
        graph: Callable[[int], _WholeGraph | _OuterGraph],
        inputs: list[Tensor],
        at: list[Tensor],
        bound: float,
    ) -> None:
        self._graph = graph
        self._sizes = [len(one) for one in inputs]
        self._kept = list[_WholeGraph | _OuterGraph]()
        # The first graph is measured; the others are in proportion to their samples.
        _, first = live_bytes(lambda: self._kept.append(graph(0)), [*inputs, *at])
        samples_in_bound = bound * self._sizes[0] / max(first, 1)
        within = [samples <= samples_in_bound for samples in accumulate(self._sizes)]
        # The first graph is kept in any case.
        self._count = max(1, sum(within))
        self.size = first * sum(self._sizes[: self._count]) / self._sizes[0]

    def products(self, columns: dict[str, Tensor], rows: Sequence[str]) -> list[Tensor]:
        """Return the sum of the products of all batches in `rows`; no graph is held while the next one is created."""
        return summed(
            self._of(number).products(columns, rows)
            for number in range(len(self._sizes))
        )

    @property
    def kept(self) -> list[_WholeGraph | _OuterGraph]:
        """The graphs of all batches, if all are kept; else none."""
        if len(self._kept) < len(self._sizes):
            return []
        return self._kept

    def _of(self, number: int) -> _WholeGraph | _OuterGraph:
        """Return the graph of a batch."""
        if number < len(self._kept):
            return self._kept[number]
        graph = self._graph(number)
        if number < self._count:
            self._kept.append(graph)
        return graph


class _AllParameters:
    """A part of the Hessian in all parameters of a network, with the interface that the checks of operators need."""

    def __init__(self, network: SmallNetwork, part: Part) -> None:
        self._network = network
        self._part = part

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        names = list(self._network.at)
        vectors = {}
        for name, column in zip(names, columns, strict=True):
            vectors[name] = column.movedim(-1, 0)
        products = self._network.products(self._part, vectors, names)
        return [product.movedim(0, -1) for product in products]


class _WholeGraph:
    r"""The Hessian of a scalar function of the outputs: H v is the gradient of <gradient, v>.

    With g = d scalar / dw, whose graph is kept,

    .. math:: (H v)_i = \frac{\partial}{\partial w_i} \sum_j g_j v_j.

    The sum over j takes the parameters of the column, and the derivatives are taken in
    those of the rows: one pass gives the blocks of a column in all of its rows.
    """

    def __init__(self, outputs: Tensor, at: dict[str, Tensor], scalar: Scalar) -> None:
        self._at = at
        leaves = list(at.values())
        slopes = gradients(scalar(outputs), leaves, create_graph=True)
        self._slopes = dict(zip(at, of_second_order(slopes), strict=True))

    def products(self, columns: dict[str, Tensor], rows: Sequence[str]) -> list[Tensor]:
        """Return H V in `rows`."""
        slopes = [self._slopes[name] for name in columns]
        leaves = [self._at[row] for row in rows]
        return _pulled(slopes, list(columns.values()), leaves)

    def product(self, columns: Sequence[str], rows: Sequence[str]) -> _Pulled:
        """Return the product with one vector, one tensor for each of `columns`, in `rows`."""
        places = []
        slopes = []
        for place, name in enumerate(columns):
            # A constant gradient has no second derivative.
            if self._slopes[name].requires_grad:
                places.append(place)
                slopes.append(self._slopes[name])
        return _Pulled(places, slopes, [self._at[row] for row in rows])


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
        products = []
        for leaf, grad in zip(self.leaves, grads, strict=True):
            products.append(torch.zeros_like(leaf) if grad is None else grad)
        return products


class _OneVector:
    """The sum of products of batches with one flat vector in the parameters `places`.

    v is cut into the parameters of the column, and the products in those of the row are
    joined: the bits of `SmallNetwork.products` for one vector, without its dictionaries.
    """

    def __init__(self, batches: list[_Pulled], places: Sequence[Tensor]) -> None:
        self._batches = batches
        self._sizes = [one.numel() for one in places]
        self._shapes = [one.shape for one in places]

    def __call__(self, vector: Tensor) -> Tensor:
        """Return A v, flat."""
        along = []
        pieces = vector.split_with_sizes(self._sizes)
        for piece, shape in zip(pieces, self._shapes, strict=True):
            along.append(piece.reshape(shape))
        # One batch and one row, the usual case, take no sum and no copy.
        if len(self._batches) == 1:
            products = self._batches[0](along)
        else:
            products = summed([batch(along) for batch in self._batches])
        if len(products) == 1:
            return products[0].flatten()
        return torch.cat([product.flatten() for product in products])


class _OuterGraph:
    """J^T B J with the Hessian B of a scalar in the outputs, and J = d outputs / dw.

    J^T c is linear in c, so that J v is the gradient of <J^T c, v> in c, at any c: the
    graph of J^T c at c = 0 is kept, and no forward mode is needed. B u is the gradient
    of <slope, u>, with the slope of the scalar in the outputs. A product takes three
    backward passes: through the graph of J^T c, of the slope, and of the outputs.
    """

    def __init__(self, outputs: Tensor, at: dict[str, Tensor], scalar: Scalar) -> None:
        self._at = at
        self._outputs = outputs
        self._leaf = outputs.detach().requires_grad_()
        self._cotangent = torch.zeros_like(outputs).requires_grad_()
        (self._slope,) = gradients(scalar(self._leaf), [self._leaf], create_graph=True)
        pulled = gradients(
            outputs, list(at.values()), self._cotangent, create_graph=True
        )
        self._pulled = dict(zip(at, of_second_order(pulled), strict=True))

    def products(self, columns: dict[str, Tensor], rows: Sequence[str]) -> list[Tensor]:
        """Return J^T B J V in `rows`."""
        pulled = [self._pulled[name] for name in columns]
        tangents = _pulled(pulled, list(columns.values()), [self._cotangent])
        curved = _pulled([self._slope], tangents, [self._leaf])
        return _pulled([self._outputs], curved, [self._at[row] for row in rows])


def _pulled(
    values: Sequence[Tensor],
    vectors: Sequence[Float[Tensor, "k ..."]],
    at: Sequence[Tensor],
) -> list[Tensor]:
    r"""Return the gradients of <values, v> in `at` for all k vectors at once, (k, *shape) each; graphs are kept.

    .. math:: \Bigl(\frac{\partial \, \text{values}}{\partial \, \text{at}}\Bigr)^\top v_1,
              \dots, \Bigl(\frac{\partial \, \text{values}}{\partial \, \text{at}}
              \Bigr)^\top v_k

    by one backward pass under vmap. A single vector needs no vmap, which takes a third of
    the time for small networks; the bits are the same. Values that do not depend on `at`
    are left out, and tensors of `at` that none depends on get zeros.
    """
    count = len(vectors[0])
    several = count > 1
    differentiable = []
    along = []
    for value, vector in zip(values, vectors, strict=True):
        if value.requires_grad:
            differentiable.append(value)
            along.append(vector if several else vector[0])
    grads: Sequence[Tensor | None] = [None] * len(at)
    if differentiable:
        grads = torch.autograd.grad(
            differentiable,
            at,
            along,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=several,
        )
    pulled = []
    for leaf, grad in zip(at, grads, strict=True):
        if grad is None:
            grad = leaf.new_zeros(count, *leaf.shape)
        elif not several:
            grad = grad[None]
        pulled.append(grad)
    return pulled


def pulled_back(
    outputs: Tensor, at: Sequence[Tensor], vectors: Float[Tensor, "k m"]
) -> Float[Tensor, "k n"]:
    """Return V J, J = d(outputs) / d(at), in batches of AT_ONCE vectors; graphs are kept.

    A combination c of the vectors is also pulled back without vmap: (c V) J = c (V J). If
    the results differ by more than rounding.OUTPUTS of the norm of V J (LayerNorm under
    vmap, see docs/accuracy.md), every vector is pulled back without vmap. The entries of c
    are distinct and not zero, so that errors of single rows are seen. The check costs one
    backward pass.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.batched import pulled_back
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pulled_back(w**2, [w], torch.eye(2)).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    def together(chunk: Float[Tensor, "k m"]) -> Float[Tensor, "k n"]:
        pieces = _pulled([outputs], [chunk.view(-1, *outputs.shape)], at)
        return torch.cat([piece.flatten(1) for piece in pieces], dim=1)

    def alone(vector: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
        pieces = gradients(outputs, at, vector.view(outputs.shape))
        return torch.cat([piece.flatten() for piece in pieces])

    pulled = torch.cat([together(chunk) for chunk in vectors.split(AT_ONCE)])
    factors = torch.linspace(0.5, 1, len(vectors)).to(vectors)
    difference = norm(factors @ pulled - alone(factors @ vectors))
    if difference <= OUTPUTS.of(pulled.dtype) * norm(pulled):
        return pulled
    return torch.stack([alone(vector) for vector in vectors])


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
        self._network = network
        self._arguments = (objective, layer, col, rows)
        self.bytes_per_probe = network.bytes_per_probe

    @cached_property
    def _other(self) -> Column:
        from hessfig.curvature.curvlinops import ColumnOperator

        return ColumnOperator(*self._arguments)

    def kept_product(
        self, row: Hashable, part: Part
    ) -> Callable[[Tensor], Tensor] | None:
        """Return v -> A v, as SidedColumn says; None for views of parameters, and for H_o."""
        if not (self._is_of_whole and self._are_whole and self._network.holds(part)):
            return None
        columns = self._names_of(self.col)
        return self._network.kept_product(part, columns, self._names_of(self.rows[row]))

    def shares_graphs(self, part: Part) -> bool:
        """Whether graphs are those of all columns, as SidedColumn says."""
        return self._network.holds(part) and self._network.shares_graphs(part)

    def _names_of(self, side: Sequence[Weight]) -> list[str]:
        """Return the names of the parameters of one side of a block, as the network has them."""
        places = [self.places[weight.parameter] for weight in side]
        return [self._network.names[self.parameters[place]] for place in places]

    @in_turn
    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V of every row, all columns of `probes` at once for each of `parts`.

        If the products of one of the parts are not right (SmallNetwork.holds), all of them are
        those of ColumnOperator, so that their sum is H V of one engine.
        """
        needed = to_multiply(parts)
        if not all(self._network.holds(part) for part in needed):
            return self._other.split_matmat(probes, parts)
        spread = self.spread(probes.to(self.parameters[0].device))
        names = [self._network.names[parameter] for parameter in self.parameters]
        places = {self.places[weight.parameter] for weight in self.col}
        # The network has vectors along the first axis, columns along the last one.
        columns = {}
        for place in sorted(places):
            columns[names[place]] = spread[place].movedim(-1, 0)
        products = {}
        for part in needed:
            found = self._network.products(part, columns, names)
            products[part] = [product.movedim(0, -1) for product in found]
        return completed(self.gathered(products), parts)
