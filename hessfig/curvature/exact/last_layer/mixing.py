"""Attention of the last layer as a map per item: scores of one query -> mixing weights -> mixed values."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessfig.config import Attention, Kind, ModelConfig, Norm, QueryKey
from hessfig.curvature.problem import Problem
from hessfig.models.transformer.sinks import score_sink, with_sink


class Mixing:
    """z_h = sum_j A_hj x_j W_V^h with A = pattern(s), s_hj = q_h.k_hj / scale, for the query of each item.

    An item is a scored position of a sequence. Its output depends on the scores of its own query alone; the keys
    reach up to the last scored position.
    """

    def __init__(self, problem: Problem, model: ModelConfig) -> None:
        scored, network = problem.batch.scored, problem.network
        hidden, inputs, self.weights, self.scale, mask = _read(network, model, problem.batch.inputs)
        self.heads, self.per_sequence = model.n_heads, scored.stop - scored.start
        self.is_linear, self.is_single = (
            model.attention == Attention.linear,
            model.query_key == QueryKey.single,
        )
        self.sink = score_sink(model)
        self.stream, self.inputs = hidden[:, scored].flatten(0, 1), inputs[:, scored].flatten(0, 1)
        known = inputs[:, : scored.stop]
        self.keys_in = self._per_item(known)
        self.query = self.weights.q(self.inputs).unflatten(-1, (self.heads, -1))
        self.keys = self._keys(known)
        self.values = self._by_head(self.weights.v(known))
        self.pattern = self._pattern(~mask[scored, : scored.stop].repeat(len(inputs), 1)[:, None])

    @cached_property
    def mean(self) -> Float[Tensor, "#n heads d"]:
        """m_h = sum_j A_hj x_j."""
        return self.pattern @ self.keys_in

    @cached_property
    def mixed(self) -> Float[Tensor, "#n heads d_head"]:
        """z_h = sum_j A_hj v_hj."""
        return (self.pattern[:, :, None] @ self.values).squeeze(2)

    @cached_property
    def value_slopes(self) -> Float[Tensor, "#n heads keys d_head"]:
        """dz_h/ds_hj = A_hj (v_hj - z_h), or v_hj for linear attention."""
        centred = self.values if self.is_linear else self.values - self.mixed[:, :, None]
        return self._pattern_slope[..., None] * centred

    @cached_property
    def input_slopes(self) -> Float[Tensor, "#n heads keys d"]:
        """dm_h/ds_hj = A_hj (x_j - m_h), or x_j for linear attention."""
        inputs = self.keys_in[:, None].expand(-1, self.heads, -1, -1)
        return self._pattern_slope[..., None] * (inputs if self.is_linear else inputs - self.mean[:, :, None])

    def pull(self, rows: Float[Tensor, "#n r mixed"]) -> Float[Tensor, "#n r scores"]:
        """Return rows dz/ds, heads side by side."""
        by_head = rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (by_head @ self.value_slopes.mT).transpose(1, 2).flatten(2)

    def curvature(self, gradient: Float[Tensor, "n scores"]) -> Float[Tensor, "#n scores scores"] | None:
        """Return d2<dl/dz, z>/ds2 from g = dl/ds: diag(g) - g A^T - A g^T in each head; None for linear attention."""
        if self.is_linear:
            return None
        by_head = gradient.unflatten(-1, (self.heads, -1))
        mixed = by_head[..., :, None] * self.pattern[..., None, :]
        return block_diagonal(torch.diag_embed(by_head) - mixed - mixed.mT)

    def score_features(self, keys: Float[Tensor, "#n heads keys k"]) -> Float[Tensor, "#n scores heads_k"]:
        """Return ds/du for a u whose heads meet their own `keys`."""
        return block_diagonal(keys) / self.scale

    def head_scores(self, head: int) -> slice:
        """Return where the scores of `head` stand."""
        count = self.keys_in.shape[1]
        return slice(head * count, (head + 1) * count)

    def _keys(self, known: Float[Tensor, "batch keys d"]) -> Float[Tensor, "#n heads keys k"]:
        if self.is_single:
            return self.keys_in[:, None].expand(-1, self.heads, -1, -1)
        return self._by_head(self.weights.k(known))

    def _by_head(self, rows: Float[Tensor, "batch keys heads_k"]) -> Float[Tensor, "#n heads keys k"]:
        return self._per_item(rows.unflatten(-1, (self.heads, -1)).transpose(1, 2))

    def _per_item(self, by_sequence: Float[Tensor, "batch ..."]) -> Float[Tensor, "n ..."]:
        return by_sequence.repeat_interleave(self.per_sequence, dim=0)

    def _pattern(self, allowed: Bool[Tensor, "#n 1 keys"]) -> Float[Tensor, "#n heads keys"]:
        scores = with_sink((self.keys @ self.query[..., None]).squeeze(-1) / self.scale, self.sink)
        if self.is_linear:
            self._pattern_slope = allowed.to(scores)
            return scores * allowed
        self._pattern_slope = torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1)
        return self._pattern_slope


def block_diagonal(blocks: Float[Tensor, "#n heads a b"]) -> Float[Tensor, "#n heads_a heads_b"]:
    """Put the heads' blocks along the diagonal of one matrix per item."""
    if blocks.shape[1] == 1:
        return blocks[:, 0]
    identity = torch.eye(blocks.shape[1]).to(blocks)
    return torch.einsum("nhab,hg->nhagb", blocks, identity).flatten(3, 4).flatten(1, 2)


def _read(network: Any, model: ModelConfig, tokens: Tensor) -> tuple[Tensor, Tensor, Any, float, Tensor]:
    """Return the residual stream, the attention's inputs, the module of its weights, its scale and its mask."""
    hidden = network.hidden(tokens, model.n_layers - 1)
    if model.kind == Kind.self_attention:
        length = hidden.shape[1]
        return (
            hidden,
            hidden,
            network,
            network.scale,
            torch.zeros(length, length, dtype=torch.bool, device=hidden.device),
        )
    layer = network.layers[-1]
    inputs = hidden if model.norm == Norm.post else layer.ln1(hidden)
    return hidden, inputs, layer.attn, layer.attn.scale * layer.attn.temperature, layer.attn.causal_mask
