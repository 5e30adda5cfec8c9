"""One bare self-attention layer, the setting of the theorems."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config import Attention, ModelConfig, QueryKey


class BareAttention(nn.Module):
    """F(X) = a(X W_Q W_K^T X^T / (t sqrt(d_K))) X W_V (eq. 1): no mask, skip, bias or output projection.

    The inputs are `sigma` times a fixed Gaussian sample. Several heads split W_V's columns.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        d_head = model.d_head or model.d_model // model.n_heads
        self.n_heads, self.is_linear = model.n_heads, model.attention == Attention.linear
        self.is_single, self.scale = model.query_key == QueryKey.single, d_head**0.5 * model.temperature
        inner = model.n_heads * (model.d_model if self.is_single else d_head)
        self.q = nn.Linear(model.d_model, inner, bias=False)
        if not self.is_single:
            self.k = nn.Linear(model.d_model, inner, bias=False)
        self.v = nn.Linear(model.d_model, model.d_model, bias=False)
        self.sigma = 1.0

    def hidden(self, inputs: Float[Tensor, "batch length d_model"], depth: int) -> Tensor:
        """Return the scaled inputs (depth 0 is the only one)."""
        del depth
        return self.sigma * inputs

    def from_hidden(self, hidden: Float[Tensor, "batch length d_model"], depth: int, scored: slice) -> Tensor:
        """Return F at the scored positions."""
        del depth
        query = self._heads(self.q(hidden[:, scored]))
        key = hidden[:, None] if self.is_single else self._heads(self.k(hidden))
        scores = query @ key.transpose(-2, -1) / self.scale
        pattern = scores if self.is_linear else torch.softmax(scores, dim=-1)
        return (pattern @ self._heads(self.v(hidden))).transpose(1, 2).flatten(2)

    def _heads(self, rows: Tensor) -> Float[Tensor, "batch n_heads length d"]:
        return rows.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
