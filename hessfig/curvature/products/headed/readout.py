"""Cross-entropy of logits = features @ unembedding^T and its Hessian's products, a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessfig.terms import Part

CHUNK_BYTES = 2**26  # of one tensor of logits


@dataclass(frozen=True)
class Tangents:
    """Directions: of the features, (k, tokens, width), and of the unembedding, (k, vocabulary, width), or neither."""

    features: Tensor | None
    unembedding: Tensor | None


@dataclass
class Readout:
    """The mean loss over `total` scored tokens, `targets` of which belong to this batch; W is the `unembedding`.

    With g = (p - y) / total the gradient and B = (diag(p) - p p^T) / total the Hessian in a token's logits z = W h, a
    direction has dz = W dh + dW h. Then H_o has B dz, pulled back to h and W, and H_f has g, paired with the mixed
    term dW dh of z: the only second-order term that the unembedding has.
    """

    unembedding: Float[Tensor, "vocabulary width"]
    targets: Int[Tensor, " tokens"]
    total: int
    _probabilities: Tensor | None = None

    def cotangent(self, features: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens width"]:
        """Return the loss's gradient in the features: W^T g."""
        pieces = [self._slope(features, chunk) @ self.unembedding for chunk in self._chunks(1)]
        return torch.cat(pieces)

    def products(
        self, features: Float[Tensor, "tokens width"], tangents: Tangents, part: Part, *, with_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `part` sends back to the features, (k, tokens, width), and (`with_weight`) to the unembedding."""
        k = next(len(one) for one in (tangents.features, tangents.unembedding) if one is not None)
        to_features = torch.zeros(k, *features.shape, dtype=features.dtype, device=features.device)
        to_weight = self.unembedding.new_zeros(k, *self.unembedding.shape) if with_weight else None
        for chunk in self._chunks(k):
            here = Tangents(
                None if tangents.features is None else tangents.features[:, chunk], tangents.unembedding
            )
            if part != Part.H_f:
                curved = self._curved(features, chunk, here)
                to_features[:, chunk] += curved @ self.unembedding
                if to_weight is not None:
                    to_weight += curved.transpose(1, 2) @ features[chunk]
            if part != Part.H_o:
                self._mix(self._slope(features, chunk), here, to_features[:, chunk], to_weight)
        return to_features, to_weight

    def _curved(
        self, features: Tensor, chunk: slice, tangents: Tangents
    ) -> Float[Tensor, "k chunk vocabulary"]:
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
        """Return p of a chunk of tokens; those of a batch that is a single chunk are kept."""
        if self._bytes_per_token * len(self.targets) > CHUNK_BYTES:
            return (features[chunk] @ self.unembedding.T).softmax(-1)
        if self._probabilities is None:
            self._probabilities = (features @ self.unembedding.T).softmax(-1)
        return self._probabilities[chunk]

    @property
    def _bytes_per_token(self) -> int:
        return len(self.unembedding) * self.unembedding.element_size()

    def _chunks(self, k: int) -> Iterator[slice]:
        """Yield slices of tokens, so many that k tensors of their logits take CHUNK_BYTES."""
        size = max(1, CHUNK_BYTES // (self._bytes_per_token * k))
        for start in range(0, len(self.targets), size):
            yield slice(start, min(start + size, len(self.targets)))
