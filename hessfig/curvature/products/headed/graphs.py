"""One batch's features as a function of the weights: directions sent up, cotangents sent down, second derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.products.double_backward import differentiable_twice
from hessfig.curvature.products.headed.readout import Readout, Tangents
from hessfig.models.layered import Headed
from hessfig.terms import Part


class Features(nn.Module):
    """The network without its unembedding, from the activations after `depth` layers (None: from the inputs) on."""

    def __init__(self, network: Headed, depth: int | None, scored: slice) -> None:
        super().__init__()
        self.network, self.depth, self.scored = network, depth, scored

    def start(self, inputs: Tensor) -> Tensor:
        """Return what `forward` takes: the activations below the weights, computed once."""
        with torch.no_grad():
            return inputs if self.depth is None else self.network.hidden(inputs, self.depth)

    def forward(self, start: Tensor) -> Tensor:
        """Return the features of every scored token of the batch, (tokens, width)."""
        depth = self.depth or 0
        hidden = self.network.hidden(start, 0) if self.depth is None else start
        return self.network.features(hidden, depth, self.scored).flatten(0, 1)


class Graphs:
    """Features h(w) at `start`, and G(w, c) = dh^T c: the pull-back as a function of weights and cotangent.

    With c held fixed, the gradient of <G, v> gives both what a direction v does to the features (in c: dh v) and the
    second derivatives of <c, h> along v (in w): H_f, and the tangent that H_o needs. With c the loss's gradient at
    h(w), it is H v at once. Each graph is made once for all directions, when it is first asked for.
    """

    def __init__(self, features: Features, at: Mapping[str, Tensor], start: Tensor, readout: Readout) -> None:
        self.readout, self._at = readout, [tensor.detach().requires_grad_() for tensor in at.values()]
        with torch.enable_grad(), differentiable_twice():
            named = dict(zip((f"network.{path}" for path in at), self._at, strict=True))
            self._value = functional_call(features, named, (start,))
        self.value = self._value.detach()
        self._split: tuple[Tensor, Sequence[Tensor]] | None = None
        self._whole: tuple[_Direction, Sequence[Tensor]] | None = None

    def push(self, direction: Sequence[Tensor], *, second: bool) -> tuple[Tensor, list[Tensor]]:
        """Return dh along `direction` (one tensor a weight) and, if `second`, the second derivatives of <c, h>."""
        if self._split is None:
            cotangent = self.readout.cotangent(self.value).requires_grad_()
            self._split = (cotangent, self._pulled(cotangent))
        cotangent, pulled = self._split
        found = self._along(pulled, direction, [cotangent, *(self._at if second else [])])
        return found[0], found[1:]

    def multiply(
        self, direction: Sequence[Tensor], unembedding: Tensor | None, *, with_weight: bool
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return H v, one tensor a weight, and that of the unembedding, along `direction` and `unembedding`."""
        if self._whole is None:
            seen = _Direction()
            with torch.enable_grad():
                cotangent = _Slope.apply(self._value, self.readout, seen)
            self._whole = (seen, self._pulled(cotangent))
        seen, pulled = self._whole
        seen.unembedding, seen.with_weight, seen.to_weight = unembedding, with_weight, None
        return self._along(pulled, direction, self._at), seen.to_weight

    def pull(self, cotangent: Tensor) -> list[Tensor]:
        """Return dh^T `cotangent`, one tensor a weight."""
        words: dict[str, Any] = {"retain_graph": True, "materialize_grads": True}
        with differentiable_twice():
            return list(torch.autograd.grad(self._value, self._at, cotangent, **words))

    def _pulled(self, cotangent: Tensor) -> Sequence[Tensor]:
        words: dict[str, Any] = {"create_graph": True, "materialize_grads": True}
        with torch.enable_grad(), differentiable_twice():
            return torch.autograd.grad(self._value, self._at, cotangent, **words)

    @staticmethod
    def _along(
        pulled: Sequence[Tensor], direction: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the gradient of <pulled, direction>."""
        with torch.enable_grad(), differentiable_twice():
            pairs = zip(pulled, direction, strict=True)
            along = sum(
                (torch.dot(g.flatten(), v.flatten()) for g, v in pairs if g.requires_grad),
                wanted[0].new_zeros(()),
            )
            if not along.requires_grad:
                return [torch.zeros_like(tensor) for tensor in wanted]
            return list(torch.autograd.grad(along, wanted, retain_graph=True, materialize_grads=True))


class _Direction:
    """What a product by H has beside the features: the unembedding's direction, and what is sent back to it."""

    unembedding: Tensor | None = None
    to_weight: Tensor | None = None
    with_weight: bool = False


class _Slope(torch.autograd.Function):
    """The loss's gradient in the features; its derivative is the loss's Hessian, a chunk of tokens at a time."""

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
            found, to_weight = ctx.readout.products(
                features, tangents, Part.H, with_weight=ctx.seen.with_weight
            )
        ctx.seen.to_weight = None if to_weight is None else to_weight[0]
        return found[0], None, None
