"""The last layer, item by item: derivatives of the loss in every place a weight may enter."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config import Kind, ModelConfig
from hessfig.curvature.exact.items import ItemMatrices
from hessfig.curvature.exact.last_layer.mixing import Mixing, block_diagonal
from hessfig.curvature.exact.last_layer.normaliser import LayerNormAt
from hessfig.curvature.exact.last_layer.places import Place
from hessfig.curvature.exact.last_layer.tail import Tail
from hessfig.curvature.exact.readout import loss_rows
from hessfig.curvature.problem import Problem
from hessfig.curvature.same_network import check_same


class LastLayer:
    """Scores -> mixed values -> attention output -> ... -> logits; items are the scored positions of all sequences.

    In the last layer the loss is a sum over items, and a second derivative in two places is a sum over the
    nonlinearities behind both: (d input/d first)^T Lambda (d input/d second), Lambda the nonlinearity's second
    derivative contracted with the gradient of its output. The loss, with Lambda = d2l/df2 = R^T R, gives H_o;
    LayerNorms, a smooth activation and softmax give H_f.
    """

    def __init__(self, problem: Problem, model: ModelConfig) -> None:
        self.mixing = Mixing(problem, model)
        self.mixed = self.mixing.mixed.flatten(1)
        self.tail = None if model.kind == Kind.self_attention else self._tail(problem.network, model)
        outputs = self.mixed if self.tail is None else self.tail.logits
        check_same(problem, outputs.unflatten(0, (-1, self.mixing.per_sequence)), "exact engine")
        gradient, self.root = loss_rows(problem, outputs.unflatten(0, (-1, self.mixing.per_sequence)))
        self.gradients = self._gradients(gradient)
        self._jacobians: dict[Place, Tensor] = {}

    def jacobian(self, place: Place) -> Float[Tensor, "#n r place"]:
        """Return R d outputs/d place of each item, computed once."""
        if place not in self._jacobians:
            self._jacobians[place] = self._jacobian(place)
        return self._jacobians[place]

    def curvature(self, later: Place, earlier: Place) -> ItemMatrices:
        """Return d2<dl/df, f>/d later d earlier of each item."""
        if later == Place.logits:
            return ItemMatrices()
        if later == Place.output:
            return self._final_curvature(None, earlier)
        if later == Place.hidden:
            return self._hidden_curvature(earlier)
        total, scores = self._attention_curvature(later, earlier), self._score_curvature
        return total if later != Place.scores or scores is None else total + _formed(scores)

    def derivative(self, of: Place, by: Place) -> ItemMatrices:
        """Return d of/d by of each item, for `by` before `of`."""
        if (of, by) == (Place.active, Place.hidden):
            return ItemMatrices(diagonal=self.ahead.slope)
        columns = self._columns(of, by)
        if by == Place.scores:
            return ItemMatrices(((columns.mT, torch.eye(columns.shape[-1]).to(columns)),))
        return _formed(columns)

    @property
    def ahead(self) -> Tail:
        """The map from the attention output to the logits."""
        assert self.tail is not None, "bare attention has no weights behind the mixed values"
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
        return None if self.tail is None else self.tail.curvature(self.gradients)

    @cached_property
    def _score_curvature(self) -> Tensor | None:
        return self.mixing.curvature(self.gradients[Place.scores])

    def _tail(self, network: Any, model: ModelConfig) -> Tail:
        attended = network.layers[-1].attn.o(self.mixed)
        return Tail(network, model, attended + self.mixing.stream if model.attention_skip else attended)

    def _gradients(self, of_outputs: Float[Tensor, "n v"]) -> dict[Place, Tensor]:
        if self.tail is None:
            found = {Place.mixed: of_outputs}
        else:
            found = self.tail.gradients(of_outputs)
            found[Place.mixed] = found[Place.attended] @ self._output_weight
        return {**found, Place.scores: self.mixing.pull(found[Place.mixed][:, None])[:, 0]}

    def _jacobian(self, place: Place) -> Tensor:
        if place == Place.scores:
            return self.mixing.pull(self.jacobian(Place.mixed))
        if self.tail is None or place == Place.logits:
            return self.root.expand(len(self.mixed), -1, -1)
        if place == Place.mixed:
            return self.jacobian(Place.attended) @ self._output_weight
        if place == Place.hidden:
            return self.jacobian(Place.output) @ self.tail.mlp.fc_out.weight * self.tail.slope[:, None]
        return self.root @ (
            self.tail.logits_by_output if place == Place.output else self.tail.logits_by_attended
        )

    def _attention_curvature(self, later: Place, earlier: Place) -> ItemMatrices:
        if self._tail_curvature is None:
            return ItemMatrices()
        right, left = self._tail_curvature, self._attended_columns(later)
        if earlier != Place.attended:
            right = right @ self._attended_columns(earlier)
        return _formed(right if later == Place.attended else left.mT @ right)

    def _hidden_curvature(self, earlier: Place) -> ItemMatrices:
        total = self._final_curvature(self.ahead.output_by_hidden, earlier)
        if not self.ahead.is_smooth:
            return total
        bent = self.ahead.bend * self.gradients[Place.active]
        if earlier == Place.hidden:
            return total + ItemMatrices(diagonal=bent)
        return total + _formed(bent[:, :, None] * self._columns(Place.hidden, earlier))

    def _final_curvature(self, left: Tensor | None, earlier: Place) -> ItemMatrices:
        """left^T Lambda do/d earlier, Lambda that of the last normaliser."""
        second = self.ahead.second
        if not isinstance(second, LayerNormAt):
            return ItemMatrices()
        return ItemMatrices(
            ((left, second.bend(self.gradients[Place.final], self._columns(Place.output, earlier))),)
        )

    def _columns(self, of: Place, by: Place) -> Float[Tensor, "#n of by"]:
        if of == Place.mixed:
            return (
                self._mixed_slopes
                if by == Place.scores
                else torch.eye(self.mixed.shape[1]).to(self.mixed)[None]
            )
        if by in (Place.scores, Place.mixed, Place.attended):
            return self.ahead.push(of, self._attended_columns(by))
        output = self.ahead.identity[None] if by == Place.output else self.ahead.output_by_hidden
        return output if of == Place.output else self.ahead.second.push(output)

    def _attended_columns(self, by: Place) -> Float[Tensor, "#n d by"]:
        """da/d by."""
        if by == Place.attended:
            return self.ahead.identity[None]
        return self._output_weight @ self._mixed_slopes if by == Place.scores else self._output_weight[None]


def _formed(matrices: Tensor) -> ItemMatrices:
    return ItemMatrices(((None, matrices),))
