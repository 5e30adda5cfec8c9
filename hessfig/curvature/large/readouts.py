"""How a loss depends on the features of a network: through an unembedding, in chunks of tokens, or directly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessfig.curvature.double_backward import gradients, of_second_order
from hessfig.curvature.problem import Scalar
from hessfig.terms import Part

CHUNK_BYTES = 2**26  # size of one tensor of logits


@dataclass(frozen=True)
class Tangents:
    """Directions of the features, (k, tokens, width), and of the unembedding, (k, vocabulary, width); each may be None.

    None stands for zero. A bias of the unembedding is its last column; the features then
    have a constant 1 as their last entry, whose direction is 0.
    """

    features: Tensor | None
    unembedding: Tensor | None

    @property
    def count(self) -> int:
        """The number k of directions."""
        either = self.features if self.features is not None else self.unembedding
        assert either is not None
        return len(either)

    def at(self, chunk: slice) -> Tangents:
        """Return the directions of a chunk of tokens."""
        if self.features is None:
            return self
        return Tangents(self.features[:, chunk], self.unembedding)


class Direction:
    """The direction of the unembedding in a product with H, and the product in the unembedding."""

    unembedding: Tensor | None = None
    to_weight: Tensor | None = None
    with_weight: bool = False


@runtime_checkable
class Readout(Protocol):
    """The loss of one batch as a function of the features of a network."""

    def cotangent(self, features: Tensor) -> Tensor:
        """Return the gradient of the loss in the features."""

    def differentiable(self, features: Tensor, direction: Direction) -> Tensor:
        """Return the gradient of the loss in the features, with a graph; `direction` is read when it is multiplied."""

    def products(
        self, features: Tensor, tangents: Tangents, part: Part, *, with_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return products of `part` in the features, (k, *features), and, `with_weight`, in the unembedding."""


class OutputReadout:
    """The loss of a batch whose features are the outputs of the network; its Hessian is computed by autograd.

    B u = d/df <dl/df, u> by one backward pass per direction through the graph of the
    gradient, which is kept. There is no second-order term: H_f is what the features
    contribute.

    Parameters
    ----------
    scalar : callable
        The loss as a function of the outputs, times the share of the batch.
    """

    def __init__(self, scalar: Scalar) -> None:
        self._scalar = scalar
        self._graph: tuple[Tensor, Tensor] | None = None

    def cotangent(self, features: Tensor) -> Tensor:
        """Return the gradient of the loss in the outputs."""
        return self._slope(features)[1].detach()

    def differentiable(self, features: Tensor, direction: Direction) -> Tensor:
        """Return the gradient of the loss in the outputs, with its graph."""
        del direction  # there is no unembedding
        (slope,) = of_second_order(
            gradients(self._scalar(features), [features], create_graph=True)
        )
        return slope

    def products(
        self, features: Tensor, tangents: Tangents, part: Part, *, with_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return B dz for every direction dz of the outputs z, (k, *outputs); zero for H_f.

        The features are the outputs, in which no weight is left: there is no second
        derivative of z, and no product in an unembedding.
        """
        del with_weight
        directions = tangents.features
        assert directions is not None
        if part == Part.H_f:
            return torch.zeros_like(directions), None
        leaf, slope = self._slope(features)
        curved = []
        for direction in directions:
            (product,) = gradients(slope, [leaf], direction)
            curved.append(product)
        return torch.stack(curved), None

    def _slope(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return a copy of the outputs and the gradient there with its graph, computed once."""
        if self._graph is None:
            with torch.enable_grad():
                leaf = features.detach().requires_grad_()
                (slope,) = of_second_order(
                    gradients(self._scalar(leaf), [leaf], create_graph=True)
                )
            self._graph = (leaf, slope)
        return self._graph


@dataclass
class VocabularyReadout:
    r"""The mean loss over `total` scored tokens, of which `targets` are in this batch; W is the `unembedding`.

    In the logits z = W h of a token, with the softmax p and the target y as a unit vector,
    the loss has the gradient g and the Hessian B,

    .. math:: g = \frac{p - y}{\text{total}}, \qquad
              B = \frac{\mathrm{diag}(p) - p p^\top}{\text{total}}, \qquad
              dz = W \, dh + dW \, h, \qquad d^2 z = 2 \, dW \, dh,

    along a direction (dh, dW). H_o is B dz, pulled back to h and W; H_f has the quadratic
    form <g, d^2 z>, the only second-order term of the unembedding. A chunk of tokens whose logits take at most
    CHUNK_BYTES is held at a time, and the softmax is computed again for every product
    unless the batch is one chunk: 2 vocabulary width operations more per token.

    Examples
    --------
    Of two equal logits, with W the identity, B = [[1, -1], [-1, 1]] / 4:

    >>> import torch
    >>> from hessfig.curvature.large.readouts import Tangents, VocabularyReadout
    >>> from hessfig.terms import Part
    >>> readout = VocabularyReadout(torch.eye(2), torch.tensor([0]), 1.0)
    >>> features = torch.zeros(1, 2)
    >>> readout.cotangent(features).tolist()
    [[-0.5, 0.5]]
    >>> along = Tangents(torch.tensor([[[1.0, 0.0]]]), None)
    >>> readout.products(features, along, Part.H_o, with_weight=False)[0].tolist()
    [[[0.25, -0.25]]]
    """

    unembedding: Float[Tensor, "vocabulary width"]
    targets: Int[Tensor, " tokens"]
    total: float
    _probabilities: Tensor | None = None

    def cotangent(
        self, features: Float[Tensor, "tokens width"]
    ) -> Float[Tensor, "tokens width"]:
        """Return the gradient of the loss in the features, W^T g."""
        pieces = []
        for chunk in self._chunks(1):
            g = self._slope(self._softmax(features, chunk), chunk)
            pieces.append(g @ self.unembedding)
        return torch.cat(pieces)

    def differentiable(self, features: Tensor, direction: Direction) -> Tensor:
        """Return W^T g as a function of the features."""
        slope: Tensor = _Slope.apply(features, self, direction)
        return slope

    def products(
        self,
        features: Float[Tensor, "tokens width"],
        tangents: Tangents,
        part: Part,
        *,
        with_weight: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return products of `part` in the features, (k, tokens, width), and, `with_weight`, in the unembedding.

        With dz = W dh + dW h for the direction (dh, dW), a token adds

            H_o   W^T B dz to the features,  (B dz) h^T to the unembedding
            H_f   dW^T g   to the features,  g dh^T     to the unembedding

        The first row is the transpose of (dh, dW) -> dz applied to B dz; the second one is the
        gradient of <g, dW dh>, half of that quadratic form, in dh and dW.
        """
        k = tangents.count
        to_features = features.new_zeros(k, *features.shape)
        to_weight = None
        if with_weight:
            to_weight = self.unembedding.new_zeros(k, *self.unembedding.shape)
        for chunk in self._chunks(k):
            here = tangents.at(chunk)
            p = self._softmax(features, chunk)
            if part != Part.H_f:
                curved = self._curved(features[chunk], p, here)
                to_features[:, chunk] += curved @ self.unembedding
                if to_weight is not None:
                    to_weight += curved.transpose(1, 2) @ features[chunk]
                del curved  # before the next tensor of this size
            if part != Part.H_o:
                g = self._slope(p, chunk)
                self._add_mixed(g, here, to_features[:, chunk], to_weight)
        return to_features, to_weight

    def product_in_weight(
        self,
        features: Float[Tensor, "tokens width"],
        direction: Float[Tensor, "1 vocabulary width"],
    ) -> Float[Tensor, "1 vocabulary width"]:
        """Return what `products` returns in the unembedding, along dW alone: the sum of (B dW h) h^T over tokens."""
        total = torch.zeros_like(direction)
        along = Tangents(None, direction)
        for chunk in self._chunks(1):
            h = features[chunk]
            curved = self._curved(h, self._softmax(features, chunk), along)
            total += curved.transpose(1, 2) @ h
        return total

    def _curved(
        self, features: Tensor, p: Tensor, tangents: Tangents
    ) -> Float[Tensor, "k chunk vocabulary"]:
        """Return B dz of a chunk of tokens with the probabilities p: p (dz - p.dz) / total, entry by entry.

        (diag(p) - p p^T) dz = p * dz - p (p.dz). It is computed in place: tensors of this size
        are what takes the memory.
        """
        dz = None
        if tangents.features is not None:
            dz = tangents.features @ self.unembedding.T
        if tangents.unembedding is not None:
            along = features @ tangents.unembedding.transpose(1, 2)
            dz = along if dz is None else dz.add_(along)
        assert dz is not None
        dz -= (p * dz).sum(-1, keepdim=True)
        return dz.mul_(p).div_(self.total)

    def _add_mixed(
        self,
        slope: Tensor,
        tangents: Tangents,
        to_features: Tensor,
        to_weight: Tensor | None,
    ) -> None:
        """Add the mixed second derivatives of z = W h, weighted with g: dW^T g, and g dh^T."""
        if tangents.unembedding is not None:
            to_features += slope @ tangents.unembedding
        if to_weight is not None and tangents.features is not None:
            to_weight += slope.T @ tangents.features

    def _slope(
        self, probabilities: Tensor, chunk: slice
    ) -> Float[Tensor, "chunk vocabulary"]:
        """Return g = (p - y) / total of a chunk of tokens."""
        difference = probabilities.clone()
        targets = self.targets[chunk]
        tokens = torch.arange(len(targets), device=difference.device)
        difference[tokens, targets] -= 1.0
        return difference.div_(self.total)

    def _softmax(
        self, features: Tensor, chunk: slice
    ) -> Float[Tensor, "chunk vocabulary"]:
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
        """Yield slices of tokens such that k tensors of their logits take at most CHUNK_BYTES; at least one slice.

        max(1, CHUNK_BYTES / (k vocabulary bytes)) tokens each. Without tokens there is one empty
        slice, so that sums have their shapes.
        """
        size = max(1, CHUNK_BYTES // (self._bytes_per_token * k))
        for start in range(0, max(1, len(self.targets)), size):
            yield slice(start, min(start + size, len(self.targets)))


class _Slope(torch.autograd.Function):
    """The gradient of the loss in the features; its derivative is the Hessian, computed in chunks of tokens."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, readout: VocabularyReadout, direction: Direction
    ) -> Tensor:
        """Return W^T g; the features are kept for the derivative."""
        ctx.readout, ctx.direction = readout, direction
        ctx.save_for_backward(features)
        return readout.cotangent(features)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor, None, None]:
        """Return H times the tangent in the features, and put the product in the unembedding into the direction.

        For the gradient c(h) of the loss in the features, the vector-Jacobian product is
        (dc/dh)^T t = H t, since the Hessian is symmetric. A direction dW of the unembedding adds
        the mixed derivative in h and W along dW. The unembedding's direction and product do not
        pass through autograd: they are attributes of `direction`.
        """
        (features,) = ctx.saved_tensors
        direction = ctx.direction
        weight = None
        if direction.unembedding is not None:
            weight = direction.unembedding.unsqueeze(0)
        tangents = Tangents(tangent.unsqueeze(0), weight)
        with torch.no_grad():
            products, to_weight = ctx.readout.products(
                features, tangents, Part.H, with_weight=direction.with_weight
            )
        direction.to_weight = None
        if to_weight is not None:
            direction.to_weight = to_weight[0]
        return products[0], None, None
