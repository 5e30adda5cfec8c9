"""Self-attention from TransformerLens's native class, with the ablations of the paper and query positions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge.sources.native import NativeAttention

from hessfig.config import Attention, ModelConfig, QueryKey
from hessfig.models.transformer.sinks import score_sink, with_sink


class SelfAttention(NativeAttention):
    """Causal self-attention: pattern(X W_Q W_K^T X^T / (t sqrt(d_head))) X W_V W_O (eq. 1 with a mask).

    Differs from the native class by `temperature` t, a linear pattern (scores kept, masked ones 0), the
    single-matrix query-key form X W_QK X^T, a sink on the first key, and an output at chosen query positions only.
    """

    def __init__(self, native: object, model: ModelConfig) -> None:
        super().__init__(native)
        self.temperature = model.temperature
        self.is_linear = model.attention == Attention.linear
        self.is_single = model.query_key == QueryKey.single
        self.sink = score_sink(model)
        if self.is_single:
            self.q = nn.Linear(self.d_model, self.n_heads * self.d_model)
            del self.k

    def forward(
        self, hidden: Float[Tensor, "batch length d_model"], queries: slice = slice(None)
    ) -> Float[Tensor, "batch queries d_model"]:
        """Return the attention output at the positions `queries`."""
        pattern = self.pattern(self.scores(hidden, queries), queries)
        mixed = pattern @ self._heads(self.v(hidden))
        return self.o(mixed.transpose(1, 2).flatten(2))

    def scores(self, hidden: Tensor, queries: slice) -> Float[Tensor, "batch n_heads queries length"]:
        """Return X W_Q W_K^T X^T / (t sqrt(d_head)), plus the sink, for the query positions, unmasked."""
        query = self._heads(self.q(hidden[:, queries]))
        key = hidden[:, None] if self.is_single else self._heads(self.k(hidden))
        return with_sink(query @ key.transpose(-2, -1) / (self.scale * self.temperature), self.sink)

    def pattern(self, scores: Tensor, queries: slice) -> Float[Tensor, "batch n_heads queries length"]:
        """Return the mixing weights: softmax over allowed keys, or the allowed scores themselves."""
        masked = self.causal_mask[queries, : scores.shape[-1]]
        if self.is_linear:
            return scores.masked_fill(masked, 0.0)
        return torch.softmax(scores.masked_fill(masked, float("-inf")), dim=-1)

    def _heads(self, rows: Tensor) -> Float[Tensor, "batch n_heads length d"]:
        return rows.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
