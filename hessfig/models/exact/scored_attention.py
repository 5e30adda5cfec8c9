"""The attention of the last layer at the scored positions, and the chain from its scores to the loss.

Second derivatives in two places of the chain are sums over the nonlinearities behind
both. This is Theorem 3.1 for H_o and Theorem 3.2 for H_f in contracted form, extended
to heads, norms, an MLP and cross-entropy: no factor with L d_V^3 rows is formed, only a
matrix of scores by scores for each item.
"""

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
    r"""z_h = sum_j A_hj x_j W_V^h with A = pattern(s), s_hj = q_h . k_hj / scale, for the query of each item.

    An item is a scored position of a sequence. Its output depends on the scores of its own
    query only, because this is the last layer; keys are those up to the last scored
    position, which the causal mask of the item's own position cuts.

    With A = softmax(s),

    .. math:: \frac{\partial z_h}{\partial s_{hj}} = A_{hj} (v_{hj} - z_h), \qquad
              \frac{\partial^2 \langle b, z_h \rangle}{\partial s_h^2}
              = \operatorname{diag}(g) - g A_h^T - A_h g^T, \quad g_j = A_{hj} \, (v_{hj} - z_h) \cdot b.

    The second is Lemma C.1 contracted with b = dl/dz. It follows from differentiating g_j
    once more: dA_hj/ds_hk = A_hj (delta_jk - A_hk), and dz_h/ds_hk as above.

    Parameters
    ----------
    objective : Objective
        In float64; gives the tokens, the scored positions and the network.
    model : ModelConfig
        A transformer, or bare attention, whose outputs are the mixed values.
    """

    def __init__(self, objective: Objective, model: ModelConfig) -> None:
        scored, network = objective.batch.scored, objective.network
        hidden, inputs, self.weights, self.scale, mask = _read(
            network, model, objective.batch.inputs
        )
        self.heads = model.n_heads
        self.per_sequence = scored.stop - scored.start
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
        """m_h = sum_j A_hj x_j, the inputs of W_V^h: z_h = m_h W_V^h."""
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
        """Return rows dz/ds, heads side by side.

        The heads' scores act on their own values only, so dz/ds is block diagonal and each head
        is multiplied by itself: 2 r (d_head keys heads) operations per item.

        Parameters
        ----------
        rows : (n or 1, r, heads d_head)
            For example R df/dz, with r the number of outputs.
        """
        by_head = rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (by_head @ self.value_slopes.mT).transpose(1, 2).flatten(2)

    def curvature(
        self, gradient: Float[Tensor, "n scores"]
    ) -> Float[Tensor, "#n scores scores"] | None:
        """Return d2<dl/dz, z>/ds2 from g = dl/ds: diag(g) - g A^T - A g^T in each head; None for linear attention.

        The values drop out: they enter through g alone. Each row of the result sums to zero in
        exact arithmetic, since softmax does not change when a constant is added to s.

        Parameters
        ----------
        gradient : (n, heads keys)
            dl/ds, from `pull`.
        """
        if self.is_linear:
            return None
        by_head = gradient.unflatten(-1, (self.heads, -1))
        mixed = by_head[..., :, None] * self.pattern[..., None, :]
        return block_diagonal(torch.diag_embed(by_head) - mixed - mixed.mT)

    def score_features(
        self, keys: Float[Tensor, "#n heads keys k"]
    ) -> Float[Tensor, "#n scores heads_k"]:
        """Return ds/du for a vector u whose heads are multiplied by their own `keys`: s_hj = u_h . keys_hj / scale.

        The query u = q has `keys` = k_hj; the vector W_K^h^T q_h, through which W_K enters, has
        `keys` = x_j, the inputs of the keys.
        """
        return block_diagonal(keys) / self.scale

    def head_scores(self, head: int) -> slice:
        """Return the indices of the scores of `head`."""
        count = self.keys_in.shape[1]
        return slice(head * count, (head + 1) * count)

    def _keys(
        self, known: Float[Tensor, "batch keys d"]
    ) -> Float[Tensor, "#n heads keys k"]:
        """Return the keys k_hj; with W_QK = W_Q W_K^T as one matrix they are the inputs x_j."""
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
        """Return the mixing weights A, and keep dA/ds as far as it is diagonal.

        Softmax has dA/ds = diag(A) - A A^T; `_pattern_slope` is A there, and the centred values
        v - z supply the rest. Linear attention has A = s, and the slope is the mask.
        """
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
    """Return one matrix per item with the blocks of the heads along its diagonal.

    Examples
    --------
    >>> block_diagonal(torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])).tolist()
    [[[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 4.0]]]
    """
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
    r"""Scores -> mixed values -> attention output -> ... -> logits; items are the scored positions of all sequences.

    In the last layer the loss is a sum over items. A second derivative in two places of the
    chain is a sum over the nonlinearities after both,

    .. math:: \sum_{\Lambda} \Big(\frac{\partial\,\text{input}}{\partial\,\text{first}}\Big)^T \Lambda \,
              \frac{\partial\,\text{input}}{\partial\,\text{second}},

    where Lambda is the second derivative of the nonlinearity contracted with the gradient
    of its output. The loss, with Lambda = d2l/df2 = R^T R, gives H_o; LayerNorms, a smooth
    activation and softmax give H_f (eq. 2, the Gauss-Newton split).

    Parameters
    ----------
    objective : Objective
        In float64.
    model : ModelConfig

    Raises
    ------
    OtherNetwork
        If the chain's outputs differ from those of the network (`check_same`).
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
        """Return R df/d(place) of each item, computed once.

        The v rows of R go backwards from the logits through the layer: one product per map, no
        Jacobian of width by width.
        """
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
        """Return d2<dl/df, f>/d later d earlier of each item; the last result is kept for the other pairs of heads.

        Zero at the logits, which are linear in W_U.
        """
        places = later, earlier
        if self._curvature[0] != places:
            self._curvature = places, self._curvature_of(later, earlier)
        return self._curvature[1]

    def _curvature_of(self, later: ScoredPlace, earlier: ScoredPlace) -> ItemMatrices:
        """Return the sum over the nonlinearities behind `later`, in the order of the chain.

        Behind the MLP's output it is the last norm; behind its hidden layer also the
        activation; behind the attention the whole tail; and behind the scores also the softmax,
        if both places are scores.
        """
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
        """Return d of/d by of each item, for `by` before `of`.

        From the scores, the columns are the left factor and the identity the right one, so that
        a feature is multiplied into the right factor and the rank is the number of scores.
        """
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
        """Return dl/d(place) of each item for every place, from the logits back to the scores.

        dl/dz = dl/da W_O^T, and dl/ds_hj = A_hj (v_hj - z_h) . dl/dz_h.
        """
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
        """Return R df/d(place), from that of the next place behind it."""
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
        """Return d2<dl/df, f>/d later d earlier of the tail: (da/d later)^T (d2<dl/df, f>/da2) (da/d earlier).

        Nothing without norms and with a piecewise linear activation.
        """
        if self._tail_curvature is None:
            return ItemMatrices()
        right = self._tail_curvature
        left = self._attended_columns(later)
        if earlier != ScoredPlace.attended:
            right = right @ self._attended_columns(earlier)
        return _formed(right if later == ScoredPlace.attended else left.mT @ right)

    def _hidden_curvature(self, earlier: ScoredPlace) -> ItemMatrices:
        """Return d2<dl/df, f>/dh d earlier, of the last norm and the activation.

        They are (do/dh)^T Lambda do/d earlier and diag(phi'' o dl/dphi) dh/d earlier.
        """
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
        """Return left^T Lambda do/d earlier, with Lambda of the last norm, as two factors of d rows."""
        second = self.ahead.second
        if not isinstance(second, LayerNormAt):
            return ItemMatrices()
        right = second.bend(
            self.gradients[ScoredPlace.final],
            self._columns(ScoredPlace.output, earlier),
        )
        return ItemMatrices(((left, right),))

    def _columns(self, of: ScoredPlace, by: ScoredPlace) -> Float[Tensor, "#n of by"]:
        """Return d of/d by as a matrix per item, forwards from `by`."""
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
