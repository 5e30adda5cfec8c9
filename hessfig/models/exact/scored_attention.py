"""Attention of the last layer at the scored positions: its derivatives in queries, keys and values."""

from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessfig.config.enums import Attention, Norm, QueryKey
from hessfig.config.science import ModelConfig
from hessfig.curvature.problem import Objective, check_same
from hessfig.models.components import score_sink, with_sink
from hessfig.models.exact.kronecker import ItemMatrices
from hessfig.models.exact.scored_layer import (
    LayerNormAt,
    ScoredEntry,
    ScoredPlace,
    Tail,
    loss_rows,
)
from hessfig.models.protocol import Structure, kind


class ScoredMixing:
    """z_h = sum_j A_hj x_j W_V^h with A = pattern(s), s_hj = q_h.k_hj / scale, for the query of each item.

    An item is a scored position of a sequence. Its output depends only on the scores of
    its own query; keys are those up to the last scored position.
    """

    def __init__(self, objective: Objective, model: ModelConfig) -> None:
        scored, network = objective.batch.scored, objective.network
        hidden, inputs, self.weights, self.scale, mask = _read(
            network, model, objective.batch.inputs
        )
        self.heads, self.per_sequence = model.n_heads, scored.stop - scored.start
        self.is_linear = model.attention == Attention.linear
        self.is_single = model.query_key == QueryKey.single
        self.sink = score_sink(model)
        self.stream = hidden[:, scored].flatten(0, 1)
        self.inputs = inputs[:, scored].flatten(0, 1)
        known = inputs[:, : scored.stop]
        self.keys_in = self._per_item(known)
        self.query = self.weights.q(self.inputs).unflatten(-1, (self.heads, -1))
        self.keys = self._keys(known)
        self.values = self._by_head(self.weights.v(known))
        self.pattern = self._pattern(
            ~mask[scored, : scored.stop].repeat(len(inputs), 1)[:, None]
        )

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
        if self.is_linear:
            centred = self.values
        else:
            centred = self.values - self.mixed[:, :, None]
        return self._pattern_slope[..., None] * centred

    @cached_property
    def input_slopes(self) -> Float[Tensor, "#n heads keys d"]:
        """dm_h/ds_hj = A_hj (x_j - m_h), or x_j for linear attention."""
        inputs = self.keys_in[:, None].expand(-1, self.heads, -1, -1)
        return self._pattern_slope[..., None] * (
            inputs if self.is_linear else inputs - self.mean[:, :, None]
        )

    def pull(self, rows: Float[Tensor, "#n r mixed"]) -> Float[Tensor, "#n r scores"]:
        """Return rows dz/ds, heads side by side."""
        by_head = rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (by_head @ self.value_slopes.mT).transpose(1, 2).flatten(2)

    def curvature(
        self, gradient: Float[Tensor, "n scores"]
    ) -> Float[Tensor, "#n scores scores"] | None:
        """Return d2<dl/dz, z>/ds2 from g = dl/ds: diag(g) - g A^T - A g^T in each head; None for linear attention."""
        if self.is_linear:
            return None
        by_head = gradient.unflatten(-1, (self.heads, -1))
        mixed = by_head[..., :, None] * self.pattern[..., None, :]
        return block_diagonal(torch.diag_embed(by_head) - mixed - mixed.mT)

    def score_features(
        self, keys: Float[Tensor, "#n heads keys k"]
    ) -> Float[Tensor, "#n scores heads_k"]:
        """Return ds/du for a vector u whose heads are multiplied by their own `keys`."""
        return block_diagonal(keys) / self.scale

    def head_scores(self, head: int) -> slice:
        """Return the indices of the scores of `head`."""
        count = self.keys_in.shape[1]
        return slice(head * count, (head + 1) * count)

    def _keys(
        self, known: Float[Tensor, "batch keys d"]
    ) -> Float[Tensor, "#n heads keys k"]:
        if self.is_single:
            return self.keys_in[:, None].expand(-1, self.heads, -1, -1)
        return self._by_head(self.weights.k(known))

    def _by_head(
        self, rows: Float[Tensor, "batch keys heads_k"]
    ) -> Float[Tensor, "#n heads keys k"]:
        return self._per_item(rows.unflatten(-1, (self.heads, -1)).transpose(1, 2))

    def _per_item(
        self, by_sequence: Float[Tensor, "batch ..."]
    ) -> Float[Tensor, "n ..."]:
        return by_sequence.repeat_interleave(self.per_sequence, dim=0)

    def _pattern(
        self, allowed: Bool[Tensor, "#n 1 keys"]
    ) -> Float[Tensor, "#n heads keys"]:
        scores = with_sink(
            (self.keys @ self.query[..., None]).squeeze(-1) / self.scale, self.sink
        )
        if self.is_linear:
            self._pattern_slope = allowed.to(scores)
            return scores * allowed
        self._pattern_slope = torch.softmax(
            scores.masked_fill(~allowed, float("-inf")), dim=-1
        )
        return self._pattern_slope


def block_diagonal(
    blocks: Float[Tensor, "#n heads a b"],
) -> Float[Tensor, "#n heads_a heads_b"]:
    """Return one matrix per item with the blocks of the heads along its diagonal."""
    if blocks.shape[1] == 1:
        return blocks[:, 0]
    identity = torch.eye(blocks.shape[1]).to(blocks)
    return torch.einsum("nhab,hg->nhagb", blocks, identity).flatten(3, 4).flatten(1, 2)


def _read(
    network: Any, model: ModelConfig, tokens: Tensor
) -> tuple[Tensor, Tensor, Any, float, Tensor]:
    """Return the residual stream, the attention's inputs, the module of its weights, its scale and its mask."""
    hidden = network.hidden(tokens, model.n_layers - 1)
    if kind(model.kind).structure == Structure.attention:
        mask = torch.zeros(
            hidden.shape[1], hidden.shape[1], dtype=torch.bool, device=hidden.device
        )
        return hidden, hidden, network, network.divisor, mask
    layer = network.layers[-1]
    inputs = hidden if model.norm == Norm.post else layer.ln1(hidden)
    return hidden, inputs, layer.attn, layer.attn.divisor, layer.attn.causal_mask


class LastLayer:
    """Scores -> mixed values -> attention output -> ... -> logits; items are the scored positions of all sequences.

    In the last layer the loss is a sum over items. A second derivative in two places is
    a sum over the nonlinearities after both: (d input/d first)^T Lambda (d input/d
    second), where Lambda is the second derivative of the nonlinearity contracted with
    the gradient of its output. The loss, with Lambda = d2l/df2 = R^T R, gives H_o;
    LayerNorms, a smooth activation and softmax give H_f.
    """

    def __init__(self, objective: Objective, model: ModelConfig) -> None:
        self.mixing = ScoredMixing(objective, model)
        self.mixed = self.mixing.mixed.flatten(1)
        is_bare = kind(model.kind).structure == Structure.attention
        self.tail = None if is_bare else self._tail(objective.network, model)
        items = self.mixed if self.tail is None else self.tail.logits
        outputs = items.unflatten(0, (-1, self.mixing.per_sequence))
        check_same(objective, outputs, "exact engine")
        gradient, self.root = loss_rows(objective, outputs)
        self.gradients = self._gradients(gradient)
        self._jacobians: dict[ScoredPlace, Tensor] = {}
        self._rows = WeakKeyDictionary[ScoredEntry, Tensor]()
        self._curvature: tuple[tuple[ScoredPlace, ScoredPlace] | None, ItemMatrices] = (
            None,
            ItemMatrices(),
        )

    def jacobian(self, place: ScoredPlace) -> Float[Tensor, "#n r place"]:
        """Return R d outputs/d place of each item, computed once."""
        if place not in self._jacobians:
            self._jacobians[place] = self._jacobian(place)
        return self._jacobians[place]

    def rows(self, entry: ScoredEntry) -> Float[Tensor, "#n r m"]:
        """Return R df/du of each item, for the vectors u of an entry; kept for the other pairs of heads."""
        if entry.feature is None:
            return self.jacobian(entry.place)
        if entry not in self._rows:
            self._rows[entry] = self.jacobian(entry.place) @ entry.feature
        return self._rows[entry]

    def curvature(self, later: ScoredPlace, earlier: ScoredPlace) -> ItemMatrices:
        """Return d2<dl/df, f>/d later d earlier of each item; kept for the other pairs of heads."""
        places = later, earlier
        if self._curvature[0] != places:
            self._curvature = places, self._curvature_of(later, earlier)
        return self._curvature[1]

    def _curvature_of(self, later: ScoredPlace, earlier: ScoredPlace) -> ItemMatrices:
        if later == ScoredPlace.logits:
            return ItemMatrices()
        if later == ScoredPlace.output:
            return self._final_curvature(None, earlier)
        if later == ScoredPlace.hidden:
            return self._hidden_curvature(earlier)
        total = self._attention_curvature(later, earlier)
        if later != ScoredPlace.scores or self._score_curvature is None:
            return total
        return total + _formed(self._score_curvature)

    def derivative(self, of: ScoredPlace, by: ScoredPlace) -> ItemMatrices:
        """Return d of/d by of each item, for `by` before `of`."""
        if (of, by) == (ScoredPlace.active, ScoredPlace.hidden):
            return ItemMatrices(diagonal=self.ahead.slope)
        columns = self._columns(of, by)
        if by == ScoredPlace.scores:
            return ItemMatrices(
                ((columns.mT, torch.eye(columns.shape[-1]).to(columns)),)
            )
        return _formed(columns)

    @property
    def ahead(self) -> Tail:
        """The map from the attention output to the logits."""
        assert self.tail is not None, (
            "bare attention has no weights behind the mixed values"
        )
        return self.tail

    @cached_property
    def _mixed_slopes(self) -> Float[Tensor, "#n mixed scores"]:
        """dz/ds, heads along the diagonal."""
        return block_diagonal(self.mixing.value_slopes.mT)

    @cached_property
    def _output_weight(self) -> Float[Tensor, "d mixed"]:
        return self.mixing.weights.o.weight

    @cached_property
    def _tail_curvature(self) -> Tensor | None:
        if self.tail is None:
            return None
        return self.tail.curvature(self.gradients)

    @cached_property
    def _score_curvature(self) -> Tensor | None:
        return self.mixing.curvature(self.gradients[ScoredPlace.scores])

    def _tail(self, network: Any, model: ModelConfig) -> Tail:
        attended = network.layers[-1].attn.o(self.mixed)
        return Tail(
            network,
            model,
            attended + self.mixing.stream if model.attention_skip else attended,
        )

    def _gradients(self, of_outputs: Float[Tensor, "n v"]) -> dict[ScoredPlace, Tensor]:
        if self.tail is None:
            slopes = {ScoredPlace.mixed: of_outputs}
        else:
            slopes = self.tail.gradients(of_outputs)
            slopes[ScoredPlace.mixed] = (
                slopes[ScoredPlace.attended] @ self._output_weight
            )
        return {
            **slopes,
            ScoredPlace.scores: self.mixing.pull(slopes[ScoredPlace.mixed][:, None])[
                :, 0
            ],
        }

    def _jacobian(self, place: ScoredPlace) -> Tensor:
        if place == ScoredPlace.scores:
            return self.mixing.pull(self.jacobian(ScoredPlace.mixed))
        if self.tail is None or place == ScoredPlace.logits:
            return self.root.expand(len(self.mixed), -1, -1)
        if place == ScoredPlace.mixed:
            return self.jacobian(ScoredPlace.attended) @ self._output_weight
        if place == ScoredPlace.hidden:
            return (
                self.jacobian(ScoredPlace.output)
                @ self.tail.mlp.fc_out.weight
                * self.tail.slope[:, None]
            )
        return self.root @ (
            self.tail.logits_by_output
            if place == ScoredPlace.output
            else self.tail.logits_by_attended
        )

    def _attention_curvature(
        self, later: ScoredPlace, earlier: ScoredPlace
    ) -> ItemMatrices:
        if self._tail_curvature is None:
            return ItemMatrices()
        right, left = self._tail_curvature, self._attended_columns(later)
        if earlier != ScoredPlace.attended:
            right = right @ self._attended_columns(earlier)
        return _formed(right if later == ScoredPlace.attended else left.mT @ right)

    def _hidden_curvature(self, earlier: ScoredPlace) -> ItemMatrices:
        total = self._final_curvature(self.ahead.output_by_hidden, earlier)
        if not self.ahead.is_smooth:
            return total
        bent = self.ahead.bend * self.gradients[ScoredPlace.active]
        if earlier == ScoredPlace.hidden:
            return total + ItemMatrices(diagonal=bent)
        return total + _formed(
            bent[:, :, None] * self._columns(ScoredPlace.hidden, earlier)
        )

    def _final_curvature(
        self, left: Tensor | None, earlier: ScoredPlace
    ) -> ItemMatrices:
        """Return left^T Lambda do/d earlier, with Lambda of the last norm."""
        second = self.ahead.second
        if not isinstance(second, LayerNormAt):
            return ItemMatrices()
        right = second.bend(
            self.gradients[ScoredPlace.final],
            self._columns(ScoredPlace.output, earlier),
        )
        return ItemMatrices(((left, right),))

    def _columns(self, of: ScoredPlace, by: ScoredPlace) -> Float[Tensor, "#n of by"]:
        if of == ScoredPlace.mixed and by == ScoredPlace.scores:
            return self._mixed_slopes
        if of == ScoredPlace.mixed:
            return torch.eye(self.mixed.shape[1]).to(self.mixed)[None]
        if by in (ScoredPlace.scores, ScoredPlace.mixed, ScoredPlace.attended):
            return self.ahead.push(of, self._attended_columns(by))
        if by == ScoredPlace.output:
            output = self.ahead.identity[None]
        else:
            output = self.ahead.output_by_hidden
        if of == ScoredPlace.output:
            return output
        return self.ahead.second.push(output)

    def _attended_columns(self, by: ScoredPlace) -> Float[Tensor, "#n d by"]:
        """Return da/d by."""
        if by == ScoredPlace.attended:
            return self.ahead.identity[None]
        if by == ScoredPlace.scores:
            return self._output_weight @ self._mixed_slopes
        return self._output_weight[None]


def _formed(matrices: Tensor) -> ItemMatrices:
    return ItemMatrices(((None, matrices),))
