"""The graphs of one batch, created once for all directions, and the sums of products over batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hessfig.curvature.double_backward import (
    differentiable_twice,
    gradients,
    narrowest_type,
    of_second_order,
)
from hessfig.curvature.large.readouts import Direction, Readout

_Edges = Sequence[GradientEdge | None]


class _SplitGraph(NamedTuple):
    """The graph of G(w, c) at c = dl/dh, for tangents and H_f."""

    cotangent: Tensor
    pulled: _Edges


class _WholeGraph(NamedTuple):
    """The graph of G(w, c(w)) with the gradient c of the loss as a function of w, for H."""

    head: Direction
    pulled: _Edges


class Graphs:
    r"""Features h(w), and the pull-back G(w, c) = (dh/dw)^T c as a function of weights and cotangent.

    With the loss L(w) = l(h(w)) and its gradient c(h) = dl/dh in the features,

    .. math:: \frac{\partial \langle G, v \rangle}{\partial c} = \frac{dh}{dw} v
              \;\text{ (tangent)}, \qquad
              \frac{\partial \langle G, v \rangle}{\partial w}\Big|_c
              = \sum_i c_i \frac{d^2 h_i}{dw^2} v, \qquad
              \frac{d \langle G(w, c(h(w))), v \rangle}{dw} = H v.

    The first two serve H_o and H_f, split at the features (`push`); the third one is the
    whole product in a single backward pass (`multiply`), since G(w, c(h(w))) is the
    gradient of L. If c depends on weights beyond h (an unembedding), the readout adds what
    they contribute. Each graph is created once for all directions, on first use.

    Parameters
    ----------
    features : callable
        h, from a dictionary of leaves by path.
    at : dict
        The weights by path.
    readout : Readout
        l, with its derivatives in the features.

    Attributes
    ----------
    value : tensor
        h(w).
    paths : list of str
        The parameters that h depends on; derivatives are taken in these.
    """

    def __init__(
        self,
        features: Callable[[dict[str, Tensor]], Tensor],
        at: Mapping[str, Tensor],
        readout: Readout,
    ) -> None:
        leaves = {path: tensor.detach().requires_grad_() for path, tensor in at.items()}
        with torch.enable_grad(), differentiable_twice():
            self._value = features(leaves)
        reached = _leaves_of(self._value)
        self.paths = [path for path, leaf in leaves.items() if leaf in reached]
        self.readout = readout
        self._at = [leaves[path] for path in self.paths]
        self.value = self._value.detach()
        self._split: _SplitGraph | None = None
        self._whole: _WholeGraph | None = None
        # Not itself: a cycle would wait for the garbage collector.
        self._of_all: Graphs | None = None
        # Among those of all parameters.
        self._places = list(range(len(self.paths)))

    def of(self, paths: Container[str]) -> Graphs:
        """Return the same graphs with derivatives in some of their parameters.

        A direction that is zero in the others, and products in these alone: graphs of all
        parameters serve every column of the Hessian.
        """
        whole = self._all
        some = copy.copy(self)
        some._of_all = whole
        some._places = [place for place in self._places if whole.paths[place] in paths]
        some.paths = [whole.paths[place] for place in some._places]
        some._at = [whole._at[place] for place in some._places]
        return some

    @property
    def _all(self) -> Graphs:
        """The graphs in all parameters that h depends on."""
        return self if self._of_all is None else self._of_all

    @property
    def computed_in(self) -> torch.dtype:
        """The type with the fewest digits in the evaluation of h."""
        return narrowest_type(self._value)

    def push(
        self, direction: Sequence[Tensor], *, second: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return dh along `direction` (one tensor per path) and, if `second`, the second derivatives of <c, h>.

        Both are gradients of the one number <G(w, c), v>, in c and in the weights: a single
        backward pass through the graph of G at fixed c = dl/dh.
        """
        if self._all._split is None:
            cotangent = self.readout.cotangent(self.value).requires_grad_()
            pulled = self._all._pulled(cotangent)
            self._all._split = _SplitGraph(cotangent, pulled)
        cotangent, pulled = self._all._split
        wanted = [cotangent]
        if second:
            wanted += self._at
        tangent, *products = self._along(pulled, direction, wanted)
        return tangent, products

    def multiply(
        self,
        direction: Sequence[Tensor],
        unembedding: Tensor | None,
        *,
        with_weight: bool,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return H v, one tensor per path and one for the unembedding, along `direction` and `unembedding`.

        One backward pass through the graph of G(w, c(w)). A direction of the unembedding changes
        c too: it is put into `head`, which the readout's step of the pass reads, adds, and
        leaves the product of the unembedding in (readouts._Slope).

        Parameters
        ----------
        direction : sequence of tensors
            v, one tensor per path.
        unembedding : tensor (vocabulary, width), or None
            The direction of the unembedding.
        with_weight : bool
            Whether the product in the unembedding is wanted.
        """
        if self._all._whole is None:
            head = Direction()
            with torch.enable_grad():
                cotangent = self.readout.differentiable(self._value, head)
            self._all._whole = _WholeGraph(head, self._all._pulled(cotangent))
        head, pulled = self._all._whole
        # The code of a user, which runs in a product, may multiply itself.
        before = (head.unembedding, head.with_weight, head.to_weight)
        try:
            head.unembedding = unembedding
            head.with_weight = with_weight
            head.to_weight = None
            return self._along(pulled, direction, self._at), head.to_weight
        finally:
            head.unembedding, head.with_weight, head.to_weight = before

    def pull(self, cotangent: Tensor) -> list[Tensor]:
        """Return (dh/dw)^T `cotangent`, one tensor per path."""
        with differentiable_twice():
            return gradients(self._value, self._at, cotangent)

    def _pulled(self, cotangent: Tensor) -> _Edges:
        """Return the edges of G(w, c) in its graph; its values, as large as the network, are not kept."""
        with torch.enable_grad(), differentiable_twice():
            pulled = gradients(self._value, self._at, cotangent, create_graph=True)
            pulled = of_second_order(pulled)
        return [get_gradient_edge(one) if one.requires_grad else None for one in pulled]

    def _along(
        self, pulled: _Edges, direction: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the gradient of <pulled, direction> in `wanted`; pieces of it that are constant have no part."""
        edges = []
        vectors = []
        for place, vector in zip(self._places, direction, strict=True):
            edge = pulled[place]
            if edge is not None:
                edges.append(edge)
                vectors.append(vector)
        if not edges:
            return [torch.zeros_like(tensor) for tensor in wanted]
        with differentiable_twice():
            products = torch.autograd.grad(
                edges, wanted, vectors, retain_graph=True, materialize_grads=True
            )
        return list(products)


def _leaves_of(value: Tensor) -> set[Tensor]:
    """Return the leaves that a tensor depends on."""
    leaves = set()
    seen = set()
    ahead = [value.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # Only the nodes that accumulate the gradient of a leaf have it.
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        ahead += [further for further, _ in node.next_functions]
    return leaves


class Totals:
    """Sums of products, one tensor (*shape, k) per parameter, allocated on first use.

    Tensors that autograd returned are not modified in place, since two weights may have
    received the same tensor. For a single direction its pieces are used without a copy,
    since those of a whole network are as large as the network.
    """

    def __init__(self, columns: Sequence[Tensor]) -> None:
        # How to make each tensor, not the columns: they may be as large as the network.
        self._zeros = []
        for column in columns:
            shape = column.shape
            dtype = column.dtype
            device = column.device
            zeros = partial(torch.zeros, shape, dtype=dtype, device=device)
            self._zeros.append(zeros)
        self._width = columns[0].shape[-1]
        self._sums: list[Tensor | None] = [None for _ in columns]

    def add(self, place: int, k: int, piece: Tensor) -> None:
        """Add a piece of direction k."""
        total = self._sums[place]
        if self._width == 1:
            piece = piece.unsqueeze(-1)
            self._sums[place] = piece if total is None else total + piece
            return
        if total is None:
            total = self._sums[place] = self._zeros[place]()
        total[..., k] += piece

    def tensors(self) -> list[Tensor]:
        """Return the sums; zero for parameters to which nothing was added."""
        totals = []
        for total, zeros in zip(self._sums, self._zeros, strict=True):
            totals.append(zeros() if total is None else total)
        return totals
