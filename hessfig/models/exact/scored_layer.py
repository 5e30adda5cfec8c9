"""The last layer at the scored positions: attention, norms, MLP and unembedding, with their derivatives."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessfig.config.enums import MLP, Norm
from hessfig.config.science import ModelConfig
from hessfig.curvature.losses import CrossEntropy, output_gradient
from hessfig.curvature.problem import Objective
from hessfig.models.exact.kronecker import one_of_each
from hessfig.models.tape.steps import DERIVATIVES


def loss_rows(
    objective: Objective, outputs: Float[Tensor, "batch scored v"]
) -> tuple[Tensor, Tensor]:
    """Return (dl/df of each item, R of each item) with R^T R = d2l/df2; shapes (n, v) and (n or 1, v, v).

    Cross-entropy over n items: d2l/df2 = (diag(p) - p p^T)/n, R = diag(sqrt(p)) (I - 1
    p^T)/sqrt(n). Squared errors: d2l/df2 = 2 I, or 2 I / (n v) for their mean.
    """
    with torch.enable_grad():
        gradient = output_gradient(
            objective.loss, outputs, objective.batch.targets
        ).flatten(0, 1)
    identity = torch.eye(outputs.shape[-1]).to(outputs)
    if isinstance(objective.loss, CrossEntropy):
        chances = torch.softmax(outputs.flatten(0, 1), dim=-1)
        return gradient, (chances / len(chances)).sqrt()[:, :, None] * (
            identity - chances[:, None, :]
        )
    scale = 2.0 if objective.loss.reduction == "sum" else 2.0 / outputs.numel()
    return gradient, scale**0.5 * identity[None]


class ScoredPlace(StrEnum):
    """Vectors of one item, in the order of the forward pass.

    `inputs` are the inputs of the attention, which do not depend on weights of the
    layer; `mean` are the inputs mixed by the pattern, and `mixed` the values mixed by
    it; `hidden` and `active` are before and after the activation.
    """

    inputs = "inputs"
    query = "query"
    scores = "scores"
    mean = "mean"
    mixed = "mixed"
    attended = "attended"
    normed = "normed"
    hidden = "hidden"
    active = "active"
    output = "output"
    final = "final"
    logits = "logits"


@dataclass(frozen=True, eq=False)
class ScoredEntry:
    """A weight, or its part for `head`, which enters item n as u_n = W inputs_n.

    The inputs are the vector of the item at `source`. `place` depends linearly on u_n,
    with `feature` = d place/du (None: the identity). `labels` groups items with equal
    inputs.
    """

    inputs: Float[Tensor, "n v"]
    source: ScoredPlace
    place: ScoredPlace
    feature: Float[Tensor, "#n place m"] | None = None
    labels: Int[Tensor, " n"] | None = None
    head: int = 0

    @cached_property
    def gram(self) -> Float[Tensor, "labels labels"]:
        """Products of the inputs, one item of each label; all pairs of heads share them."""
        if self.labels is None:
            inputs = self.inputs
        else:
            inputs = one_of_each(self.inputs, self.labels)
        return inputs @ inputs.T


class Identity:
    """No normalisation."""

    is_curved = False

    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.output = rows

    def push(self, columns: Float[Tensor, "#n d k"]) -> Float[Tensor, "#n d k"]:
        """Return J columns."""
        return columns

    def pull(self, rows: Float[Tensor, "#n r d"]) -> Float[Tensor, "#n r d"]:
        """Return rows J."""
        return rows


class LayerNormAt:
    """LayerNorm y = g o n + b, n = C x / s, s^2 = |C x|^2 / d + eps, C = I - 1 1^T / d, at rows x.

    J = diag(g / s) (I - B B^T) with B = [1, n] / sqrt(d) (theory: ln1).
    """

    is_curved = True

    def __init__(self, norm: nn.LayerNorm, rows: Float[Tensor, "n d"]) -> None:
        self.gain, self.dim = norm.weight, rows.shape[-1]
        centred = rows - rows.mean(dim=-1, keepdim=True)
        self.scale = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
        self.direction = centred / self.scale
        self.output = self.gain * self.direction + norm.bias
        self._ones = torch.ones_like(rows)
        self._basis = torch.stack([self._ones, self.direction], dim=-1) / self.dim**0.5
        self._stretch = self.gain / self.scale

    def push(self, columns: Float[Tensor, "#n d k"]) -> Float[Tensor, "#n d k"]:
        """Return J columns (columns may have one item for all)."""
        columns = columns.expand(len(self.scale), -1, -1)
        tangent = torch.baddbmm(
            columns, self._basis, self._basis.mT @ columns, alpha=-1
        )
        return tangent.mul_(self._stretch[:, :, None])

    def pull(self, rows: Float[Tensor, "#n r d"]) -> Float[Tensor, "#n r d"]:
        """Return rows J (rows may have one item for all)."""
        stretched = rows * self._stretch[:, None]
        return stretched.baddbmm_(stretched @ self._basis, self._basis.mT, alpha=-1)

    def bend(
        self, gradient: Float[Tensor, "n d"], columns: Float[Tensor, "#n d k"]
    ) -> Float[Tensor, "#n d k"]:
        """Return Lambda columns, Lambda the second derivative contracted with the gradient of the output (theory: ln2).

        Lambda = -[(r.n) C + n (C r)^T + (C r) n^T] / (d s^2) + 3 (r.n) n n^T / (d^2
        s^2) with r = g o gradient, written as a I + W S W^T with W = [1, n, C r].
        """
        pulled, square = gradient * self.gain, self.dim * self.scale.square()
        along = (pulled * self.direction).sum(dim=-1, keepdim=True)
        directions = torch.stack(
            [self._ones, self.direction, pulled - pulled.mean(dim=-1, keepdim=True)],
            dim=-1,
        )
        small = torch.zeros(len(square), 3, 3).to(square)
        small[:, 0, 0], small[:, 1, 1] = (
            (along / square / self.dim)[:, 0],
            (3 * along / square / self.dim)[:, 0],
        )
        small[:, 1, 2] = small[:, 2, 1] = -1 / square[:, 0]
        bent = columns * (-along / square)[:, :, None]
        return bent.baddbmm_(directions, small @ (directions.mT @ columns))


Normaliser = Identity | LayerNormAt


class Tail:
    """The map from the attention output a to the logits of the last layer, with its derivatives for all items.

    With e = a plus the skip: y = first(e), h = y W_in, o = carry + phi(h) W_out, f =
    second(o), logits = f W_U. The carry is e (no norm, pre-LN) or y (post-LN); `first`
    and `second` are LayerNorm or nothing.
    """

    def __init__(
        self, network: Any, model: ModelConfig, entering: Float[Tensor, "n d"]
    ) -> None:
        layer = network.layers[-1]
        self.model = model
        self.head = network.head
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
        return (
            DERIVATIVES[self.model.mlp](self.hidden)[0]
            .expand_as(self.hidden)
            .contiguous()
        )

    @cached_property
    def bend(self) -> Float[Tensor, "n d_mlp"]:
        """phi''(h) of a smooth activation."""
        bend = DERIVATIVES[self.model.mlp](self.hidden)[1]
        assert bend is not None
        return bend

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

    def gradients(
        self, of_logits: Float[Tensor, "n vocab"]
    ) -> dict[ScoredPlace, Float[Tensor, "n _"]]:
        """Return dl/d(place) for every place from the logits back to a."""
        final = of_logits @ self.head.weight
        output = self.second.pull(final[:, None])[:, 0]
        slopes = {
            ScoredPlace.logits: of_logits,
            ScoredPlace.final: final,
            ScoredPlace.output: output,
        }
        normed = output if self.carries_normed else torch.zeros_like(output)
        if self.mlp is not None:
            slopes[ScoredPlace.active] = output @ self.mlp.fc_out.weight
            slopes[ScoredPlace.hidden] = slopes[ScoredPlace.active] * self.slope
            normed = normed + slopes[ScoredPlace.hidden] @ self.mlp.fc_in.weight
        entering = self.first.pull(normed[:, None])[:, 0]
        slopes[ScoredPlace.attended] = (
            entering if self.carries_normed else entering + output
        )
        return {**slopes, ScoredPlace.normed: normed}

    def curvature(
        self, gradients: dict[ScoredPlace, Float[Tensor, "n _"]]
    ) -> Float[Tensor, "#n d d"] | None:
        """Return d2<dl/df, f>/da2 from dl/d(place), or None where it vanishes.

        The sum of J^T Lambda J over the nonlinearities, with J the Jacobian from a to
        the input of the nonlinearity.
        """
        terms = []
        if isinstance(self.second, LayerNormAt):
            jacobian = self.output_by_attended
            terms.append(
                jacobian.mT @ self.second.bend(gradients[ScoredPlace.final], jacobian)
            )
        if isinstance(self.first, LayerNormAt):
            terms.append(
                self.first.bend(gradients[ScoredPlace.normed], self.identity[None])
            )
        if self.is_smooth:
            inner = self.mlp.fc_in.weight
            bent = sandwich(inner.T, self.bend * gradients[ScoredPlace.active], inner)
            terms.append(self.first.pull(self.first.pull(bent).mT))
        if terms:
            return sum(terms[1:], start=terms[0])
        return None

    def push(
        self, place: ScoredPlace, columns: Float[Tensor, "#n d k"]
    ) -> Float[Tensor, "#n _ k"]:
        """Return d place/da columns, for the places after a."""
        if place == ScoredPlace.final:
            return self.second.push(self.push(ScoredPlace.output, columns))
        if place == ScoredPlace.output:
            return self.output_by_attended @ columns
        normed = self.first.push(columns)
        if place == ScoredPlace.normed:
            return normed
        hidden = self.mlp.fc_in.weight @ normed
        if place == ScoredPlace.hidden:
            return hidden
        return self.slope[:, :, None] * hidden

    def _rows_by_attended(self, rows: Float[Tensor, "p d"]) -> Float[Tensor, "#n p d"]:
        """Return rows do/da for rows shared by all items."""
        if self.mlp is None:
            if self.carries_normed:
                return self.first.pull(rows[None])
            return rows[None]
        through = sandwich(
            rows @ self.mlp.fc_out.weight, self.slope, self.mlp.fc_in.weight
        )
        if self.carries_normed:
            return self.first.pull(through.add_(rows))
        return self.first.pull(through).add_(rows)


def sandwich(
    left: Float[Tensor, "p k"],
    middle: Float[Tensor, "n k"],
    right: Float[Tensor, "k q"],
) -> Float[Tensor, "#n p q"]:
    """Return left diag(middle_n) right for all items, with one product of `middle` for a few rows of `left` each."""
    out = middle.new_empty(len(middle), len(left), right.shape[1])
    for start in range(0, len(left), 16):
        pairs = left[start : start + 16].T[:, :, None] * right[:, None, :]
        out[:, start : start + 16] = (middle @ pairs.flatten(1)).unflatten(
            1, pairs.shape[1:]
        )
    return out


def _normaliser(norm: nn.Module | None, rows: Tensor) -> Normaliser:
    if isinstance(norm, nn.LayerNorm):
        return LayerNormAt(norm, rows)
    return Identity(rows)


def _first_norm(layer: Any, model: ModelConfig) -> nn.Module | None:
    if model.norm == Norm.post:
        return layer.ln1
    if model.mlp != MLP.none:
        return layer.ln2
    return None


def _second_norm(network: Any, layer: Any, model: ModelConfig) -> nn.Module | None:
    if model.norm == Norm.post:
        if model.mlp != MLP.none:
            return layer.ln2
        return None
    return network.ln_out
