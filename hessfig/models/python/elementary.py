"""Modules of torch whose second derivatives are missing or wrong, in elementary operations that have right ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


class Bag(nn.EmbeddingBag):
    """EmbeddingBag by gathering and adding: the gradient of torch's own cannot be differentiated."""

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return the sum or mean of every bag's embeddings; the largest, and norms kept small, as torch does."""
        if self.mode == "max" or self.max_norm is not None:
            return super().forward(input, offsets, per_sample_weights)
        bag, count = _bags(input, offsets, last=bool(self.include_last_offset))
        words = input.flatten()
        factors = torch.ones_like(words, dtype=self.weight.dtype)
        if self.padding_idx is not None:
            factors = (words != self.padding_idx).to(self.weight)
        if self.mode == "mean":
            held = torch.zeros(count, dtype=factors.dtype, device=factors.device).index_add(0, bag, factors)
            factors = factors / held.clamp(min=1.0)[bag]
        elif per_sample_weights is not None:
            factors = factors * per_sample_weights.flatten()
        found = torch.zeros(count, self.weight.shape[1], dtype=factors.dtype, device=factors.device)
        return found.index_add(0, bag, factors[:, None] * F.embedding(words, self.weight))


class WeightNorm(parametrizations._WeightNorm):
    """Weight norm v g / |v|: the second derivatives of torch's fused one are wrong (2.15)."""

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """Return v g / |v|, the norms taken over every axis but one."""
        return weight_v * (weight_g / torch.norm_except_dim(weight_v, 2, self.dim))


OF: dict[type, type] = {nn.EmbeddingBag: Bag, parametrizations._WeightNorm: WeightNorm}


def differ(network: nn.Module) -> bool:
    """Whether a network has a module that is replaced."""
    return any(type(module) in OF for module in network.modules())


def replace_in(network: nn.Module) -> None:
    """Turn such modules of a network into these, in place."""
    for module in network.modules():
        if type(module) in OF:
            module.__class__ = OF[type(module)]


def _bags(words: Tensor, offsets: Any, *, last: bool) -> tuple[Tensor, int]:
    """Return the bag of every word, and how many bags there are."""
    if offsets is None:
        return torch.arange(len(words), device=words.device).repeat_interleave(words.shape[1]), len(words)
    starts = offsets[:-1] if last else offsets
    places = torch.arange(len(words), device=words.device)
    return torch.searchsorted(starts.contiguous(), places.to(starts), right=True) - 1, len(starts)
