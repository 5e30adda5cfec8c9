"""One batch's features as a function of the weights: directions sent up, cotangents sent down, second derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.products.double_backward import differentiable_twice
from hessfig.models.layered import Headed


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

    The gradient of <G, v> gives both what a direction v does to the features (in c: dh v) and the second derivatives
    of <c, h> along v (in w): one double backward serves H_o and H_f. The graphs are made once for all directions.
    """

    def __init__(self, features: Features, at: Mapping[str, Tensor], start: Tensor) -> None:
        self._at = [tensor.detach().requires_grad_() for tensor in at.values()]
        with torch.enable_grad(), differentiable_twice():
            named = dict(zip((f"network.{path}" for path in at), self._at, strict=True))
            self._value = functional_call(features, named, (start,))
        self.value = self._value.detach()

    def linearise(self, cotangent: Tensor) -> None:
        """Record G at a cotangent c of the features."""
        self._cotangent = cotangent.detach().requires_grad_()
        with torch.enable_grad(), differentiable_twice():
            self._pulled = torch.autograd.grad(
                self._value, self._at, self._cotangent, create_graph=True, materialize_grads=True
            )

    def push(self, direction: Sequence[Tensor], *, second: bool) -> tuple[Tensor, list[Tensor]]:
        """Return dh along `direction` (one tensor a weight) and, if `second`, the second derivatives of <c, h>."""
        with torch.enable_grad(), differentiable_twice():
            pairs = zip(self._pulled, direction, strict=True)
            along = sum(((g * v).sum() for g, v in pairs if g.requires_grad), self._cotangent.new_zeros(()))
            wanted = [self._cotangent, *(self._at if second else [])]
            if not along.requires_grad:
                found = [torch.zeros_like(tensor) for tensor in wanted]
            else:
                found = list(torch.autograd.grad(along, wanted, retain_graph=True, materialize_grads=True))
        return found[0], found[1:]

    def pull(self, cotangent: Tensor) -> list[Tensor]:
        """Return dh^T `cotangent`, one tensor a weight."""
        with differentiable_twice():
            return list(
                torch.autograd.grad(
                    self._value, self._at, cotangent, retain_graph=True, materialize_grads=True
                )
            )
