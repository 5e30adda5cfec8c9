"""From the attention output of an item to its logits: skip, normalisers, MLP, unembedding."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config import MLP, ModelConfig, Norm
from hessfig.curvature.exact.last_layer.normaliser import Identity, LayerNormAt, Normaliser
from hessfig.curvature.exact.last_layer.places import Place


class Tail:
    """The map from the attention output a to the logits of the last layer, linearised and bent once for all items.

    With e = a plus the skip: y = first(e), h = y W_in, o = carry + phi(h) W_out, f = second(o), logits = f W_U.
    The carry is e (no norm, pre-LN) or y (post-LN); `first` and `second` are LayerNorm or nothing.
    """

    def __init__(self, network: Any, model: ModelConfig, entering: Float[Tensor, "n d"]) -> None:
        layer, self.model, self.head = network.layers[-1], model, network.head
        self.mlp: Any = layer.mlp if model.mlp != MLP.none else None
        self.carries_normed = model.norm == Norm.post
        self.first = _normaliser(_first_norm(layer, model), entering)
        output = self.first.output if self.carries_normed else entering
        if self.mlp is not None:
            self.hidden = self.mlp.fc_in(self.first.output)
            self.active = self.mlp.act(self.hidden)
            output = output + self.mlp.fc_out(self.active)
        self.second = _normaliser(_second_norm(network, layer, model), output)
        self.logits = self.head(self.second.output)

    @property
    def is_smooth(self) -> bool:
        """Whether the activation has a second derivative."""
        return self.mlp is not None and self.model.mlp == MLP.gelu

    @cached_property
    def identity(self) -> Float[Tensor, "d d"]:
        return torch.eye(self.head.in_features).to(self.head.weight)

    @cached_property
    def slope(self) -> Float[Tensor, "n d_mlp"]:
        """phi'(h)."""
        if self.model.mlp == MLP.relu:
            return (self.hidden > 0).to(self.hidden)
        if self.model.mlp == MLP.linear:
            return torch.ones_like(self.hidden)
        return torch.special.ndtr(self.hidden) + self.hidden * _normal_density(self.hidden)

    @cached_property
    def bend(self) -> Float[Tensor, "n d_mlp"]:
        """phi''(h) of GELU: (2 - h^2) times the normal density."""
        return (2 - self.hidden.square()) * _normal_density(self.hidden)

    @cached_property
    def logits_by_output(self) -> Float[Tensor, "#n vocab d"]:
        """d logits/do."""
        return self.second.pull(self.head.weight[None])

    @cached_property
    def output_by_hidden(self) -> Float[Tensor, "#n d d_mlp"]:
        """do/dh = W_out^T diag(phi')."""
        return self.mlp.fc_out.weight * self.slope[:, None, :]

    @cached_property
    def output_by_attended(self) -> Float[Tensor, "#n d d"]:
        """do/da."""
        return self._rows_by_attended(self.identity)

    @cached_property
    def logits_by_attended(self) -> Float[Tensor, "#n vocab d"]:
        """d logits/da."""
        if self.second.is_curved:
            return self.logits_by_output @ self.output_by_attended
        return self._rows_by_attended(self.head.weight)

    def gradients(self, of_logits: Float[Tensor, "n vocab"]) -> dict[Place, Float[Tensor, "n _"]]:
        """Return dl/d(place) for every place from the logits back to a."""
        final = of_logits @ self.head.weight
        output = self.second.pull(final[:, None])[:, 0]
        found = {Place.logits: of_logits, Place.final: final, Place.output: output}
        normed = output if self.carries_normed else torch.zeros_like(output)
        if self.mlp is not None:
            found[Place.active] = output @ self.mlp.fc_out.weight
            found[Place.hidden] = found[Place.active] * self.slope
            normed = normed + found[Place.hidden] @ self.mlp.fc_in.weight
        entering = self.first.pull(normed[:, None])[:, 0]
        found[Place.attended] = entering if self.carries_normed else entering + output
        return {**found, Place.normed: normed}

    def curvature(self, gradients: dict[Place, Float[Tensor, "n _"]]) -> Float[Tensor, "#n d d"] | None:
        """Return d2<dl/df, f>/da2 from dl/d(place), or None where it vanishes.

        The sum over the nonlinearities of J^T Lambda J, with J from a to the nonlinearity's input.
        """
        terms = []
        if isinstance(self.second, LayerNormAt):
            jacobian = self.output_by_attended
            terms.append(jacobian.mT @ self.second.bend(gradients[Place.final], jacobian))
        if isinstance(self.first, LayerNormAt):
            terms.append(self.first.bend(gradients[Place.normed], self.identity[None]))
        if self.is_smooth:
            inner = self.mlp.fc_in.weight
            bent = sandwich(inner.T, self.bend * gradients[Place.active], inner)
            terms.append(self.first.pull(self.first.pull(bent).mT))
        return sum(terms[1:], start=terms[0]) if terms else None

    def push(self, place: Place, columns: Float[Tensor, "#n d k"]) -> Float[Tensor, "#n _ k"]:
        """Return d place/da columns, for the places after a."""
        if place == Place.final:
            return self.second.push(self.push(Place.output, columns))
        if place == Place.output:
            return self.output_by_attended @ columns
        normed = self.first.push(columns)
        if place == Place.normed:
            return normed
        hidden = self.mlp.fc_in.weight @ normed
        return hidden if place == Place.hidden else self.slope[:, :, None] * hidden

    def _rows_by_attended(self, rows: Float[Tensor, "p d"]) -> Float[Tensor, "#n p d"]:
        """Return rows do/da for rows shared by all items."""
        if self.mlp is None:
            return self.first.pull(rows[None]) if self.carries_normed else rows[None]
        through = sandwich(rows @ self.mlp.fc_out.weight, self.slope, self.mlp.fc_in.weight)
        return (
            self.first.pull(through.add_(rows))
            if self.carries_normed
            else self.first.pull(through).add_(rows)
        )


def sandwich(
    left: Float[Tensor, "p k"], middle: Float[Tensor, "n k"], right: Float[Tensor, "k q"]
) -> Float[Tensor, "#n p q"]:
    """Return left diag(middle_n) right for all items: one product of `middle` for a few rows of `left` at a time."""
    out = middle.new_empty(len(middle), len(left), right.shape[1])
    for start in range(0, len(left), 16):
        pairs = left[start : start + 16].T[:, :, None] * right[:, None, :]
        out[:, start : start + 16] = (middle @ pairs.flatten(1)).unflatten(1, pairs.shape[1:])
    return out


def _normaliser(norm: nn.Module | None, rows: Tensor) -> Normaliser:
    return LayerNormAt(norm, rows) if isinstance(norm, nn.LayerNorm) else Identity(rows)


def _first_norm(layer: Any, model: ModelConfig) -> nn.Module | None:
    if model.norm == Norm.post:
        return layer.ln1
    return layer.ln2 if model.mlp != MLP.none else None


def _second_norm(network: Any, layer: Any, model: ModelConfig) -> nn.Module | None:
    if model.norm == Norm.post:
        return layer.ln2 if model.mlp != MLP.none else None
    return network.ln_out


def _normal_density(x: Tensor) -> Tensor:
    return torch.exp(-x.square() / 2) / (2 * torch.pi) ** 0.5
