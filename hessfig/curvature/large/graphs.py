"""The graphs of one batch, created once for all directions, and the sums of products over batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

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


class Graphs:
    """Features h(w), and the pull-back G(w, c) = (dh/dw)^T c as a function of weights and cotangent.

    For fixed c, the gradient of <G, v> in c is the tangent (dh/dw) v, which H_o needs,
    and its gradient in w is the second derivative of <c, h> along v, which is H_f v. If
    c is the gradient of the loss at h(w), the gradient in w is H v. Each graph is
    created once for all directions, on first use.

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
        self.readout, self._at = readout, [leaves[path] for path in self.paths]
        self.value = self._value.detach()
        self._split: tuple[Tensor, _Edges] | None = None
        self._whole: tuple[Direction, _Edges] | None = None
        self._of_all: Graphs | None = (
            None  # not itself: a cycle would wait for the garbage collector
        )
        self._places = list(range(len(self.paths)))  # among those of all parameters

    def of(self, paths: Container[str]) -> Graphs:
        """Return the same graphs with derivatives in some of their parameters."""
        some = copy.copy(self)
        some._of_all = self._all
        some._places = [
            place for place in self._places if self._all.paths[place] in paths
        ]
        some.paths = [self._all.paths[place] for place in some._places]
        some._at = [self._all._at[place] for place in some._places]
        return some

    @property
    def _all(self) -> Graphs:
        return self if self._of_all is None else self._of_all

    @property
    def computed_in(self) -> torch.dtype:
        """The type with the fewest digits in the evaluation of h."""
        return narrowest_type(self._value)

    def push(
        self, direction: Sequence[Tensor], *, second: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return dh along `direction` (one tensor per path) and, if `second`, the second derivatives of <c, h>."""
        if self._all._split is None:
            cotangent = self.readout.cotangent(self.value).requires_grad_()
            self._all._split = (cotangent, self._all._pulled(cotangent))
        cotangent, pulled = self._all._split
        slopes = self._along(
            pulled, direction, [cotangent, *(self._at if second else [])]
        )
        return slopes[0], slopes[1:]

    def multiply(
        self,
        direction: Sequence[Tensor],
        unembedding: Tensor | None,
        *,
        with_weight: bool,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return H v, one tensor per path and one for the unembedding, along `direction` and `unembedding`."""
        if self._all._whole is None:
            head = Direction()
            with torch.enable_grad():
                cotangent = self.readout.differentiable(self._value, head)
            self._all._whole = (head, self._all._pulled(cotangent))
        head, pulled = self._all._whole
        # A product within the code of a user.
        others = (head.unembedding, head.with_weight, head.to_weight)
        try:
            head.unembedding = unembedding
            head.with_weight = with_weight
            head.to_weight = None
            return self._along(pulled, direction, self._at), head.to_weight
        finally:
            head.unembedding, head.with_weight, head.to_weight = others

    def pull(self, cotangent: Tensor) -> list[Tensor]:
        """Return (dh/dw)^T `cotangent`, one tensor per path."""
        with differentiable_twice():
            return gradients(self._value, self._at, cotangent)

    def _pulled(self, cotangent: Tensor) -> _Edges:
        """Return the edges of G(w, c) in its graph; its values, as large as the network, are not kept."""
        with torch.enable_grad(), differentiable_twice():
            pulled = of_second_order(
                gradients(self._value, self._at, cotangent, create_graph=True)
            )
        return [get_gradient_edge(one) if one.requires_grad else None for one in pulled]

    def _along(
        self, pulled: _Edges, direction: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the gradient of <pulled, direction>."""
        edges = [pulled[place] for place in self._places]
        pairs = [
            (edge, v)
            for edge, v in zip(edges, direction, strict=True)
            if edge is not None
        ]
        if not pairs:
            return [torch.zeros_like(tensor) for tensor in wanted]
        along, vectors = zip(*pairs, strict=True)
        with differentiable_twice():
            return list(
                torch.autograd.grad(
                    along, wanted, vectors, retain_graph=True, materialize_grads=True
                )
            )


def _leaves_of(value: Tensor) -> set[Tensor]:
    """Return the leaves that a tensor depends on."""
    leaves, seen, ahead = set(), set(), [value.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaves |= {node.variable} if hasattr(node, "variable") else set()
        ahead += [further for further, _ in node.next_functions]
    return leaves


class Totals:
    """Sums of products, one tensor (*shape, k) per parameter, allocated on first use.

    Tensors that autograd returned are not modified in place, since two weights may have
    received the same tensor. For a single direction its pieces are used without a copy,
    since those of a whole network are as large as the network.
    """

    def __init__(self, columns: Sequence[Tensor]) -> None:
        self._empty = [
            partial(torch.zeros, column.shape, dtype=column.dtype, device=column.device)
            for column in columns
        ]
        self._width = columns[0].shape[-1]
        self._sums: list[Tensor | None] = [None for _ in columns]

    def add(self, place: int, k: int, piece: Tensor) -> None:
        """Add a piece of direction k."""
        total = self._sums[place]
        if self._width == 1:
            self._sums[place] = (
                piece.unsqueeze(-1) if total is None else total + piece.unsqueeze(-1)
            )
            return
        if total is None:
            total = self._sums[place] = self._empty[place]()
        total[..., k] += piece

    def tensors(self) -> list[Tensor]:
        """Return the sums; zero for parameters to which nothing was added."""
        pairs = zip(self._sums, self._empty, strict=True)
        return [empty() if held is None else held for held, empty in pairs]
