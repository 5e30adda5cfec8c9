"""The last layer at the scored positions: attention, norms, MLP and unembedding, with their derivatives.

Everything here is evaluated for all items at once; an item is a scored position of a
sequence. In the last layer the output of an item depends on its own vectors only (keys
and values come from the layer's inputs), so Jacobians are one small matrix per item:
(n, rows, columns), with a first axis of 1 where all items share them.
"""

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
    r"""Return (dl/df of each item, R of each item) with R^T R = d2l/df2.

    Cross-entropy over n items, with p the softmax of an item's logits:

    .. math:: \frac{\partial^2 \ell}{\partial f^2} = \frac{\operatorname{diag}(p) - p p^T}{n}, \qquad
              R = \frac{\operatorname{diag}(\sqrt p)\,(I - 1 p^T)}{\sqrt n}.

    R^T R = (I - p 1^T) diag(p) (I - 1 p^T) / n, and 1^T p = 1 leaves diag(p) - p p^T. This
    factor needs no eigenvalues and no Cholesky decomposition of a singular matrix. Squared
    errors have d2l/df2 = 2 I for their sum, and 2 I / (n v) for their mean.

    Parameters
    ----------
    objective : Objective
        Its loss and targets are used, and the loss is evaluated with gradients enabled.
    outputs : (batch, scored, v)
        The scored outputs f; n = batch times scored.

    Returns
    -------
    gradient : (n, v)
    root : (n or 1, v, v)
        R; squared errors share one for all items.

    Examples
    --------
    R^T R of logits (0, log 3), whose softmax is (1/4, 3/4):

    >>> p = torch.tensor([0.25, 0.75])
    >>> R = p.sqrt()[:, None] * (torch.eye(2) - p)
    >>> (R.T @ R).tolist()
    [[0.1875, -0.1875], [-0.1875, 0.1875]]
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
    if objective.loss.reduction == "sum":
        scale = 2.0
    else:
        scale = 2.0 / outputs.numel()
    return gradient, scale**0.5 * identity[None]


class ScoredPlace(StrEnum):
    """Vectors of one item, in the order of the forward pass.

    `inputs` are the inputs of the attention, which do not depend on weights of the layer.
    With one item's query q_h, scores s_hj and pattern A_hj for head h and key j:

    - `query` q_h = x W_Q^h and `scores` s_hj = q_h . k_hj / scale;
    - `mean` m_h = sum_j A_hj x_j, the inputs mixed by the pattern;
    - `mixed` z_h = sum_j A_hj v_hj, the values mixed by it;
    - `attended` a = z W_O, without the skip, and `normed` the input of the MLP;
    - `hidden` and `active` are before and after the activation;
    - `output` o of the layer, `final` after the last norm, and `logits` f.
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
    """A weight, or its part for `head`, which enters item n as u_n = c_n W with its inputs c_n.

    The loss sees W through the u_n alone, so its block is sum_n c_n c_n^T (x) d2l/du_n^2
    (the linear-bottleneck identity; `kronecker`). u_n need not be a vector of the network.
    The keys' matrix of a head enters the scores as s_hj = u_n . x_j / scale with u_n = q_h
    (W_K^h)^T: its input is the query, and its feature holds the x_j.

    Parameters
    ----------
    inputs : (n, v)
        The c_n: the vector of each item at `source`.
    source, place : ScoredPlace
        Where the inputs are from, and the place that depends linearly on u_n.
    feature : (n or 1, place, m) or None
        d place / du; None is the identity.
    labels : (n,), optional
        Groups items with equal inputs, whose matrices are added up.
    head : int
        From 0; of a weight whose heads have separate inputs.
    """

    inputs: Float[Tensor, "n v"]
    source: ScoredPlace
    place: ScoredPlace
    feature: Float[Tensor, "#n place m"] | None = None
    labels: Int[Tensor, " n"] | None = None
    head: int = 0

    @cached_property
    def gram(self) -> Float[Tensor, "labels labels"]:
        """Products c_n . c_m of the inputs, one item of each label; all pairs of heads share them."""
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
    r"""LayerNorm y = g o n + b at the rows x, with its first and second derivatives.

    .. math:: n = \frac{C x}{s}, \quad s^2 = \frac{|C x|^2}{d} + \epsilon, \quad C = I - \frac{1 1^T}{d}, \qquad
              J = \operatorname{diag}\!\left(\frac{g}{s}\right) (I - B B^T), \quad B = \frac{[1, n]}{\sqrt d}.

    From ds/dx = C x / (d s) = n / d follows dn/dx = (C - n n^T / d) / s, also with epsilon
    > 0, and C - n n^T / d = I - B B^T. J times k columns takes 8 d k operations by the two
    columns of B, instead of the 2 d^2 k of a matrix. (Statement ln1 of `hessfig verify`.)

    Parameters
    ----------
    norm : LayerNorm
        With gain g and shift b.
    rows : (n, d)
        The inputs x of all items.

    Examples
    --------
    The Jacobian that `push` applies is that of the module:

    >>> norm, x = nn.LayerNorm(3), torch.tensor([[1.0, 2.0, 5.0]])
    >>> with torch.no_grad():
    ...     pushed = LayerNormAt(norm, x).push(torch.eye(3)[None])[0]
    >>> torch.allclose(pushed, torch.autograd.functional.jacobian(norm, x)[0, :, 0], atol=1e-6)
    True
    """

    is_curved = True

    def __init__(self, norm: nn.LayerNorm, rows: Float[Tensor, "n d"]) -> None:
        self.gain = norm.weight
        self.dim = rows.shape[-1]
        centred = rows - rows.mean(dim=-1, keepdim=True)
        self.scale = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
        self.direction = centred / self.scale
        self.output = self.gain * self.direction + norm.bias
        self._ones = torch.ones_like(rows)
        self._basis = torch.stack([self._ones, self.direction], dim=-1) / self.dim**0.5
        self._stretch = self.gain / self.scale

    def push(self, columns: Float[Tensor, "#n d k"]) -> Float[Tensor, "#n d k"]:
        """Return J columns = (g / s) o (columns - B B^T columns); `columns` may have one item for all."""
        columns = columns.expand(len(self.scale), -1, -1)
        tangent = torch.baddbmm(
            columns, self._basis, self._basis.mT @ columns, alpha=-1
        )
        return tangent.mul_(self._stretch[:, :, None])

    def pull(self, rows: Float[Tensor, "#n r d"]) -> Float[Tensor, "#n r d"]:
        """Return rows J = (rows o g / s) (I - B B^T); `rows` may have one item for all."""
        stretched = rows * self._stretch[:, None]
        return stretched.baddbmm_(stretched @ self._basis, self._basis.mT, alpha=-1)

    def bend(
        self, gradient: Float[Tensor, "n d"], columns: Float[Tensor, "#n d k"]
    ) -> Float[Tensor, "#n d k"]:
        r"""Return Lambda columns, where Lambda is the second derivative contracted with the gradient of the output.

        .. math:: \Lambda = -\frac{(r \cdot n) C + n (C r)^T + (C r) n^T}{d s^2} + \frac{3 (r \cdot n) n n^T}{d^2 s^2},
                  \qquad r = g \circ \frac{\partial \ell}{\partial y}.

        It is the derivative of x -> J^T (dl/dy) (statement ln2 of `hessfig verify`). Since C = I
        - 1 1^T / d, it is a multiple of the identity plus a matrix of rank three, a I + W S W^T
        with a = -(r . n) / (d s^2) and W = [1, n, C r], which is applied in 12 d k operations.

        Parameters
        ----------
        gradient : (n, d)
            dl/dy, the gradient in the output of the norm.
        columns : (n or 1, d, k)
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
    r"""The map from the attention output a to the logits of the last layer, with its derivatives for all items.

    With e = a plus the skip:

    .. math:: y = \operatorname{first}(e), \quad h = y W_{in}, \quad o = \text{carry} + \phi(h) W_{out}, \quad
              f = \operatorname{second}(o) W_U.

    The carry is e (no norm, pre-LN) or y (post-LN); `first` and `second` are LayerNorm or
    nothing. d e / d a = I, so derivatives in a are those in e.

    Parameters
    ----------
    network : Transformer
        A built-in one, whose last layer and head are read.
    model : ModelConfig
    entering : (n, d)
        The e of all items.
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
        """phi'(h). That of ReLU is 1 for h > 0 and 0 for h <= 0, as in torch."""
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
        """df/do: the unembedding pulled through the last norm."""
        return self.second.pull(self.head.weight[None])

    @cached_property
    def output_by_hidden(self) -> Float[Tensor, "#n d d_mlp"]:
        """do/dh = W_out^T diag(phi')."""
        return self.mlp.fc_out.weight * self.slope[:, None, :]

    @cached_property
    def output_by_attended(self) -> Float[Tensor, "#n d d"]:
        """do/da = d carry/da + W_out^T diag(phi') W_in^T dy/da."""
        return self._rows_by_attended(self.identity)

    @cached_property
    def logits_by_attended(self) -> Float[Tensor, "#n vocab d"]:
        """df/da.

        Without a curved last norm, W_U is multiplied first: v rows per item instead of d.
        """
        if self.second.is_curved:
            return self.logits_by_output @ self.output_by_attended
        return self._rows_by_attended(self.head.weight)

    def gradients(
        self, of_logits: Float[Tensor, "n vocab"]
    ) -> dict[ScoredPlace, Float[Tensor, "n _"]]:
        """Return dl/d(place) for every place from the logits back to a: backpropagation through the tail.

        With the gradients written as rows, dl/do = (df/do)^T dl/df; the MLP adds dl/dh W_in^T
        to dl/dy, and the carry adds dl/do to dl/dy (post-LN) or to dl/de.

        Parameters
        ----------
        of_logits : (n, v)
            dl/df.

        Returns
        -------
        dict
            One row per item for `logits`, `final`, `output`, `active` and `hidden` (with an
            MLP), `normed` and `attended`.
        """
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
        if self.carries_normed:
            slopes[ScoredPlace.attended] = entering
        else:
            slopes[ScoredPlace.attended] = entering + output
        return {**slopes, ScoredPlace.normed: normed}

    def curvature(
        self, gradients: dict[ScoredPlace, Float[Tensor, "n _"]]
    ) -> Float[Tensor, "#n d d"] | None:
        r"""Return d2<dl/df, f>/da2 from dl/d(place), or None where it vanishes: piecewise linear without norms.

        The second derivative of a composition is the sum over its nonlinearities of J^T Lambda
        J, with J the Jacobian from a to the input of the nonlinearity and Lambda its second
        derivative, contracted with the gradient of its output: d(J^T g) differentiates each
        factor of the backward pass once. Here these are the last norm (J = do/da), the first
        norm (J = I) and a smooth activation:

        .. math:: J_1^T \, W_{in} \operatorname{diag}\!\Big(\phi''(h) \circ
                  \frac{\partial \ell}{\partial \phi}\Big) W_{in}^T \, J_1,

        where J_1 is the Jacobian of the first norm.
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
        """Return d place/da columns, for the places after a: `normed`, `hidden`, `active`, `output` and `final`."""
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
        """Return rows do/da for rows shared by all items.

        rows do/da = rows dcarry/da + (rows W_out^T diag(phi') W_in^T) J_1: the rows meet the
        MLP before the norm, so that the inner product is `sandwich` of shared factors.
        """
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
    r"""Return left diag(middle_n) right for all items.

    .. math:: (L \operatorname{diag}(m_n) R)_{pq} = \sum_k m_{nk} \, (L_{pk} R_{kq}):

    the pairs L_pk R_kq are the same for all items, so one product of (n x k) by (k x 16 q)
    replaces n products of small matrices for each 16 rows of `left`. The 2 n k p q
    operations are the same; the memory of the pairs is 16 k q numbers.

    Examples
    --------
    >>> left, right = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [10.0]])
    >>> sandwich(left, torch.tensor([[1.0, 1.0], [0.0, 3.0]]), right).flatten().tolist()
    [21.0, 60.0]
    """
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
    """Return the norm before the MLP.

    For post-LN it is `ln1`, of the sum with the skip; otherwise `ln2`, of the MLP's input.
    """
    if model.norm == Norm.post:
        return layer.ln1
    if model.mlp != MLP.none:
        return layer.ln2
    return None


def _second_norm(network: Any, layer: Any, model: ModelConfig) -> nn.Module | None:
    """Return the norm behind the layer: `ln2` for post-LN with an MLP, the final norm for pre-LN."""
    if model.norm == Norm.post:
        if model.mlp != MLP.none:
            return layer.ln2
        return None
    return network.ln_out
